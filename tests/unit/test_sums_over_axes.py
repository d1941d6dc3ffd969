"""Products that sum over several axes: traced, proved, and in kernels of every kind."""

from dataclasses import replace

import numpy as np
import pytest

import polygen as pg
from polygen.errors import TraceError, UnsupportedProgram, VerifyError
from polygen.hardware.device import device
from polygen.lower import verify_axes
from polygen.lower.operands import walk
from polygen.lower.verify import verify
from polygen.lower.work import Move
from polygen.pipeline import generate
from polygen.poly.depth import prove_walk
from polygen.poly.digits import digits
from polygen.schedule.load import load_schedule, schedules_folder

WAYS = {
    "roles": ("sm_90a", "cooperative_128x64x64_s8_e4p2"),
    "shared sums": ("sm_90a", "cooperative_128x64x64_w64_s6_k2"),
    "warps": ("sm_80", "128x64x64_w64x32_s4"),
    "registers on the way": ("sm_75", "auto"),
}
SIZES = {"B": 2, "S": 70, "N": 72, "H": 3, "L": 72}
HEADS = ("f16[S,H,L]", "f16[H,L,N]")
BOTH = ("f16[S,H,L]", "f16[N,H,L]")
PROGRAMS = {
    "heads": (lambda x, w: np.einsum("shd,hde->se", x, w) * 2.0, HEADS),
    "tensordot": (lambda x, w: np.tensordot(x, w, axes=2), HEADS),
    "batches": (
        lambda x, w: np.einsum("bikl,klj->bij", x, w), ("bf16[B,S,3,L]", "bf16[3,L,N]"),
    ),
    "three axes": (
        lambda x, w: np.einsum("iklm,jklm->ij", x, w), ("f16[S,2,3,L]", "f16[N,2,3,L]"),
    ),
    "merged": (lambda x, w: x.reshape(-1, 3 * 80) @ w.T, ("f16[S,3,80]", "f16[N,240]")),
    "rows inside chunks": (
        lambda x, w: np.einsum("skl,nkl->sn", x, w), ("f16[S,3,71]", "f16[N,3,71]"),
    ),
    "computed": (lambda x, w: np.einsum("skl,nkl->sn", pg.relu(x), w), BOTH),
}  # fmt: skip
QUICK = [("heads", "roles"), ("batches", "warps")]
SLOW = [
    ("tensordot", "shared sums"), ("three axes", "roles"), ("merged", "shared sums"),
    ("rows inside chunks", "warps"), ("computed", "warps"), ("heads", "registers on the way"),
]  # fmt: skip


def made(name, way):
    function, signature = PROGRAMS[name]
    arch, schedule = WAYS[way]
    if schedule != "auto":
        schedule = load_schedule(schedules_folder() / arch / f"{schedule}.toml")
    fused = pg.fuse(function, name="summed")
    sizes = {dim: SIZES[dim] for dim in fused.program(*signature).sizes}
    return fused.compile(*signature, arch=arch, sizes=sizes, schedule=schedule), sizes


def checked(name, way):
    kernel, sizes = made(name, way)
    report = kernel.check(sizes)
    assert report.ok, str(report)
    assert report.comparison == "equal to NumPy, bit for bit"


@pytest.mark.parametrize(("name", "way"), QUICK)
def test_kernels_sum_over_axes(name, way):
    checked(name, way)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way"), SLOW)
def test_kernels_sum_over_axes_in_every_way(name, way):
    checked(name, way)


def test_tiles_are_numbered_through():
    for places in (2, 3, 4):
        assert "each once, in the order of the axes" in str(prove_walk(places))
    assert digits("k", ["3", "H", "T"]) == ["k / (H * T)", "k / T % H", "k % T"]


def test_boxes_and_numbers_of_tiles_are_checked(monkeypatch):
    function, signature = PROGRAMS["heads"]
    arch, name = WAYS["roles"]
    schedule = load_schedule(schedules_folder() / arch / f"{name}.toml")
    program = pg.fuse(function, name="summed").program(*signature)
    made = generate(program, device(arch), {}, schedule)
    assert "H * ((L + 63) / 64 * 64)" in made.source.text
    assert any("numbered through" in str(proof) for proof in made.tree.proofs)

    def wrong(work):
        if not isinstance(work, Move):
            return work
        first, *others = work.boxes
        corner = tuple("0" if one == "over0" else one for one in first.corner)
        return replace(work, boxes=(replace(first, corner=corner), *others))

    leaves = tuple(replace(leaf, work=wrong(leaf.work)) for leaf in made.plan.leaves)
    with pytest.raises(VerifyError, match="boxes of x begin at 0 of axis 1 and not at 1"):
        verify(replace(made.plan, leaves=leaves))

    def swapped(match, tiles, size):
        (outer, first), (inner, second) = walk(match, tiles, size)
        return ((outer, second), (inner, first))

    monkeypatch.setattr(verify_axes, "walk", swapped)
    with pytest.raises(VerifyError, match="k tiles are"):
        verify(made.plan)


REFUSED = {
    "an axis of one operand": (
        lambda x, w: np.einsum("skl,nl->sn", x, w), ("f16[S,H,L]", "f16[N,L]"),
        UnsupportedProgram, "a sum over k, an axis of x alone",
    ),
    "no such axes": (
        lambda x, w: np.tensordot(x, w, axes=4), HEADS, TraceError, "how many last axes",
    ),
    "lanes": (
        lambda x, w: np.einsum("skl,nkl->sn", x, w), BOTH, pg.PolygenError,
        "with sums over 2 axes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    function, signature, error, text = REFUSED[name]
    lanes = load_schedule(schedules_folder() / "sm_80" / "dots_4x8x1024_w4x1_n16_f4_b3.toml")
    options = {"schedule": lanes} if name == "lanes" else {}
    with pytest.raises(error) as caught:
        pg.fuse(function).compile(*signature, arch="sm_80", **options)
    assert text in str(caught.value)
