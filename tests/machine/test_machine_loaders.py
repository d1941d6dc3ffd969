"""Warps beside the producer's fetch panels of matrices at any address, on the PTX machine.

They are a place of their own: what orders them and the consumers is derived as for any other. The
machine reports what is touched outside of an array, and what is read before it is there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from generated import edited
from matrix import roles
from test_machine_odd_rows import held

import polygen as pg
from polygen.check import emulate
from polygen.frontend.evaluate import evaluate
from polygen.kernel import Kernel
from polygen.schedule.model import Launches, Schedule
from polygen.small_problem import few_blocks

_REGISTERS = {"one": (104, 232), "two": (104, 200), "three": (80, 136), "pingpong": (104, 200)}


def fetching(form: str, n: int = 64, **changes: object) -> Schedule:
    """A small schedule whose producer's warps have the registers to fetch panels."""
    found = roles(form, n, **{"through": "lines", **changes})
    few, most = _REGISTERS[form]
    given = replace(found.roles, producer_registers=few, consumer_registers=most)
    return replace(found, roles=given, launch=Launches(realign=True))


@pg.fuse
def biased(x, w, b, r):
    return pg.relu(x @ w.T + b + r)


@pg.fuse
def twice(x, w, r, q):
    return (x @ w.T) * r + q


@pg.fuse
def indexed(x, w, r, t):
    return x @ w.T + t[r]


RESIDUAL = ("bf16[M,K]", "bf16[N,K]", "bf16[N]", "bf16[M,N]")
TWO = ("f16[M,K]", "f16[N,K]", "f16[M,N]", "f32[M,N]")
BY_INDEX = ("bf16[M,K]", "bf16[N,K]", "s32[M]", "bf16[S,N]")
# function, signature, sizes, schedule, elements between rows, elements before the first one
CASES = {
    "one consumer, two warps": (biased, RESIDUAL, (131, 141, 77), fetching("one"), 0, 0),
    "two consumers": (biased, RESIDUAL, (259, 205, 131), fetching("two"), 1, 3),
    "three consumers": (biased, RESIDUAL, (390, 133, 68), fetching("three", stages=2), 0, 1),
    "in turns": (biased, RESIDUAL, (133, 199, 69), fetching("pingpong", prefetch=3), 2, 5),
    "in turns, more panels than slots": (
        biased, RESIDUAL, (197, 261, 67), fetching("pingpong", 128, stages=2, prefetch=1), 0, 0,
    ),
    "two matrices of two types": (twice, TWO, (201, 131, 73), fetching("two"), 1, 1),
    "narrow panels": (biased, RESIDUAL, (131, 100, 77), fetching("two", 48), 0, 0),
    "rows by index": (indexed, BY_INDEX, (131, 141, 77), fetching("one"), 0, 0),
    "aligned rows": (biased, RESIDUAL, (131, 136, 80), fetching("two"), 0, 0),
    "one row, one column": (biased, RESIDUAL, (1, 1, 3), fetching("two"), 0, 2),
}  # fmt: skip
_QUICK = ("one consumer, two warps", "in turns")


def made(name: str) -> Kernel:
    function, signature, sizes, schedule, *_ = CASES[name]
    dims = dict(zip("MNK", sizes, strict=True)) | ({"S": 77} if function is indexed else {})
    return function.compile(*signature, arch="sm_90a", sizes=dims, schedule=schedule)


def run(name: str, kernel: Kernel, ptx: str, seed: int):
    """Results on the machine, and those that are right."""
    *_, sizes, _, pitch, offset = CASES[name]
    dims, rng = dict(zip("MNK", sizes, strict=True)) | {"S": 77}, np.random.default_rng(seed)
    operands = []
    for one in kernel.program.inputs:
        shape = tuple(dims[d] for d in one.dims)
        if one.dtype.name == "s32":
            operands.append(rng.integers(0, dims["S"], shape, dtype=np.int32))
        else:
            operands.append(held(rng, one, shape, pitch, offset))
    done = emulate(kernel.program, few_blocks(kernel.passes.source), ptx, tuple(operands))
    arrays = {t.name: a for t, a in zip(kernel.program.inputs, operands, strict=True)}
    known = {name: size for name, size in dims.items() if name in kernel.program.sizes}
    (wanted,) = evaluate(kernel.program, arrays, known)
    return done, wanted


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in _QUICK else pytest.mark.slow) for n in CASES]
)
def test_exact_and_nothing_outside(name):
    kernel = made(name)
    (fetch, *_) = (s for s in kernel.passes.plan.tile_program.statements if "fetch_" in s.name)
    assert fetch.place.name == "loader" and fetch.unit.name == "threads"
    consumers = kernel.passes.plan.places[-1].agents
    assert fetch.place.threads == (64 if consumers == 1 else 32)
    taken = kernel.resources
    assert (taken.spill_store_bytes, taken.stack_bytes) == (0, 0)
    done, wanted = run(name, kernel, kernel.ptx, len(name))
    assert done.report.ok, str(done.report)
    assert np.array_equal(done.results.astype(np.float64), wanted.astype(np.float64))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_random_odd_shapes_are_exact(seed):
    rng = np.random.default_rng(seed)
    form = ("one", "two", "pingpong")[seed % 3]
    sizes = tuple(int(v) | 1 for v in rng.integers((1, 1, 1), (200, 200, 140)))
    schedule = fetching(form, prefetch=1 + seed % 3)
    CASES["random"] = (biased, RESIDUAL, sizes, schedule, seed % 5, seed % 7)
    kernel = made("random")
    done, wanted = run("random", kernel, kernel.ptx, seed)
    assert done.report.ok, (sizes, str(done.report))
    assert np.array_equal(done.results.astype(np.float64), wanted.astype(np.float64)), sizes


def test_with_few_registers_consumers_fetch():
    schedule = fetching("two")
    few = replace(schedule, roles=replace(schedule.roles, producer_registers=72))
    kernel = biased.compile(
        *RESIDUAL, arch="sm_90a", sizes={"M": 67, "N": 45, "K": 131}, schedule=few
    )
    statements = {s.name: s for s in kernel.passes.plan.tile_program.statements}
    assert statements["fetch_r_1"].place.name == "consumer"
    assert [place.name for place in kernel.passes.plan.places] == ["producer", "consumer"]


# Faults in the code of a kernel with loaders.
FAULTS = [
    ("lanes beside the producer's fetch, too", [("warp < 7 && warp >= 5", "warp < 7")]),
    ("one warp does not arrive", [
        ("if (lane == 0) barrier_arrive(shared + 81968 + r_1_loader",
         "if (lane == 0 && warp != 5) barrier_arrive(shared + 81968 + r_1_loader"),
    ]),
    ("a warp arrives before all its lanes wrote", [
        ("__syncwarp();\n        if (lane == 0) barrier_arrive(shared + 81968",
         "if (lane == 0) barrier_arrive(shared + 81968"),
    ]),
    ("no wait for the slot", [("        wait_empty_r_1(i, 0);\n", "")]),
    ("no wait for the panel", [("      wait_full_r_1(i, 0);\n", "")]),
    ("released before it is read", [
        ("      finish(i, 0);\n", "      arrive_empty_r_1(i, 0);\n      finish(i, 0);\n"),
    ]),
    ("rows are not shifted", [("(offset * 2) & 8 ? held[r][i + 2] : held[r][i]", "held[r][i]")]),
    ("chunks at the ends of rows are left out", [
        ("const bool at_ends = before < 8", "const bool at_ends = false && before < 8"),
    ]),
    ("chunks outside of the row are read", [("if (whole) part =", "part =")]),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "edits"), FAULTS, ids=[name for name, _ in FAULTS])
def test_faults_show(compile_ptx, fault, edits):
    name = "one consumer, two warps"
    kernel = made(name)
    text = edited(kernel.passes.source.text, edits)
    done, wanted = run(name, kernel, compile_ptx(text, "sm_90a"), 2)
    same = np.array_equal(done.results.astype(np.float32), wanted.astype(np.float32))
    assert not (done.report.ok and same)
