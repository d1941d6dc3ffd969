"""What the examples share: data, a run, and the check of its results.

A kernel is compiled for large sizes, which it takes as arguments like all others. With an
NVIDIA GPU it is made for that one, run at the large sizes and timed. Without one it is made for
an H100 or H200, and its PTX is run on NumPy at the small sizes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

import polygen as pg
from polygen.runtime.environment import current_arch
from polygen.runtime.measure import milliseconds, to_gpu, to_host

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]
WITHOUT_GPU = "sm_90a"


def normal(random: np.random.Generator, *shape: int, scale: float = 1.0) -> Array:
    """Random numbers in bfloat16."""
    return (scale * random.standard_normal(shape)).astype(ml_dtypes.bfloat16)


def run(
    function: Any,
    signature: tuple[str, ...],
    operands: Callable[[Sizes, np.random.Generator], tuple[Any, ...]],
    *,
    small: dict[str, int],
    large: dict[str, int],
    roundings: int = 1,
    **options: Any,
) -> pg.Kernel:
    """Compile a fused function, run it, compare it with the function in float64, and say so.

    Args:
        function: what `pg.fuse` made.
        signature: as for `compile`.
        operands: makes the arrays of given sizes.
        small: sizes that the PTX machine runs.
        large: sizes that the kernel is optimised for, and that a GPU runs.
        roundings: of results' type, that a result may be off by.
        options: as for `compile`.

    Returns:
        The kernel.

    Raises:
        SystemExit: a result is wrong.
    """
    gpu = current_arch()
    kernel = function.compile(*signature, arch=gpu or WITHOUT_GPU, sizes=large, **options)
    sizes = large if gpu else small
    arrays = operands(sizes, np.random.default_rng(0))
    found = on_gpu(kernel, arrays) if gpu else kernel.emulate(*arrays)
    where = "this GPU" if gpu else "the PTX machine, without a GPU"
    print(f"{kernel.program.name} on {where}: {', '.join(f'{n} = {v}' for n, v in sizes.items())}")
    print(f"schedule: {kernel.schedule_origin}")
    check(found, function.reference(*arrays), kernel, roundings)
    return kernel


def on_gpu(kernel: pg.Kernel, arrays: tuple[Any, ...]) -> Any:
    """Run on the GPU, print the time of a launch, and give the results as NumPy arrays."""
    given = [to_gpu(a) if isinstance(a, np.ndarray) else a for a in arrays]
    found = kernel(*given)
    times = milliseconds(lambda: kernel(*given, out=found))
    print(f"time: {statistics.median(times):.4f} ms, median of {len(times)} launches")
    return tuple(map(to_host, found)) if isinstance(found, tuple) else to_host(found)


def check(found: Any, wanted: Any, kernel: pg.Kernel, roundings: int = 1) -> None:
    """Compare results with what they should be: integers exactly, others to their rounding.

    Raises:
        SystemExit: a result is wrong.
    """
    results = found if isinstance(found, tuple) else (found,)
    rights = wanted if isinstance(wanted, tuple) else (wanted,)
    for tensor, one, right in zip(kernel.program.outputs, results, rights, strict=True):
        values, exact = np.asarray(one).astype(np.float64), np.asarray(right, np.float64)
        if np.issubdtype(np.asarray(one).dtype, np.integer):
            error, allowed = float(np.abs(values - exact).max()), 0.0
        else:
            error = float((np.abs(values - exact) / (1 + np.abs(exact))).max())
            allowed = max(roundings * float(ml_dtypes.finfo(np.asarray(one).dtype).eps), 1e-4)
        right_or_not = "right" if error <= allowed else "WRONG"
        print(f"{tensor.name}: {right_or_not}, largest error {error:.2g}, allowed {allowed:.2g}")
        if not error <= allowed:
            raise SystemExit(1)
