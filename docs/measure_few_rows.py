"""Times products of few rows beside a library's, and beside schedules that were chosen before.

    python docs/measure_few_rows.py --out docs/results/h200_few_rows_libraries.json
    python docs/measure_few_rows.py --compile 8     # no GPU: makes all kernels, by 8 processes

*polygen* is the automatic choice, *library* `torch.mm` of the same bf16 operands, *before* the
schedule that was shipped for the problem when no schedule for few rows had been measured for it.
Each is one captured launch, contenders in random order in one process, L2 flushed, medians. What a
library takes for few rows, as a multiple of polygen's own kernel of the product alone, is what
`few_rows_library` of the cost model says (docs/cost-model.md).
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import polygen as pg
from polygen.decide import candidates
from polygen.hardware.device import device
from polygen.schedule.load import shipped_as

ARCH = "sm_90a"
ROWS = (1, 4, 8, 16, 32, 64)
WEIGHTS = ((4096, 4096), (6144, 4096), (14336, 4096), (4096, 14336))
PRODUCT = ("bf16[M,K]", "bf16[N,K]")
EXPRESSIONS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "x @ w.T": (lambda x, w: x @ w.T, PRODUCT),
    "x @ w.T + r": (lambda x, w, r: x @ w.T + r, (*PRODUCT, "bf16[M,N]")),
    "gelu(x @ w.T + b)": (
        lambda x, w, b: pg.gelu(x @ w.T + b, approximate="tanh"),
        (*PRODUCT, "bf16[N]"),
    ),
    "silu(x @ u.T) * (x @ v.T)": (
        lambda x, u, v: pg.silu(x @ u.T) * (x @ v.T),
        (*PRODUCT, "bf16[N,K]"),
    ),
}
BEFORE = {
    ("x @ w.T", 32, 6144, 4096): "32x32x128_w16x16_s6",
    ("x @ w.T", 16, 6144, 4096): "16x64x128_w16x16_s6",
    ("x @ w.T", 1, 6144, 4096): "16x64x128_w16x16_s6",
    ("x @ w.T + r", 16, 4096, 4096): "16x64x128_w16x16_s6",
    ("gelu(x @ w.T + b)", 16, 16384, 4096): "16x128x128_w16x32_s6",
    ("silu(x @ u.T) * (x @ v.T)", 16, 14336, 4096): "16x128x128_w16x32_s6",
}
Row = tuple[str, int, int, int]


def rows() -> list[Row]:
    """All that is measured: expression, rows, columns, length of the sums."""
    products = [("x @ w.T", m, n, k) for m in ROWS for n, k in WEIGHTS]
    return list(dict.fromkeys([*BEFORE, *products]))


def kernels(row: Row) -> dict[str, pg.Kernel]:
    """The automatic choice for a row, and the schedule before it."""
    name, m, n, k = row
    function, signature = EXPRESSIONS[name]
    sizes, fused = {"M": m, "N": n, "K": k}, pg.fuse(function)
    found = {"polygen": fused.compile(*signature, sizes=sizes, arch=ARCH)}
    if row in BEFORE:
        shipped = shipped_as(ARCH, BEFORE[row])
        _, fit = candidates(fused.program(*signature, sizes=sizes), device(ARCH), sizes)
        fitted = fit(shipped) if shipped else "it does not ship"
        if isinstance(fitted, str):
            raise SystemExit(f"{BEFORE[row]}: {fitted}")
        found["before"] = fused.compile(
            *signature, sizes=sizes, arch=ARCH, schedule=fitted.schedule
        )
    return found


def made(row: Row) -> str:
    """Compile a row's kernels, and say what they are."""
    return f"{row}: " + ", ".join(
        f"{name} {one.schedule.name} ({one.resources})" for name, one in kernels(row).items()
    )


def measured(row: Row, repeats: int) -> dict[str, Any]:
    """One row of the record."""
    import torch  # noqa: PLC0415

    from polygen.runtime.measure import interleaved  # noqa: PLC0415

    name, m, n, k = row
    extents = {"M": m, "N": n, "K": k}
    own = kernels(row)
    shapes = [one.partition("[")[2].rstrip("]").split(",") for one in EXPRESSIONS[name][1]]
    torch.manual_seed(0)
    given = [
        torch.randn(*(extents[dim] for dim in dims), device="cuda")
        .div(8 if place else 1)
        .bfloat16()
        for place, dims in enumerate(shapes)
    ]
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    calls: dict[str, Callable[[], Any]] = {
        way: lambda kernel=kernel: kernel(*given, out=out) for way, kernel in own.items()
    }
    exact = _exact(name, given)
    errors = {}
    for way, call in calls.items():
        call()
        errors[way] = float((out.double() - exact).abs().max() / exact.abs().max())
    calls["library"] = lambda: torch.mm(given[0], given[1].T, out=out)
    side = torch.cuda.Stream()
    replays: dict[str, Callable[[], Any]] = {}
    for way, call in calls.items():
        with torch.cuda.stream(side):
            call()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            call()
        replays[way] = graph.replay
    times = interleaved(replays, repeats)
    us = {way: round(statistics.median(found), 2) for way, found in times.items()}
    return {
        "us": us,
        "schedule": own["polygen"].schedule.name,
        "origin": str(own["polygen"].schedule_origin),
        **({"before": BEFORE[row]} if row in BEFORE else {}),
        "largest_error": errors,
    }


def _exact(name: str, given: list[Any]) -> Any:
    """What an expression gives, in float64."""
    import torch  # noqa: PLC0415

    x, w, *others = (one.double() for one in given)
    found = x @ w.T
    if name.startswith("gelu"):
        return torch.nn.functional.gelu(found + others[0], approximate="tanh")
    if name.startswith("silu"):
        return torch.nn.functional.silu(found) * (x @ others[0].T)
    return found + others[0] if others else found


def main() -> None:
    """Measure, print, and write the record after every row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="the record")
    parser.add_argument("--repeats", type=int, default=101)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no row after that")
    parser.add_argument("--compile", type=int, default=0, help="by so many processes, and no more")
    words = parser.parse_args()
    if words.compile:
        with ProcessPoolExecutor(words.compile) as pool:
            print("\n".join(pool.map(made, rows())))
        return
    began, record = time.monotonic(), _record()
    for row in rows():
        if time.monotonic() - began > words.seconds:
            print(f"no time for: {row}", file=sys.stderr)
            continue
        name, m, n, k = row
        found = measured(row, words.repeats)
        record["rows"][f"{name} {m}x{n}x{k}"] = found
        us = found["us"]
        ratios = {way: round(time / us["polygen"], 3) for way, time in us.items()}
        print(f"{name} {m}x{n}x{k}: {us} {ratios} {found['schedule']}", flush=True)
        if words.out:
            new = words.out.with_suffix(".new")
            new.write_text(json.dumps(record, indent=1) + "\n")
            new.replace(words.out)


def _record() -> dict[str, Any]:
    import torch  # noqa: PLC0415

    from polygen.bench.card import smi  # noqa: PLC0415

    return {
        "format": 1,
        "kind": "few rows",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "gpu": torch.cuda.get_device_name(),
        **smi("driver_version"),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda},
        "protocol": " ".join(__doc__.rpartition("\n\n")[2].split()),
        "rows": {},
    }


if __name__ == "__main__":
    main()
