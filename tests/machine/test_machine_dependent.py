"""Dependent launches on the PTX machine: what is touched before the wait is found."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from generated import edited
from matrix import dots, roles, small
from test_machine_odd_rows import NN, NT, biased, plain

import polygen as pg
from polygen.emulated import emulate, launches_of
from polygen.kernel import Kernel
from polygen.machine import Behind, Launch, Link, chain, run
from polygen.schedule.model import Epilogue, Launches, Schedule
from polygen.small_problem import few_blocks, trial_operands

COPY = """\
extern "C" __global__ void copy(const float* from, float* to, int count, int early) {
  const int i = blockIdx.x * 32 + threadIdx.x;
  float value = 0;
  if (early && i < count) value = from[i];
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" : "+l"(from), "+l"(to), "+f"(value) :: "memory");
  if (!early && i < count) value = from[i];
  if (i < count) to[i] = value + 1;
}
"""


@pytest.fixture(scope="module")
def copy(compile_ptx):
    return compile_ptx(COPY, "sm_90a")


def link(ptx, source, target, *, early=False, dependent=True):
    arguments = (source, target, np.int32(len(source)), np.int32(early))
    return Link(ptx, Launch((2, 1, 1), (32, 1, 1), 0, arguments), (target,), dependent)


def codes(reports):
    return [[finding.code for finding in report.findings] for report in reports]


def arrays(count):
    return [np.arange(40, dtype=np.float32) + 100 * n for n in range(count)]


def test_a_chain_hands_on_what_its_links_write(copy):
    a, b, c = arrays(3)
    reports = chain([link(copy, a, b), link(copy, b, c)])
    assert codes(reports) == [[], []]
    assert np.array_equal(c, np.arange(40) + 2)


def test_a_read_before_the_wait_is_found_where_an_earlier_link_writes(copy):
    a, b, c, d = arrays(4)
    assert codes(chain([link(copy, a, b), link(copy, b, c, early=True)]))[1] == ["before-grid-wait"]
    assert codes(chain([link(copy, a, b), link(copy, a, c, early=True)])) == [[], []]
    # The one before the last may still run, too.
    links = [link(copy, a, b), link(copy, a, c), link(copy, b, d, early=True)]
    assert codes(chain(links))[2] == ["before-grid-wait"]
    links[2] = replace(links[2], dependent=False)
    assert codes(chain(links)) == [[], [], []]


def test_what_ran_before_a_chain_may_be_told(copy):
    a, b = arrays(2)
    early = [link(copy, a, b, early=True)]
    assert codes(chain(early)) == [[]]
    assert codes(chain(early, Behind(writes=(a,)))) == [["before-grid-wait"]]
    assert codes(chain(early, Behind(reads=(a,)))) == [[]]


def test_a_store_before_the_wait_is_found_where_an_earlier_link_reads(compile_ptx):
    text = COPY.replace('  asm volatile("griddepcontrol.wait', '  if (early) to[i % count] = 0;\n'
                        '  asm volatile("griddepcontrol.wait')  # fmt: skip
    ptx = compile_ptx(text, "sm_90a")
    a, b, c = arrays(3)
    first = link(ptx, a, b)
    report = chain([first, link(ptx, c, a, early=True)])[1]
    assert "before-grid-wait" in {f.code for f in report.findings}
    assert "a grid before may still read" in str(report)
    assert "griddepcontrol.wait by the same thread" in str(report.findings[0].story)


def test_alone_nobody_is_too_early(copy):
    a, b = arrays(2)
    assert run(copy, link(copy, a, b, early=True).launch).ok


@cache
def made(name: str) -> tuple[Kernel, tuple]:
    """A kernel that is launched dependently, and operands for it."""
    launch = Launches(dependent=True)
    if name == "folds":
        return folded(), trial_operands(folded().program, {"M": 72, "N": 48, "K": 136}, 0)
    if name == "warps":
        schedule: Schedule = small()
    elif name == "lanes":
        schedule = dots((2, 8, 512), (2, 2))
    else:
        schedule = roles("two", **{"through": "lines" if name == "copied" else "tma"})
        launch = replace(launch, realign=name == "copied")
    function, signature = (plain, NN) if name == "warps" else (biased, NT)
    m, n, k = (67, 45, 131) if name == "copied" else (72, 48, 136)
    if name == "lanes":
        m, n, k = 3, 20, 648
    kernel = function.compile(
        *signature, arch="sm_90a", sizes=dict(zip("MNK", (m, n, k), strict=True)),
        schedule=replace(schedule, launch=launch),
    )  # fmt: skip
    return kernel, trial_operands(kernel.program, {"M": m, "N": n, "K": k}, 0)


def folded() -> Kernel:
    """A kernel that another launch follows, which combines parts of the largest of each row."""
    largest = pg.fuse(lambda x, w: (x @ w.T).max(axis=1), name="largest")
    sizes = {"M": 72, "N": 48, "K": 136}
    schedule = replace(small(), epilogue=Epilogue("registers"), launch=Launches(dependent=True))
    return largest.compile(*NT[:2], arch="sm_90a", sizes=sizes, schedule=schedule)


def found(name: str, ptx: str | None = None) -> set[str]:
    kernel, operands = made(name)
    source = few_blocks(kernel.passes.source)
    done = emulate(kernel.program, source, ptx or kernel.ptx, operands)
    return {finding.code for finding in done.report.findings}


@pytest.mark.parametrize("name", ["warps", "roles", "copied", "lanes", "folds"])
def test_generated_kernels_wait_before_they_touch_anything(name):
    assert found(name) == set()


WAITS = [
    ("warps", "wait_grids_warps();"),
    ("roles", "wait_grids_producer();"),
    ("roles", "wait_grids_consumer();"),
    ("copied", "wait_grids_producer();"),
    ("copied", "wait_grids_warps();"),
    ("lanes", "wait_grids_warps();"),
    ("folds", "wait_grids_warps();"),
]


@pytest.mark.parametrize(("name", "call"), WAITS, ids=[f"{n}, {c[:22]}" for n, c in WAITS])
def test_without_any_one_wait_an_access_is_too_early(compile_ptx, name, call):
    kernel, _ = made(name)
    text = edited(kernel.source, [(call, "", -1)])
    assert "before-grid-wait" in found(name, compile_ptx(text, "sm_90a"))


def test_two_kernels_one_behind_the_other():
    """The second reads what the first writes: h = relu(x @ w.T + b), then h @ v."""
    first, (x, w, b) = made("roles")
    second, _ = made("warps")
    rng = np.random.default_rng(1)
    v = rng.integers(-2, 3, (48, 24)).astype(np.float32).astype(x.dtype)
    (one,) = launches_of(first.program, first._generated.source, (x, w, b))
    middle = next(a for a in one.arguments if isinstance(a, np.ndarray) and a.shape == (72, 48))
    (two,) = launches_of(second.program, second._generated.source, (middle, v))
    end = next(a for a in two.arguments if isinstance(a, np.ndarray) and a.shape == (72, 24))
    links = [Link(first.ptx, one, (middle,), True), Link(second.ptx, two, (end,), True)]
    assert codes(chain(links)) == [[], []]
    h = np.maximum(x.astype("f4") @ w.astype("f4").T + b, 0).astype(x.dtype).astype("f4")
    assert np.array_equal(end.astype("f4"), (h @ v.astype("f4")).astype(x.dtype).astype("f4"))
