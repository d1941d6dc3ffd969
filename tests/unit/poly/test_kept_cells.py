"""Who writes a cell again without reading it is refused, in every family of kernels."""

from dataclasses import replace

import pytest
from tile_mutants import CASES, program

from polygen.errors import VerifyError
from polygen.poly.by_chain import by_chain
from polygen.poly.chain_shape import ChainShape
from polygen.poly.follow_keys import KeysShape, keys_program
from polygen.poly.kept_cells import check_kept
from polygen.poly.tiling import Tiling
from polygen.poly.versions import TileModel

CHAIN = ChainShape(
    Tiling((128, 64, 64), (64, 64), (64, 8, 16)), 64, 2, referenced=True, states=True
)


def found(name):
    if name == "chain":
        return by_chain(CHAIN)
    return program(next(case for case in CASES if case.name == name))


# kernel, statement, the sum that it adds to, and a condition under which it adds
MISTAKES = (
    ("warps", "mma", "sum", "k > 0"),
    ("cooperative, residual", "multiply", "sum", "k + s > 1"),
    ("cooperative, sums that go on", "multiply_rest", "sum", "s > 0"),
    ("ping-pong, sums in blocks", "multiply", "inner", "s > 0"),
    ("ping-pong, sums in blocks", "promote", "sum", "k >= 4"),
    ("chain", "multiply", "sum", "s > 0"),
    ("chain", "rescale", "sum", "k > 1"),
)


@pytest.mark.parametrize(("kernel", "name", "total", "adds"), MISTAKES)
def test_a_term_that_overwrites_those_before_it_is_refused(kernel, name, total, adds):
    of = found(kernel)
    check_kept(TileModel(of))

    def broken(statement):
        cells = (
            f"{cell.partition(' : ')[0]} : {adds}" if cell.partition("[")[0] == total else cell
            for cell in statement.reads
        )
        return replace(statement, reads=tuple(cells)) if statement.name == name else statement

    changed = replace(of, statements=tuple(broken(one) for one in of.statements))
    assert changed != of
    with pytest.raises(VerifyError, match=f"{name} overwrites what nobody has read"):
        check_kept(TileModel(changed))


def test_registers_hold_one_sum_after_another_once_it_is_read():
    of = keys_program(KeysShape(4, 32, referenced=True, states=True))
    check_kept(TileModel(of))
    unread = [
        replace(one, reads=one.reads[:-1]) if one.name == "results" else one
        for one in of.statements
    ]
    with pytest.raises(VerifyError, match="begin_sum overwrites what nobody has read of sum"):
        check_kept(TileModel(replace(of, statements=tuple(unread))))
