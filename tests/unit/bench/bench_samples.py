"""Records for the tests of the measurements: a few rows, made up, and the committed one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polygen.bench import record, statistics
from polygen.bench.rows import Row, suite

COMMITTED = Path(__file__).resolve().parents[3] / "docs" / "results" / "h200.json"
CEILINGS = {
    "tflops": {"bf16": 800.0, "f16": 700.0},
    "tflops_of": {"bf16": "cuBLAS 8192x8192x8192", "f16": "cuBLAS 8192x8192x8192"},
    "copy_gbytes_per_s": 4000.0,
    "copy_of": "2048 MiB, read and written",
}


def line(row: Row, ours: float, suites: tuple[str, ...] = ("hopper",), **peers: float) -> Any:
    """A measured line; every contender has eleven launches around its time."""
    times = {
        name: statistics.to_json(statistics.summary([us + at / 100 for at in range(-5, 6)]))
        for name, us in {"polygen": ours, **peers}.items()
    }
    made = record.heading(row, suites) | {"run": 0, "polygen": {"schedule": "big"}}
    made |= {"errors": {name: [1e-3, 2e-3] for name in times}, "skipped": {}, "facts": {}}
    return (
        made
        | {"graph": min(ours, *peers.values()) < 60, "card": {"sm_mhz": 1755}}
        | {"times": times}
    )


ROWS = suite("hopper").rows  # the first of the committed record
MM, RESIDUAL, GATE, GELU = ROWS[:4]
SMALL = Row("bias_relu", 1024, 1024, 1024)


def sample() -> Any:
    """A record with a loss, an error, a missing library and ceilings."""
    made = record.empty()
    run = {
        "date": "2026-11-22T10:00:00+00:00", "command": "polygen bench", "polygen": "0.1.0",
        "sources": "abc", "driver": "580", "protocol": "p", "data": "standard normal",
        "before": {"clocks.sm": "1980 MHz", "power.limit": "700.00 W"},
        "after": {"clocks.sm": "1700 MHz"}, "gpu": {"name": "NVIDIA H200"},
        "versions": {"cuda": "13.0", "torch": "2.11.0", "cublaslt.via": "nvmath"},
        "missing": {"cupy": "ModuleNotFoundError: No module named 'cupy'"},
        "ceilings": CEILINGS, "suites": {"hopper": suite("hopper").digest},
    }  # fmt: skip
    made["runs"], made["suites"] = [run], dict(run["suites"])
    made["rows"] = [
        line(MM, 200, separate=180, cublaslt=190, inductor=185),
        line(RESIDUAL, 100, separate=240, cublaslt=150, inductor=120),
        line(GELU, 99.96, separate=300, cublaslt=200, inductor=150),
        record.heading(GATE, ["hopper"]) | {"run": 0, "error": "wrong result: <NaN> | much"},
        line(SMALL, 10, separate=25, cublaslt=12),
    ]
    made["rows"][4]["skipped"] = {"inductor": f"{record.NO_TIME} after 9 s"}
    return made
