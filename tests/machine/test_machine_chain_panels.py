"""Chains whose results leave in panels, on the PTX machine: the bits of those from registers.

And mistakes forced into their text, which the proofs refuse before any code exists
(`tests/unit/poly/test_chain_panels.py`): races, and accesses of the copy engine that no fence or
wait orders.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from chain_samples import arrays_of, few_rows
from generated import edited
from machine.conftest import ptx_of

import polygen as pg
from polygen.emulated import emulate
from polygen.schedule.model import (
    PAIRS,
    CtaTile,
    Epilogue,
    Pipeline,
    Raster,
    Roles,
    Schedule,
    Tile,
    WarpTile,
)


def softmax(q, k, v):
    return pg.softmax((q @ k.mT) * 0.125) @ v


def causal(q, k, v):
    s = (q @ k.mT) * 0.125
    i, j = pg.indices(s)[-2:]
    return pg.softmax(pg.where(i >= j, s, -np.inf)) @ v


def logged(q, k, v):
    s = (q @ k.mT) * 0.125
    return pg.softmax(s) @ v, pg.logsumexp(s, axis=-1)


def inside(q, k, v):
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    return softmax(q, k, v).swapaxes(1, 2)


def twice(q, k, v):
    found = pg.softmax((q @ k.mT) * 0.125) @ v
    return found, pg.relu(found).astype("f32")


def gelu(x, a, b):
    return pg.gelu(x @ a) @ b


def _tile(
    wide: int, keys: int, consumers: int = 2, *, turns: bool = True, rows: int = 2, **out
) -> Schedule:
    return Schedule(
        "panels", "sm_90a",
        tile=Tile(CtaTile(64 * consumers, wide, keys), WarpTile(64, wide)),
        pipeline=Pipeline(stages=2, in_flight=1),
        roles=Roles("pingpong" if turns else "cooperative", 24, 240 if consumers == 2 else 232),
        epilogue=Epilogue("tma", prefetch=rows, **out),
        raster=Raster("m", 1),
    )  # fmt: skip


def _pairs(schedule: Schedule) -> Schedule:
    return replace(schedule, raster=replace(schedule.raster, order=PAIRS))


def _heads(depth: int, columns: int, dtype: str = "bf16") -> tuple[str, ...]:
    return (f"{dtype}[B,S,{depth}]", f"{dtype}[B,T,{depth}]", f"{dtype}[B,T,{columns}]")


def _sides(rows: int, keys: int, depth: int, columns: int) -> tuple[tuple[int, ...], ...]:
    return ((2, rows, depth), (2, keys, depth), (2, keys, columns))


# name -> function, signature, shapes, schedule
CASES: dict[str, tuple[Callable, tuple[str, ...], tuple[tuple[int, ...], ...], Schedule]] = {
    "turns": (softmax, _heads(64, 64), _sides(200, 150, 64, 64), _tile(64, 64)),
    "one consumer": (softmax, _heads(64, 64), _sides(70, 90, 64, 64), few_rows()),
    "one row": (softmax, _heads(64, 64), _sides(1, 90, 64, 64), few_rows()),
    "pairs": (causal, _heads(64, 64), _sides(200, 200, 64, 64), _pairs(_tile(64, 64))),
    "ranges": (causal, _heads(64, 64), _sides(150, 150, 64, 64), _tile(64, 64, rows=1)),
    "two panels": (softmax, _heads(64, 128), _sides(130, 90, 64, 128), _tile(128, 64)),
    "columns that fill no panel": (
        softmax, _heads(64, 72), _sides(130, 90, 64, 72), _tile(80, 64),
    ),
    "one slot": (softmax, _heads(64, 128), _sides(130, 90, 64, 128), _tile(128, 64, slots=1)),
    "narrow panels, three slots": (
        softmax, _heads(64, 128), _sides(130, 90, 64, 128), _tile(128, 64, slots=3, columns=32),
    ),
    "log-sum-exp": (logged, _heads(64, 64), _sides(200, 150, 64, 64), _tile(64, 64)),
    "heads inside": (
        inside, ("bf16[B,S,H,64]", "bf16[B,T,H,64]", "bf16[B,T,H,64]"),
        ((2, 70, 3, 64), (2, 90, 3, 64), (2, 90, 3, 64)), _tile(64, 64, turns=False),
    ),
    "two results": (twice, _heads(64, 64), _sides(130, 90, 64, 64), _tile(64, 64, columns=32)),
    "no states": (
        gelu, ("f16[M,64]", "f16[64,N]", "f16[N,64]"), ((130, 64), (64, 96), (96, 64)),
        _tile(64, 64),
    ),
}  # fmt: skip
FEW = ("turns", "log-sum-exp", "columns that fill no panel")


def _through(schedule: Schedule, way: str) -> Schedule:
    columns = schedule.epilogue.columns if way == "tma" else 0  # there are no panels to have some
    return replace(schedule, epilogue=replace(schedule.epilogue, through=way, columns=columns))


@functools.cache
def _kernel(name: str, way: str = "tma") -> pg.Kernel:
    function, signature, _, schedule = CASES[name]
    made = _through(schedule, way)
    return pg.fuse(function).compile(*signature, arch="sm_90a", schedule=made)


def _arrays(name: str) -> list[np.ndarray]:
    dtype = {"f16": np.float16}.get(CASES[name][1][0].partition("[")[0])
    return arrays_of(5, *CASES[name][2], **({} if dtype is None else {"dtype": dtype}))


def _results(results) -> tuple[np.ndarray, ...]:
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize(
    "name", [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_bits_are_those_from_registers(name: str) -> None:
    done = [_kernel(name, way).emulation(*_arrays(name)) for way in ("tma", "registers")]
    for one in done:
        assert one.report.findings == ()
    for one, other in zip(*(_results(d.results) for d in done), strict=True):
        assert one.dtype == other.dtype and one.tobytes() == other.tobytes()
        assert np.isfinite(one.astype(np.float64)).all()


# name -> kernel, edits of the text, findings of which one must be there
BROKEN = {
    "no fence before the copy engine reads": (
        "two panels", [(" fence_store(i);", "")], {"missing-proxy-fence"},
    ),
    "no barrier before the copy engine reads": (
        "two panels", [(" bar_store(i);", "")], {"race-write-read", "missing-proxy-fence"},
    ),
    "a barrier behind the copies": (
        "one slot",
        [(" bar_store(i, p);", ""), (" store(i, p);", " store(i, p); bar_store(i, p);")],
        {"race-write-read", "missing-proxy-fence"},
    ),
    "a panel written while it is on its way": (
        "one slot", [(" wait_finish(i, p);", "")], {"in-flight-access", "race-read-write"},
    ),
    "a slot of which one thread alone knows that it is free": (
        "one slot", [(" bar_finish(i, p);", "")], {"in-flight-access", "race-read-write"},
    ),
    "memory that is gone before it is read": (
        "two panels", [(" wait_last_store();", "")], {"in-flight-access"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_mistakes_are_found(name: str) -> None:
    of, edits, shows = BROKEN[name]
    kernel = _kernel(of)
    source = kernel.passes.source
    changed = replace(source, text=edited(source.text, edits))
    ptx = ptx_of(changed)
    done = emulate(kernel.program, changed, ptx, _arrays(of))
    assert {finding.code for finding in done.report.findings} & shows
