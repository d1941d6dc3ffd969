"""What is tuned: candidates of programs whose results depend on more than their row."""

import numpy as np
import pytest

import polygen as pg
from polygen.covering import in_blocks
from polygen.hardware.device import device
from polygen.tune.identity import candidate_key, canonical
from polygen.tune.task import describe

MATRICES = ("bf16[M,K]", "bf16[N,K]")


def softmax(x, w):
    return pg.softmax(x @ w.T).astype("bf16")


def described(function, signature, **sizes):
    return describe(pg.fuse(function), signature, sizes=sizes, arch="sm_90a")


@pytest.mark.parametrize(("n", "covered"), [(512, True), (4096, False)])
def test_rows_are_covered_where_they_can_be_and_left_to_a_launch(n, covered):
    made = described(softmax, MATRICES, M=8192, N=n, K=1024)
    own = {one.schedule.covers_rows for one in made.candidates[1:]}
    assert own == ({True, False} if covered else {False})
    assert made.small is not None and made.small["M"] < 512


def test_candidates_have_as_many_warps_to_a_row_as_a_choice():
    made = described(softmax, MATRICES, M=8192, N=4096, K=1024)
    of = made.candidates[-1].schedule
    wanted = in_blocks(of, made.program, device("sm_90a"), made.sizes).epilogue
    found = {(one.schedule.epilogue.row_warps, one.schedule.epilogue.row_words)
             for one in made.candidates}  # fmt: skip
    assert found == {(wanted.row_warps, wanted.row_words)} and wanted.row_words > 0


def test_candidates_of_both_kinds_have_their_own_keys_and_names():
    made = described(softmax, MATRICES, M=8192, N=256, K=256)
    both = [[o.schedule for o in made.candidates[1:] if o.schedule.covers_rows == own]
            for own in (True, False)]  # fmt: skip
    keys = [set(map(candidate_key, own)) for own in both]
    assert not keys[0] & keys[1]
    in_space = {one.name for one in both[0]} - {one.name for one in both[1]}
    assert any("_rows" in name for name in in_space)


def convolution(x, w):
    x = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    v = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
    return pg.relu(pg.einsum("npqcrs,krsc->npqk", v, w))


def test_windows_are_compared_on_a_few_images():
    made = described(convolution, ("bf16[B,28,28,64]", "bf16[64,3,3,64]"), B=64)
    assert made.small is not None and made.small["B"] < 32
    assert any(one.schedule.tile.pixels for one in made.candidates)


SECTIONS = ("bf16[M,K]", "bf16[N,K]", "bf16[256,K]@2")


def test_sections_whose_rows_come_in_two_ways_have_schedules_to_measure(monkeypatch):
    """What is found is then looked up for the program as it is multiplied."""

    def two(x, u, w):
        return x @ u.T, x @ w.T

    sizes = {"M": 512, "N": 512, "K": 512}
    made = described(two, SECTIONS, **sizes)
    assert len(made.candidates) > 100 and made.small is not None
    asked = []
    monkeypatch.setattr("polygen.decide.lookup.best", lambda program, *_: asked.append(program))
    pg.fuse(two).compile(*SECTIONS, arch="sm_90a", sizes=sizes)
    assert [canonical(one, sizes) for one in asked] == [canonical(made.program, sizes)]


def test_an_array_on_both_sides_comes_alike_on_both():
    def turned(x, u, w):
        return x @ u.T, w @ x.T

    made = described(turned, SECTIONS, M=64, N=72, K=64)
    assert {one.alignment for one in made.program.inputs} == {2}
