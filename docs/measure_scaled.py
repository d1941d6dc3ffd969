"""Scaled e4m3 products: errors with and without promotion, and times beside PyTorch's row scales.

    python docs/measure_scaled.py --simulate             # errors by NumPy, no GPU
    python docs/measure_scaled.py                        # on the GPU: errors, then times
    python docs/measure_scaled.py --times                # times alone
    python docs/measure_scaled.py --shape 8192 8192 8192

The simulation is of what a matrix unit of sm_90 is thought to do, not of what was measured: each
instruction adds 32 products to a sum, all of them cut off 13 bits below the leading bit of the
largest (DeepSeek-V3 technical report, arXiv 2412.19437, section 3.3). Errors are in units of
2^-24 of the sum of all |x * w|, against float64.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import polygen as pg

E4M3 = ml_dtypes.float8_e4m3fn
BLOCK, DEPTH, KEPT = 128, 32, 13
Array = np.ndarray[Any, Any]


def plain(x: Any, w: Any) -> Any:
    """The product of what is stored."""
    return x @ w.T


def scaled(x: Any, s: Any, w: Any, t: Any) -> Any:
    """Scales of rows and of square blocks."""
    weights = w * pg.repeat(pg.repeat(t, BLOCK, axis=0), BLOCK, axis=1)
    return (x * pg.repeat(s, BLOCK, axis=1)) @ weights.T


def by_rows(x: Any, s: Any, w: Any, t: Any) -> Any:
    """Scales of rows and of columns."""
    return (x * s[:, None]) @ (w * t[:, None]).T


def by_rows_promoted(x: Any, s: Any, w: Any, t: Any, ones: Any) -> Any:
    """The same, and a 1 for every block of k, behind which it is promoted."""
    return (x * s[:, None] * pg.repeat(ones, BLOCK, axis=0)) @ (w * t[:, None]).T


def drawn(rows: int, depth: int, kind: str, seed: int) -> Array:
    """Random elements, rounded to e4m3."""
    rng = np.random.default_rng(seed)
    made = rng.standard_normal((rows, depth)) if kind == "normal" else rng.random((rows, depth))
    return made.astype(np.float32).astype(E4M3)


def summed(x: Array, w: Array) -> Array:
    """The sum of each row of x times the same row of w, as the simulated unit adds it."""
    total = np.zeros(len(x))
    for first in range(0, x.shape[1], DEPTH):
        terms = np.column_stack([x[:, first : first + DEPTH] * w[:, first : first + DEPTH], total])
        _, exponent = np.frexp(np.abs(terms).max(1))
        unit = np.ldexp(1.0, exponent - 1 - KEPT)[:, None]
        total = (np.trunc(terms / unit) * unit).sum(1).astype(np.float32).astype(np.float64)
    return total


def simulate() -> None:
    """Errors of the simulated unit, with all k in one sum and promoted every 128."""
    for kind in ("normal", "uniform"):
        for depth in (512, 4096, 16384):
            x, w = (drawn(2048, depth, kind, seed).astype(np.float64) for seed in range(2))
            exact, scale = (x * w).sum(1), np.abs(x * w).sum(1)
            blocks = range(0, depth, BLOCK)
            promoted = np.zeros(len(x), np.float32)
            for k in blocks:
                promoted += summed(x[:, k : k + BLOCK], w[:, k : k + BLOCK]).astype(np.float32)
            report(f"simulated, {kind}, K = {depth}", exact, scale, summed(x, w), promoted)


def report(name: str, exact: Array, scale: Array, *found: Array) -> None:
    """Print the errors of sums without and with promotion."""
    units = [np.abs(one - exact) / scale * 2.0**24 for one in found]
    text = "; ".join(
        f"{what}: largest {one.max():.4g}, rms {np.sqrt((one**2).mean()):.4g}"
        for what, one in zip(("unpromoted", "promoted"), units, strict=True)
    )
    print(f"{name}: {text}")


def errors() -> None:
    """Errors of kernels on the GPU, with all scales 1."""
    from polygen.runtime.measure import to_gpu, to_host  # noqa: PLC0415

    rows = 512
    for kind in ("normal", "uniform"):
        for depth in (512, 4096, 16384):
            x, w = (drawn(rows, depth, kind, seed) for seed in range(2))
            s = np.ones((rows, depth // BLOCK), np.float32)
            t = np.ones((rows // BLOCK, depth // BLOCK), np.float32)
            shapes = f"e4m3[{rows},{depth}]", f"f32[{rows},{depth // BLOCK}]"
            square = f"f32[{rows // BLOCK},{depth // BLOCK}]"
            kernels = [
                pg.fuse(plain).compile(shapes[0], shapes[0], out_dtype="f32"),
                pg.fuse(scaled).compile(*shapes, shapes[0], square, out_dtype="f32"),
            ]
            given = [(x, w), (x, s, w, t)]
            found = [
                to_host(kernel(*map(to_gpu, arrays))).astype(np.float64)
                for kernel, arrays in zip(kernels, given, strict=True)
            ]
            a, b = x.astype(np.float64), w.astype(np.float64)
            report(f"measured, {kind}, K = {depth}", a @ b.T, np.abs(a) @ np.abs(b).T, *found)


def times(m: int, n: int, k: int, repeats: int) -> None:
    """Times of kernels beside PyTorch's product with scales of rows and columns."""
    import cupy  # noqa: PLC0415
    import torch  # noqa: PLC0415

    from polygen.runtime.measure import captured, interleaved  # noqa: PLC0415

    x, w = (torch.randn(size, k, device="cuda").to(torch.float8_e4m3fn) for size in (m, n))
    s, t = (torch.rand(size, k // BLOCK, device="cuda") for size in (m, n // BLOCK))
    rows, columns = torch.rand(m, 1, device="cuda"), torch.rand(1, n, device="cuda")
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    shapes = f"e4m3[M,{k}]", f"e4m3[{n},{k}]"
    made = {
        "polygen, no scales": (plain, (shapes[0], shapes[1]), (x, w)),
        "polygen, scales of rows and columns": (
            by_rows, (shapes[0], "f32[M]", shapes[1], f"f32[{n}]"),
            (x, rows.flatten(), w, columns.flatten()),
        ),
        "polygen, scales of rows and columns, promoted every 128 k": (
            by_rows_promoted, (shapes[0], "f32[M]", shapes[1], f"f32[{n}]", f"f32[{k // BLOCK}]"),
            (x, rows.flatten(), w, columns.flatten(), torch.ones(k // BLOCK, device="cuda")),
        ),
        "polygen, scales of rows and squares every 128 k": (
            scaled,
            (shapes[0], f"f32[M,{k // BLOCK}]", shapes[1], f"f32[{n // BLOCK},{k // BLOCK}]"),
            (x, s, w, t),
        ),
    }  # fmt: skip
    contenders: dict[str, Callable[[Any], Any]] = {}
    for name, (function, signature, arrays) in made.items():
        kernel = pg.fuse(function).compile(*signature, sizes={"M": m}, out_dtype="bf16")
        print(f"{name}: {kernel.schedule_origin}; {kernel.resources}")
        contenders[name] = _polygen(kernel, arrays, out)
    for fast in (True, False):
        name = f"torch._scaled_mm, {'fast sums' if fast else 'promoted sums'}"
        contenders[name] = _torch((x, w.T, rows, columns), out, fast)
    for call in contenders.values():
        call(cupy.cuda.Stream.null)
    found = interleaved({name: captured(call) for name, call in contenders.items()}, repeats)
    for name, each in found.items():
        middle = statistics.median(each)
        print(f"{name}: {middle:.1f} us, {2 * m * n * k / middle / 1e6:.0f} TFLOPS")


def _polygen(kernel: Any, arrays: tuple[Any, ...], out: Any) -> Callable[[Any], Any]:
    import torch  # noqa: PLC0415

    def call(stream: Any) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
            kernel(*arrays, out=out)

    return call


def _torch(given: tuple[Any, ...], out: Any, fast: bool) -> Callable[[Any], Any]:
    import torch  # noqa: PLC0415

    x, w, rows, columns = given
    words = {"scale_a": rows, "scale_b": columns, "out_dtype": torch.bfloat16, "out": out}

    def call(stream: Any) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
            torch._scaled_mm(x, w, use_fast_accum=fast, **words)

    return call


def main() -> None:
    """Simulate, or measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--simulate", action="store_true", help="errors by NumPy, without a GPU")
    parser.add_argument("--times", action="store_true", help="times alone")
    parser.add_argument("--shape", type=int, nargs=3, default=(4096, 4096, 4096))
    parser.add_argument("--repeats", type=int, default=100)
    given = parser.parse_args()
    if given.simulate:
        simulate()
        return
    if not given.times:
        errors()
    times(*given.shape, given.repeats)


if __name__ == "__main__":
    main()
