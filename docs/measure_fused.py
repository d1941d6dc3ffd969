"""Times kernels that fuse more than a product with pointwise work, beside PyTorch, on this GPU.

    python docs/measure_fused.py --list
    python docs/measure_fused.py [NAME ...] --out docs/results/h200_fused.json

Contenders take turns in one process, operands are drawn from a normal distribution, the L2 cache is
written over before each launch, medians of microseconds: polygen with the schedule that it chooses,
for some cases polygen with another one, PyTorch as the case is written, and Inductor. A record that
is there keeps the cases that are not measured again.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import json
import multiprocessing
import re
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from fused_cases import Case, all_cases, pytorch
from fused_chains import beside, chains
from fused_statistics import statistics as of_statistics
from measured_record import header, write

import polygen as pg
from polygen.chained import is_chain
from polygen.decide import candidates
from polygen.errors import SpillError
from polygen.fit_chain import decide_chain
from polygen.hardware.device import device
from polygen.lower.chain_entries import tile_of
from polygen.lower.cover import covering
from polygen.schedule.load import load_schedule, schedules_folder
from polygen.schedule.problem import Fitted

ARCH = "sm_90a"
TILES = (
    "cooperative_128x256x64", "pingpong_64x256x64", "pingpong_128x128x64", "pingpong_64x128x64",
)  # fmt: skip
TILES_BESIDE = 3  # of a chain
PROTOCOL = (
    "Contenders in random order in one process, standard normal data, L2 flushed, medians in "
    "microseconds of CUDA events; operands bf16 where nothing else is said; rows with a date are "
    "of that day"
)


def _operands(case: Case) -> list[Any]:
    torch = pytorch()
    kinds = {"bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
    kinds["tf32"] = torch.float32
    whole = {"s8": (torch.int8, -127, 128), "u8": (torch.uint8, 0, 256)}
    depth = case.sizes.get("K", 1)
    found = []
    for number, text in enumerate(case.signature):
        if number in case.made:
            found.append(case.made[number](case.sizes))
            continue
        kind, dims = re.fullmatch(r"(\w+)\[(.*)\]", text).groups()  # type: ignore[union-attr]
        shape = [int(d) if d.isdigit() else case.sizes[d] for d in dims.split(",")]
        if kind in whole:
            dtype, least, end = whole[kind]
            found.append(torch.randint(least, end, shape, device="cuda", dtype=dtype))
            continue
        one = torch.randn(*shape, device="cuda", dtype=kinds[kind])
        found.append(one * depth**-0.5 if number in case.scaled else one)
    return found


def measured(case: Case, rounds: int) -> dict[str, Any]:
    """One row of the record."""
    torch = pytorch()
    from polygen.runtime.measure import interleaved  # noqa: PLC0415

    torch.backends.cuda.matmul.allow_tf32 = any(t.startswith("tf32") for t in case.signature)
    row: dict[str, Any] = {"sizes": case.sizes, "signature": case.signature, "us": {}}
    given = _operands(case)
    fused = pg.fuse(case.polygen)
    kernel = fused.compile(*case.signature, sizes=case.sizes)
    row["schedule"], row["origin"] = kernel.schedule.name, str(kernel.schedule_origin)
    row["resources"] = str(kernel.resources)
    calls: dict[str, Callable[[], Any]] = {"polygen": lambda: kernel(*given)}
    for name, other in _others(case):
        row.setdefault("compiled", {})[name] = str(other.resources)
        calls[name] = lambda other=other: other(*given)
    calls["eager"] = lambda: case.torch(*given)
    if case.inductor:
        torch._dynamo.reset()
        compiled = torch.compile(case.torch)
        calls["inductor"] = lambda: compiled(*given)
    found = {name: _first(call()) for name, call in calls.items()}
    wide = [one.double() if one.is_floating_point() else one for one in given]
    exact = _first(case.torch(*wide)).double()
    row["largest_error"] = {n: float((v.double() - exact).abs().max()) for n, v in found.items()}
    del exact, found, wide
    torch.cuda.empty_cache()
    times = interleaved(calls, rounds)
    row["us"] = {name: round(statistics.median(each), 2) for name, each in times.items()}
    row["tflops"] = round(case.operations / row["us"]["polygen"] / 1e6, 1)
    return row


def _others(case: Case, arch: str | None = None) -> Iterator[tuple[str, pg.Kernel]]:
    """What is measured beside polygen's choice, by name."""
    if not case.others:
        return
    if is_chain(pg.fuse(case.polygen).program(*case.signature)):
        yield from _tiles(case, arch)
    else:
        yield from _ways(case, arch)


def _tiles(case: Case, arch: str | None = None) -> Iterator[tuple[str, pg.Kernel]]:
    """Kernels of a chain with the tiles that the cost model likes best after the one it takes."""
    fused = pg.fuse(case.polygen)
    program, target = fused.program(*case.signature), device(ARCH)
    taken: set[str] = set()
    while len(taken) <= TILES_BESIDE:
        try:
            schedule = decide_chain(
                program, target, "auto", skip=frozenset(taken), sizes=case.sizes
            ).schedule
        except pg.PolygenError:  # no more of them
            return
        first, tile = not taken, tile_of(schedule.name)
        taken.add(schedule.name)
        if first:
            continue
        with contextlib.suppress(SpillError):
            made = fused.compile(*case.signature, sizes=case.sizes, schedule=schedule, arch=arch)
            assert made.resources  # compiled now
            yield tile, made


def _ways(case: Case, arch: str | None = None) -> Iterator[tuple[str, pg.Kernel]]:
    """Kernels with rows finished behind them and inside, by name, with the stages that fit."""
    fused, row = pg.fuse(case.polygen), case.sizes["N"]
    _, fit = candidates(fused.program(*case.signature), device(ARCH), case.sizes)
    for name in TILES:
        shipped = load_schedule(schedules_folder() / ARCH / f"{name}.toml")
        behind, inside = fit(shipped), covering(shipped, row)
        tried = {"behind": [behind.schedule] if isinstance(behind, Fitted) else []}
        if row <= inside.tile.cta.n * inside.cluster.n:
            most = inside.pipeline.stages
            tried["inside"] = [
                replace(inside, pipeline=replace(inside.pipeline, stages=stages))
                for stages in range(most, 1, -1)
            ]
        for way, schedules in tried.items():
            for schedule in schedules:
                try:
                    made = fused.compile(
                        *case.signature, sizes=case.sizes, schedule=schedule, arch=arch
                    )
                    assert made.resources  # compiled now
                except SpillError:
                    break
                except pg.PolygenError:  # too many stages, most of all
                    continue
                yield f"{name}, {way}", made
                break


def made_ahead(name: str) -> None:
    """Have the kernels of a case in the cache."""
    case = every_case()[name]
    with contextlib.suppress(pg.PolygenError):  # measuring says which
        fused = pg.fuse(case.polygen)
        made = fused.compile(*case.signature, sizes=case.sizes, arch=ARCH)
        assert made.resources
        for _ in _others(case, ARCH):
            pass


def every_case() -> dict[str, Case]:
    """All of them, by their names."""
    return all_cases() | chains() | beside() | of_statistics()


def _first(made: Any) -> Any:
    return made[0] if isinstance(made, tuple) else made


def main() -> None:
    """Measure, print, and write the record after every case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="parts of names of cases; default: all")
    parser.add_argument("--out", type=Path, help="the record")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no case after that")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--compile", type=int, help="make all kernels first, by so many processes")
    words = parser.parse_args()
    cases = every_case()
    wanted = [n for n in cases if not words.names or any(part in n for part in words.names)]
    if words.list:
        print("\n".join(wanted))
        return
    if words.compile:
        with ProcessPoolExecutor(words.compile, multiprocessing.get_context("spawn")) as pool:
            list(pool.map(made_ahead, wanted))
    began, record = time.monotonic(), _record(words.out)
    pytorch().backends.cudnn.benchmark = True
    for name in wanted:
        if time.monotonic() - began > words.seconds:
            print(f"no time for: {name}")
            continue
        try:
            row = measured(cases[name], words.rounds)
        except Exception as error:
            row = {"failed": f"{type(error).__name__}: {error}"[:500]}
        row["date"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        record["rows"][name] = row
        print(f"{name}: {row.get('us') or row} {row.get('schedule', '')}", flush=True)
        gc.collect()
        pytorch().cuda.empty_cache()
        write(record, words.out)


def _record(out: Path | None) -> dict[str, Any]:
    if out and out.exists():
        found: dict[str, Any] = json.loads(out.read_text())
        return found
    return header("fused", PROTOCOL) | {"rows": {}}


if __name__ == "__main__":
    main()
