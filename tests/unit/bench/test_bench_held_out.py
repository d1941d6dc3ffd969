"""The held-out rows: drawn from public sizes, in their classes, and never tuned for."""

import pytest

from polygen import cli
from polygen.bench import held_out
from polygen.bench.rows import selected, suite, suite_names
from polygen.errors import BenchError


@pytest.fixture(scope="module")
def drawn():
    return held_out.drawn(held_out.SEED, held_out.EACH)


def test_the_committed_rows_are_those_of_the_seed():
    wanted = held_out.text(held_out.SEED, held_out.EACH)
    assert held_out.FILE.read_text() == wanted
    assert held_out.text(1, 2) == held_out.text(1, 2) != held_out.text(2, 2)


def test_the_suite_has_all_that_was_drawn(drawn):
    rows = suite("held-out").rows
    assert len(rows) == len(held_out.CLASSES) * held_out.EACH >= 60
    assert suite("held_out").rows == rows and "held-out" in suite_names()
    pairs = {(row.op, (row.m, row.n, row.k)) for row in rows}
    assert pairs == {(op, size.shape) for found in drawn.values() for size, op in found}
    assert {row.op for row in rows} == set(held_out.OPERATIONS)
    models = {size.model for found in drawn.values() for size, _ in found}
    assert len(models) >= 20


def test_a_class_follows_from_the_size(drawn):
    for kind, found in drawn.items():
        assert len({size.shape for size, _ in found}) == held_out.EACH
        for size, _ in found:
            assert held_out.class_of(size) == kind

    def kind(*shape):
        return held_out.class_of(held_out.Size("m", "l", *shape))

    assert kind(128, 50257, 16) == "few rows" and kind(129, 50257, 16) == "odd"
    assert kind(4096, 4096, 4098) == "odd" and kind(4096, 4096, 16) == "small K"
    assert kind(4096, 4096, 520) == "large" and kind(4096, 64, 4096) is None


def test_no_row_was_fitted_tuned_or_looked_at(drawn):
    seen = held_out.known()
    assert (4096, 4096, 1024) in seen
    assert not seen & {size.shape for found in drawn.values() for size, _ in found}


def test_held_out_rows_are_not_tuned(capsys):
    with pytest.raises(BenchError, match=r"rows of held_out are held out.*judge what ships"):
        selected(("llm", "held_out"), to_tune=True)
    assert selected(("held_out",)) and selected(("llm",), to_tune=True)
    assert cli.main(["tune", "--suite", "held-out", "--arch", "sm_90a"]) == 2
    assert "held-out are held out" in capsys.readouterr().err
