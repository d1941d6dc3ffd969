"""``polygen run``: random data through a kernel on this GPU, compared with float64, and timed."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np

from polygen.cli import load
from polygen.cli.accuracy import expected
from polygen.cli.commands import sums_json
from polygen.cli.output import print_json, print_pairs
from polygen.cli.sum_error import reduction_size
from polygen.errors import PolygenError, UnsupportedProgram
from polygen.frontend.grouping import rows_in_groups
from polygen.frontend.groups import routed_ends
from polygen.frontend.indices import size_value
from polygen.frontend.pitches import pitch_of, pitches
from polygen.frontend.program import Program, Tensor
from polygen.kernel import Kernel
from polygen.kernel_sequence import AnyKernel
from polygen.runtime.arrays import in_order
from polygen.runtime.driver import cupy_driver
from polygen.runtime.measure import device_name, milliseconds, to_gpu, to_host
from polygen.small_problem import trial_rows

Array = np.ndarray[Any, Any]


def run(options: argparse.Namespace) -> int:
    """Run, compare and time one kernel; 1 if an element is further off than the bound."""
    cupy_driver()  # before any work: without a GPU this is what the user must know
    kernel = _alone(load.kernel(options))
    sizes = run_sizes(kernel.program, dict(options.size))
    operands = random_operands(kernel.program, sizes, options.seed)
    names = [tensor.name for tensor in kernel.program.operands]
    given = [to_gpu(v) if isinstance(v, np.ndarray) else v for v in operands]
    result = kernel(*given)
    outputs = result if isinstance(result, tuple) else (result,)
    # Which of two programs runs norms in front of products, the schedule has said.
    judged = kernel.passes.plan.whole if kernel.passes.plan.whole.first else kernel.program
    wanted = expected(
        judged, dict(zip(names, operands, strict=True)), sizes, kernel.passes.plan.atom.k
    )
    compared = []
    for one, found in zip(wanted, outputs, strict=True):
        error, ratio, wrong = one.compare(to_host(found))
        compared.append(
            {
                "name": one.tensor.name,
                "largest_error": error,
                "fraction_of_bound": ratio,
                "wrong": wrong,
            }
        )
    times = milliseconds(lambda: kernel(*given, out=result))
    report = {
        "ok": not any(entry["wrong"] for entry in compared),
        "gpu": device_name(),
        "target": kernel.passes.plan.device.name,
        "sizes": sizes,
        "seed": options.seed,
        "schedule": kernel.schedule_origin,
        **sums_json(kernel.sums),
        "outputs": compared,
        "milliseconds": {"median": statistics.median(times), "minimum": min(times)},
        "tflops": operations(kernel, sizes) / statistics.median(times) / 1e9,
        "launches_timed": len(times),
    }
    if options.json:
        print_json(report)
    else:
        _print(report)
    return 0 if report["ok"] else 1


def _alone(found: AnyKernel) -> Kernel:
    """The kernel, if it is one.

    Raises:
        UnsupportedProgram: there are several.
    """
    if isinstance(found, Kernel):
        return found
    raise UnsupportedProgram(
        f"{len(found.kernels)} kernels in order",
        where="run",
        why="how far a result may be off is known of one kernel",
        nearest="Use `polygen check`, which runs each of them",
    )


def _print(report: Mapping[str, Any]) -> None:
    sizes = ", ".join(f"{name} = {value}" for name, value in report["sizes"].items())
    times = report["milliseconds"]
    pairs = [
        ("gpu", f"{report['gpu']}, code for {report['target']}"),
        ("sizes", sizes or "all fixed"),
        ("schedule", report["schedule"]),
        ("bits", report["bits"]),
    ]
    for entry in report["outputs"]:
        verdict = f"{entry['wrong']} elements WRONG" if entry["wrong"] else "right"
        pairs.append(
            (
                entry["name"],
                f"{verdict}: largest error {entry['largest_error']:.3g}, "
                f"at most {entry['fraction_of_bound']:.2f} of its bound (seed {report['seed']})",
            )
        )
    pairs.append(
        (
            "time",
            f"{times['median']:.4f} ms, median of {report['launches_timed']} launches "
            f"(least {times['minimum']:.4f} ms): {report['tflops']:.1f} TFLOP/s of matmul",
        )
    )
    print_pairs(pairs)


def run_sizes(program: Program, given: Mapping[str, int]) -> dict[str, int]:
    """The size of every symbolic dim, and the pitches that are given.

    Raises:
        PolygenError: some have none.
    """
    missing = [name for name in program.sizes if name not in given]
    if missing:
        raise PolygenError(
            f"no size for {', '.join(missing)}",
            where="--size",
            nearest=f"Add --size {' '.join(f'{name}=1024' for name in missing)}",
        )
    rows = [name for name in pitches(program) if name in given]
    return {name: given[name] for name in (*program.sizes, *rows)}


def random_operands(
    program: Program, sizes: Mapping[str, int], seed: int
) -> tuple[Array | float, ...]:
    """Normal random data; the matmul's operands are scaled so that its sums are about 1.

    Args:
        program: whose operands to make.
        sizes: of the symbolic dims, and pitches.
        seed: of the generator.

    Returns:
        One array per operand in its declared layout, or a number for a run-time scalar.
    """
    generator = np.random.default_rng(seed)
    contraction = program.contractions[0]
    multiplied = {access.name for access in contraction.reads}
    scale = reduction_size(contraction, sizes) ** -0.25
    values: list[Array | float] = []
    for tensor in program.operands:
        shape = tensor.shape(sizes)
        if tensor.name == program.ends:
            rows = rows_in_groups(program)
            count = size_value(rows, sizes)
            values.append(routed_ends(shape[0], count, seed))
            continue
        if tensor.name in program.scattered:
            extent = program.scattered[tensor.name]
            count = size_value(extent, sizes)
            values.append(trial_rows(shape[0], count, generator).astype(np.int32))
            continue
        if tensor.name in program.gathered:
            extent = program.gathered[tensor.name]
            count = size_value(extent, sizes)
            values.append(generator.integers(0, count, shape, dtype=np.int32))
            continue
        data = generator.standard_normal(shape) * (scale if tensor.name in multiplied else 1.0)
        pitch = sizes.get(pitch_of(tensor.name))
        values.append(
            _stored(tensor, np.asarray(data), pitch) if shape else float(np.float32(data))
        )
    return tuple(values)


def _stored(tensor: Tensor, data: Array, pitch: int | None) -> Array:
    array = data.astype(np.float32).astype(tensor.dtype.numpy)
    return in_order(array, tensor.order, pitch)


def operations(kernel: Kernel, sizes: Mapping[str, int]) -> float:
    """Multiplications and additions of the matmul; of rows in groups each meets one matrix."""
    extents = (size_value(d, sizes) for _, d in kernel.passes.plan.extents)
    return 2.0 * float(np.prod([float(extent) for extent in extents]))
