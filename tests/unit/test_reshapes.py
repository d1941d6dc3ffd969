"""Reshapes in kernels: axes of results, operands and what goes with them, split and merged."""

from dataclasses import replace

import numpy as np
import pytest

import polygen as pg
from polygen.errors import ScheduleError, VerifyError
from polygen.hardware.device import device
from polygen.lower.accesses import Step
from polygen.lower.result_work import Epilogue
from polygen.lower.verify import verify
from polygen.pipeline import generate
from polygen.schedule.load import load_schedule, schedules_folder

WAYS = {
    "panels": ("sm_90a", "cooperative_128x64x64_s8_e4p2"),
    "lines": ("sm_90a", "cooperative_128x128x64_w64_s6_lines_exchanged"),
    "registers": ("sm_90a", "pingpong_64x160x64_s6_registers"),
    "staged": ("sm_80", "128x64x64_w64x32_s4"),
}
SIZES = {"S": 100, "T": 72, "K": 72, "N": 88}


def heads(count, size):
    return lambda x, w: (x @ w.T).reshape(x.shape[0], count, size).transpose(1, 0, 2)


def on_heads(x, w, r, s):
    v = (x @ w.T).reshape(-1, 4, 32)
    return v * r[:, None] + pg.indices(v)[1] * 8.0 + s.reshape(-1, 4, 32)


def of_operands(x, w, r):
    return pg.relu(x.reshape(150, -1) @ w.T + r)


def scores(q, k):
    return np.einsum("shd,thd->hst", q.reshape(-1, 2, 64), k.reshape(-1, 2, 64))


def repeated(x, w, s):
    return (x @ w.T) * pg.repeat(s, 32, axis=1)


TWO = ("bf16[S,K]", "bf16[N,K]")
PROGRAMS = {
    "heads": (heads(4, 64), ("bf16[S,K]", "bf16[256,K]")),
    "heads inside chunks": (heads(6, 24), ("bf16[S,K]", "bf16[144,K]")),
    "work on heads": (on_heads, ("bf16[S,K]", "bf16[128,K]", "f32[4]", "bf16[S,128]")),
    "rows": (lambda x, w: (x @ w.T).reshape(3, 50, -1), ("bf16[150,K]", "bf16[N,K]")),
    "of operands": (of_operands, ("bf16[3,50,K]", "bf16[N,K]", "bf16[150,N]")),
    "matrices as one": (lambda x, w: (x @ w).reshape(150, -1), ("bf16[3,50,K]", "bf16[3,K,N]")),
    "one axis": (lambda x, w: (x @ w.T).reshape(-1), ("bf16[50,K]", "bf16[64,K]")),
    "one matrix of a batch of one": (
        lambda x, w: (x @ w.T).reshape(-1, 24, 40),
        ("bf16[1,3,8,64]", "bf16[40,64]"),
    ),
    "an axis of size 1 in front": (
        lambda x, w: pg.relu(x.reshape(1, 24, 64) @ w.T),
        ("bf16[1,3,8,64]", "bf16[40,64]"),
    ),
    "scores": (scores, ("bf16[S,128]", "bf16[T,128]")),
    "repeated": (repeated, ("bf16[S,K]", "bf16[128,K]", "f32[S,4]")),
}
QUICK = [("heads", "panels"), ("matrices as one", "panels"), ("work on heads", "staged")]
QUICK += [("one matrix of a batch of one", "panels")]
SLOW = [
    ("heads", "lines"), ("heads inside chunks", "lines"), ("heads inside chunks", "registers"),
    ("rows", "registers"), ("of operands", "staged"), ("one axis", "panels"),
    ("scores", "panels"), ("repeated", "registers"), ("an axis of size 1 in front", "staged"),
]  # fmt: skip


def checked(name, way):
    function, signature = PROGRAMS[name]
    arch, schedule = WAYS[way]
    schedule = load_schedule(schedules_folder() / arch / f"{schedule}.toml")
    fused = pg.fuse(function, name="reshaped")
    sizes = {dim: SIZES[dim] for dim in fused.program(*signature).sizes}
    report = fused.compile(*signature, arch=arch, sizes=sizes, schedule=schedule).check(sizes)
    assert report.ok, str(report)
    assert report.comparison == "equal to NumPy, bit for bit"


@pytest.mark.parametrize(("name", "way"), QUICK)
def test_kernels_reshape(name, way):
    checked(name, way)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way"), SLOW)
def test_kernels_reshape_in_every_way(name, way):
    checked(name, way)


def test_heads_leave_in_boxes_and_digits_are_proved():
    fused = pg.fuse(heads(4, 64), name="reshaped")
    program = fused.program(*PROGRAMS["heads"][1])
    arch, name = WAYS["panels"]
    schedule = load_schedule(schedules_folder() / arch / f"{name}.toml")
    plan = generate(program, device(arch), {}, schedule).plan
    (store,) = [a for a in plan.arguments if a.name == "map_out_y0"]
    assert [(one.axis, one.extent) for one in store.axes] == [(0, 4), (1, "S"), (2, 64)]

    def wrong(work):
        if not isinstance(work, Epilogue):
            return work
        (write,) = work.writes
        return replace(work, writes=(replace(write, n=(Step("y0_stride0", 32), write.n[1])),))

    leaves = tuple(replace(leaf, work=wrong(leaf.work)) for leaf in plan.leaves)
    with pytest.raises(VerifyError, match="y0 is accessed at"):
        verify(replace(plan, leaves=leaves))


def test_panels_that_a_reshape_cuts_are_refused():
    arch, name = WAYS["panels"]
    schedule = load_schedule(schedules_folder() / arch / f"{name}.toml")
    with pytest.raises(ScheduleError, match=r"32 neighbours on an axis.*epilogue.columns = 32"):
        pg.fuse(heads(4, 32)).compile("bf16[S,K]", "bf16[128,K]", arch=arch, schedule=schedule)
