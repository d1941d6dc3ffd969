"""How close a short tuning comes to the best of all schedules, on problems the model never saw.

    cd tests && python -m gpu.tuner_regret OUT.json --budget 30 --rest 22

Each problem is tuned with the budget, as a user would. Then the tuning is continued on the same
records for `--rest` seconds, so that what is left of the space is measured, and the best of all is
compared with the best that was found in time. The output says how much of the space was covered.
Kernels serve all sizes: later problems of an expression find theirs compiled.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from polygen import knobs
from polygen.api import Fused
from polygen.frontend.parse import parse_expression
from polygen.frontend.signature import parse_signature
from polygen.runtime.measure import device_name
from polygen.tune.crew import Crew
from polygen.tune.exported import export
from polygen.tune.records import Records
from polygen.tune.tuner import tune

GELU = ("gelu(x @ w.T + b)", ("x:bf16[M,K]", "w:bf16[N,K]", "b:bf16[N]"))
PLAIN = ("x @ w.T", ("x:bf16[M,K]", "w:bf16[N,K]"))
GATE = ("silu(x @ w.T + b) * g", ("x:bf16[M,K]", "w:bf16[N,K]", "b:bf16[N]", "g:bf16[M,N]"))
# Sizes that no problem of the fit has.
PROBLEMS = (
    (PLAIN, (2560, 5120, 5120)),
    (PLAIN, (1536, 6144, 1536)),
    (PLAIN, (96, 5120, 5120)),
    (PLAIN, (5000, 3000, 2000)),
    (GELU, (3584, 14336, 3584)),
    (GELU, (640, 2560, 2560)),
    (GELU, (12288, 768, 768)),
    (GATE, (2304, 9216, 2304)),
    (GATE, (384, 5120, 1280)),
    (GATE, (10240, 1280, 640)),
)


def one(sample, sizes, budget, rest, crew):
    names = tuple(parse_signature(text).name for text in sample[1])
    fused = Fused(parse_expression(sample[0], names), "sample", sample[0], False)
    named = dict(zip("MNK", sizes, strict=True))
    short = tune(fused, *sample[1], sizes=named, budget=budget)  # processes and all, as a user's
    full = tune(fused, *sample[1], sizes=named, budget=rest, crew=crew)
    return {
        "expression": sample[0],
        "sizes": named,
        "gpu": full.gpu,
        "candidates": full.candidates,
        "covered_in_budget": sum(count for _, count in short.states),
        "covered": sum(count for _, count in full.states),
        "states": dict(full.states),
        "seconds": [short.seconds, full.seconds],
        "anchor": short.anchor,
        "anchor_microseconds": short.anchor_microseconds,
        "tuned": short.best.schedule.name,
        "tuned_microseconds": short.best.microseconds,
        "tuned_over_anchor": short.speedup,
        "best": full.best.schedule.name,
        "best_microseconds": full.best.microseconds,
        "best_over_anchor": full.speedup,
        "reached": min(1.0, short.speedup / full.speedup),
    }


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("out", type=Path)
    words.add_argument("--budget", type=float, default=30.0)
    words.add_argument("--rest", type=float, default=22.0)
    words.add_argument("--limit", type=float, default=540.0, help="seconds for all problems")
    options = words.parse_args()
    start, rows = time.monotonic(), []
    with (
        tempfile.TemporaryDirectory() as folder,
        knobs.scope(cache_dir=Path(folder), cache=True),
        Crew() as crew,
    ):
        for sample, sizes in PROBLEMS:
            if time.monotonic() - start + options.budget + options.rest > options.limit:
                print(f"no time for {sample[0]} {sizes}", flush=True)
                continue
            row = one(sample, sizes, options.budget, options.rest, crew)
            rows.append(row)
            print(
                f"{row['reached']:.3f} of the best: {sample[0]} {sizes}: {row['tuned']} "
                f"{row['tuned_microseconds']:.1f} us, best {row['best']} "
                f"{row['best_microseconds']:.1f} us, anchor {row['anchor']} "
                f"{row['anchor_microseconds']:.1f} us; covered {row['covered_in_budget']} and "
                f"{row['covered']} of {row['candidates']}, {row['states']}, "
                f"{row['seconds'][0]:.1f} + {row['seconds'][1]:.1f} s",
                flush=True,
            )
            options.out.write_text(json.dumps({"gpu": device_name(), "rows": rows}, indent=1))
            with Records() as records:
                export(records, options.out.with_suffix(".record.json"), device_name())
    reached = sum(row["reached"] >= 0.98 for row in rows)
    print(f"{reached} of {len(rows)} problems reach 0.98 of the best")


if __name__ == "__main__":
    main()
