"""Measures shipped schedules beside cuBLAS on one GPU, in one process, contenders interleaved.

Random normal data, the L2 cache flushed before every launch, CUDA events, medians. Run it from
``tests`` as ``python -m gpu.speed ../docs/results/NAME.json``; the tables in the documentation are
made from such files.
"""

from __future__ import annotations

import datetime
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gpu.measuring import REPEATS, interleaved, smi

import polygen as pg
from polygen.runtime.environment import current_arch


def row(
    what: str,
    sizes: tuple[int, int, int],
    ours: Any,
    base: dict[str, Callable[[], Any]],
    kernel: Any,
) -> dict[str, Any]:
    """One line of the record: medians, and ratios to every contender."""
    times = interleaved({"polygen": ours, **base})
    medians = {name: float(np.median(values)) for name, values in times.items()}
    m, n, k = sizes
    return {
        "what": what,
        "M": m,
        "N": n,
        "K": k,
        "dtype": "bf16",
        "schedule": kernel.schedule.name,
        "registers": kernel.resources.registers,
        "microseconds": {name: round(value, 2) for name, value in medians.items()},
        "p10_p90": {
            n: [round(float(np.percentile(v, q)), 2) for q in (10, 90)] for n, v in times.items()
        },
        "tflops": round(2 * m * n * k / medians["polygen"] / 1e6, 1),
        "speedup": {name: round(medians[name] / medians["polygen"], 3) for name in base},
    }


def _normal(*shape: int) -> Any:
    import torch

    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def layouts(size: int = 4096) -> list[dict[str, Any]]:
    """The plain product in all four layouts."""
    import torch

    x, w, y = _normal(size, size), _normal(size, size), _normal(size, size)
    forms = {
        "x @ w.T": (lambda a, b: a @ b.T, lambda: torch.mm(x, w.t(), out=y)),
        "x @ w": (lambda a, b: a @ b, lambda: torch.mm(x, w, out=y)),
        "x.T @ w": (lambda a, b: a.T @ b, lambda: torch.mm(x.t(), w, out=y)),
        "x.T @ w.T": (lambda a, b: a.T @ b.T, lambda: torch.mm(x.t(), w.t(), out=y)),
    }
    signatures = {
        "x @ w.T": ("bf16[M,K]", "bf16[N,K]"),
        "x @ w": ("bf16[M,K]", "bf16[K,N]"),
        "x.T @ w": ("bf16[K,M]", "bf16[K,N]"),
        "x.T @ w.T": ("bf16[K,M]", "bf16[N,K]"),
    }
    rows = []
    for name, (function, library) in forms.items():
        fused = pg.fuse(function, name="product")
        kernel = fused.compile(*signatures[name], sizes={"M": size, "N": size, "K": size})
        out = torch.empty_like(y)
        call = lambda kernel=kernel, out=out: kernel(x, w, out=out)  # noqa: E731
        rows.append(row(name, (size, size, size), call, {"cuBLAS": library}, kernel))
    return rows


def residual(m: int = 16384, n: int = 1024, k: int = 1024) -> dict[str, Any]:
    """relu(x @ w.T + b + r) beside cuBLAS and separate kernels."""
    import torch

    x, w, b, r = _normal(m, k), _normal(n, k), _normal(n), _normal(m, n)
    fused = pg.fuse(lambda x, w, b, r: pg.relu(x @ w.T + b + r), name="residual")
    kernel = fused.compile(
        "bf16[M,K]", "bf16[N,K]", "bf16[N]", "bf16[M,N]", sizes={"M": m, "N": n, "K": k}
    )
    y, z = torch.empty_like(r), torch.empty_like(r)

    def separate() -> None:
        torch.mm(x, w.t(), out=z)
        torch.add(z, b, out=z)
        torch.add(z, r, out=z)
        torch.relu_(z)

    return row(
        "relu(x @ w.T + b + r)",
        (m, n, k),
        lambda: kernel(x, w, b, r, out=y),
        {"cuBLAS + separate": separate},
        kernel,
    )


def mlp_kernel(m: int, n: int, k: int) -> Any:
    """The kernel of a transformer MLP's first layer."""
    fused = pg.fuse(lambda x, w, b, g: pg.silu(x @ w.T + b) * g, name="mlp_up")
    operands = ("bf16[M,K]", "bf16[N,K]", "bf16[N]", "bf16[M,N]")
    return fused.compile(*operands, sizes={"M": m, "N": n, "K": k})


def mlp(tokens: int, width: int = 4096, hidden: int = 14336) -> dict[str, Any]:
    """silu(x @ w.T + b) * g, the first layer of a transformer MLP, beside separate kernels."""
    import torch

    x, w, b, g = (
        _normal(tokens, width),
        _normal(hidden, width) * 0.02,
        _normal(hidden),
        _normal(tokens, hidden),
    )
    kernel = mlp_kernel(tokens, hidden, width)
    y, z = torch.empty_like(g), torch.empty_like(g)

    def separate() -> None:
        torch.mm(x, w.t(), out=z)
        torch.add(z, b, out=z)
        torch.mul(torch.nn.functional.silu(z), g, out=z)

    return row(
        "silu(x @ w.T + b) * g",
        (tokens, hidden, width),
        lambda: kernel(x, w, b, g, out=y),
        {"cuBLAS + separate": separate},
        kernel,
    )


def provenance() -> dict[str, Any]:
    """What the record was made with."""
    import cupy
    import torch

    query = "name,driver_version,clocks.sm,clocks.max.sm,power.draw,temperature.gpu"
    return {
        "date": datetime.date.today().isoformat(),
        "gpu": smi(query),
        "target": current_arch(),
        "polygen": pg.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cupy": cupy.__version__,
        "python": platform.python_version(),
        "protocol": f"one process, random order, L2 flushed, medians of {REPEATS} launches",
        "data": "standard normal",
    }


def record() -> dict[str, Any]:
    """All measurements."""
    rows = [*layouts(), residual(), mlp(512), mlp(4096)]
    return {"provenance": provenance(), "rows": rows}


if __name__ == "__main__":
    found = record()
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
    for line in found["rows"]:
        print(
            line["what"],
            line["M"],
            line["N"],
            line["K"],
            line["schedule"],
            line["microseconds"],
            line["speedup"],
        )
