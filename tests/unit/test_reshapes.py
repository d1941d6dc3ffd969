"""Reshapes in kernels: axes of results, operands and what goes with them, split and merged."""

from dataclasses import replace

import pytest
from reshape_samples import PROGRAMS, QUICK, SIZES, SLOW, WAYS, heads, schedule_of

import polygen as pg
from polygen.errors import ScheduleError, VerifyError
from polygen.hardware.device import device
from polygen.lower.accesses import Step
from polygen.lower.result_work import Epilogue
from polygen.lower.verify import verify
from polygen.pipeline import generate
from polygen.schedule.load import load_schedule, schedules_folder


def checked(name, way):
    function, signature = PROGRAMS[name]
    arch, _ = WAYS[way]
    fused = pg.fuse(function, name="reshaped")
    sizes = {dim: SIZES[dim] for dim in fused.program(*signature).sizes}
    kernel = fused.compile(*signature, arch=arch, sizes=sizes, schedule=schedule_of(way))
    report = kernel.check(sizes)
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


def test_columns_of_a_panel_have_the_heads_that_they_are_in():
    """Where an operator splits columns, neighbours of a thread may be of one head or of two."""
    function, signature = PROGRAMS["work on heads"]
    kernel = pg.fuse(function, name="heads").compile(*signature, arch="sm_90a")
    assert "finish" in kernel.source and "at0_first" not in kernel.source
    report = kernel.check()
    assert report.ok, str(report)
