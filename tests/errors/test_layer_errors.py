"""Layers that are refused: what, where, why, and what would do."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from chain_samples import by_warps, few_rows

import polygen as pg
from polygen.errors import (
    InvarianceError,
    PolygenError,
    ResourceError,
    ScheduleError,
    UnsupportedProgram,
)
from polygen.frontend.program import Pointwise
from polygen.poly.layer_match import match_layers
from polygen.rewrite.chain import chain
from polygen.schedule.model import CtaTile, Epilogue, Schedule, Tile, WarpTile


def three(x, a, b, c):
    return pg.relu(pg.relu(x @ a) @ b) @ c


def widths(*given, kind: str = "bf16") -> tuple[str, ...]:
    pairs = itertools.pairwise(given)
    return (f"{kind}[M,{given[0]}]", *(f"{kind}[{one},{other}]" for one, other in pairs))


def _refused(function, *signature: str, error: type[PolygenError], **more) -> str:
    with pytest.raises(error) as found:
        pg.fuse(function).compile(*signature, single=True, **({"arch": "sm_80"} | more))
    return str(found.value)


@pytest.mark.parametrize(
    ("given", "name"), [(("K", 32, 32, 32), "K"), ((32, "A", 32, 32), "A"), ((32, 32, "B", 32), "")]
)
def test_widths_that_are_no_numbers(given: tuple, name: str) -> None:
    if not name:  # that between the last two products may be any
        pg.fuse(three).compile(*widths(*given), arch="sm_80", single=True)
        return
    text = _refused(three, *widths(*given), error=UnsupportedProgram)
    assert f"a product of a chain sums over {name}" in text or f"has columns {name}" in text
    assert f"Give {name} as a number in the signature" in text


def test_a_layer_that_registers_do_not_hold() -> None:
    text = _refused(three, *widths(64, 512, 64, 64), error=ResourceError)
    assert "registers per thread" in text and "for a layer with what it multiplies" in text
    assert "Make two functions" in text
    first = pg.fuse(lambda x, a: pg.relu(x @ a).astype("bf16"))
    first.compile("bf16[M,64]", "bf16[64,512]", arch="sm_80")
    pg.fuse(lambda h, b, c: pg.relu(h @ b) @ c).compile(*widths(512, 64, 64), arch="sm_80")


def test_layers_that_shared_memory_does_not_hold() -> None:
    """Layers of one form share a ring; those of different forms lie there all at once."""

    def six(x, a, b, c, d, e, f):
        return pg.relu(pg.relu(pg.relu(three(x, a, b, c)) @ d) @ e) @ f

    text = _refused(six, *widths(64, 208, 192, 176, 64, 64, 8), error=ResourceError)
    assert "what 4 layers multiply" in text and "Make two functions" in text
    pg.fuse(three).compile(*widths(64, 208, 192, 176), arch="sm_80")
    pg.fuse(three).compile(*widths(176, 64, 64, 8), arch="sm_80")


def test_schedules_with_roles() -> None:
    text = _refused(three, *widths(*[64] * 4), error=ScheduleError, arch="sm_90a",
                    schedule=few_rows())  # fmt: skip
    assert "roles.form beside layers" in text and 'roles.form = "none"' in text
    kernel = pg.fuse(three).compile(
        *widths(*[64] * 4), arch="sm_90a", schedule=replace(by_warps(), device="sm_90a")
    )
    assert not kernel.schedule.specialised

    def gated(x, g, u, d):
        return (pg.relu(x @ g) * (x @ u)) @ d

    signature = ("bf16[M,64]", "bf16[64,64]", "bf16[64,64]", "bf16[64,64]")
    text = _refused(gated, *signature, error=ScheduleError, arch="sm_90a", schedule=few_rows())
    assert "sums of several products of the same rows" in text


@pytest.mark.parametrize("kind", ["e4m3", "s8"])
def test_other_types(kind: str) -> None:
    with pytest.raises(PolygenError, match="only 16-bit types, tf32, f32 and f64 are implied"):
        pg.fuse(three).compile(*widths(32, 32, 32, 32, kind=kind), arch="sm_90a")


def test_targets_without_copies_in_the_background() -> None:
    text = _refused(three, *widths(*[32] * 4, kind="f16"), error=UnsupportedProgram, arch="sm_75")
    assert "from sm_80 on" in text


def test_invariant_dims() -> None:
    with pytest.raises(InvarianceError, match="chain of products"):
        pg.fuse(three, invariant={"M": {"x": 0}}).compile(*widths(*[32] * 4), arch="sm_80")


def _residual(x, a, b, c):
    h = pg.relu(x @ a)
    return pg.relu(pg.relu(h @ b) + h) @ c


def test_a_fold_of_a_layer() -> None:
    def function(x, a, b, c):
        h = pg.relu(x @ a)
        return pg.relu(h @ b) @ c, h.sum(axis=-1)

    text = _refused(function, *widths(*[32] * 4), error=UnsupportedProgram)
    assert "layers are fused element by element" in text and "in a second" in text


def test_a_residual_beside_a_fold_of_results() -> None:
    def function(x, a, b):
        h = pg.relu(x @ a)
        y = h @ b
        return (y - y.max()) * h

    text = _refused(function, *widths(*[32] * 3), error=UnsupportedProgram)
    assert "of a layer, beside a fold of results" in text and "combine both outside" in text


def test_a_residual_of_sums_behind_the_last_product() -> None:
    def function(x, a, b):
        h = x @ a
        return h @ b + h

    text = _refused(function, *widths(*[32] * 3), error=UnsupportedProgram)
    assert "which lies between the products" in text and "in a second" in text


def _behind(x, a, b):
    h = pg.relu(x @ a)
    return h @ b + h


def _returned(x, a, b, c):
    h = pg.relu(x @ a)
    return pg.relu(h @ b) @ c, h


@pytest.mark.parametrize(
    ("function", "given", "schedule", "field", "nearest"),
    [
        (_behind, 3, {"keys": 16, "columns": 32}, "tile.cta.k", "tile.cta.k = 32"),
        (_behind, 3, {"keys": 32, "columns": 64}, "tile.cta.n", "tile.cta.n = 32"),
        (_behind, 3, {"keys": 32, "columns": 32, "part": 32}, "tile.part", "tile.part = 0"),
        (_returned, 4, {"keys": 32, "columns": 32, "part": 32}, "tile.part", "tile.part = 0"),
    ],
)
def test_schedules_beside_what_layers_leave(function, given, schedule, field, nearest) -> None:
    own = by_warps(2, 16, **schedule)
    text = _refused(function, *widths(*[32] * given), error=ScheduleError, schedule=own)
    assert f"{field} beside layers" in text and nearest in text


def test_panels_beside_what_layers_leave() -> None:
    panels = replace(few_rows(keys=64, columns=64), epilogue=Epilogue("tma", prefetch=1))
    more = {"arch": "sm_90a", "schedule": panels}
    text = _refused(_behind, *widths(*[64] * 3), error=ScheduleError, **more)
    assert "epilogue.through beside layers" in text and '"registers"' in text


def test_a_residual_that_is_turned() -> None:
    def function(x, a, b, c):
        h = pg.relu(x @ a)
        return pg.relu(pg.relu(h @ b) + h.mT) @ c

    square = ("bf16[32,32]",) * 4
    text = _refused(function, *square, error=UnsupportedProgram)
    assert "of a layer before" in text and "in a second" in text


def test_elements_of_other_threads_are_not_read_again() -> None:
    def function(x, a, b, c, d):
        h = pg.relu(x @ a)
        return pg.relu(pg.relu(pg.relu(h @ b) + h) @ c) @ d

    first, second = chain(pg.fuse(function).program(*["bf16[32,32]"] * 5)).layers

    def turned(one):
        args = tuple(
            replace(arg, index=arg.index[::-1]) if getattr(arg, "name", "") == first.kept else arg
            for arg in one.args
        )
        return replace(one, args=args)

    statements = tuple(
        turned(one) if isinstance(one, Pointwise) else one for one in second.program.statements
    )
    changed = replace(second, program=replace(second.program, statements=statements))
    with pytest.raises(UnsupportedProgram, match="is read again, made as") as found:
        match_layers([first, changed])
    assert "as in h + f(h @ b)" in str(found.value)


def test_a_residual_of_sums_that_a_tile_does_not_hold() -> None:
    symbolic = ("bf16[M,32]", "bf16[32,N]", "bf16[N,N]", "bf16[N,32]")
    text = _refused(_residual, *symbolic, error=UnsupportedProgram)
    assert "its tile holds the whole of it" in text and "Give N as a number" in text
    assert pg.fuse(_residual).compile(*symbolic, arch="sm_80", sizes={"N": 32})
    tile = Tile(CtaTile(64, 32, 16), WarpTile(16, 32))
    for own, field in ((tile, "tile.cta.k"), (replace(tile, part=32), "tile.part")):
        schedule = Schedule("own", "sm_80", tile=own, epilogue=Epilogue("registers"))
        if own.part:
            schedule = replace(schedule, tile=replace(own, cta=CtaTile(64, 32, 32)))
        text = _refused(_residual, *widths(*[32] * 4), error=ScheduleError, schedule=schedule)
        assert f"{field} beside layers that are read again" in text


def test_products_that_do_not_share_rows() -> None:
    def function(x, g, u, d):
        return (pg.relu(x @ g) * (x[::-1] @ u)) @ d

    _refused(function, *widths(32, 32), *widths(32, 32)[1:], "bf16[32,32]", error=PolygenError)
