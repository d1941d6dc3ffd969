"""What invariant sums cost: kernels with M invariant beside the free choice, in one process.

    python -m polygen.bench.invariance --out cost.json

1. For each N and K, and each M of a ladder, a kernel is compiled with M invariant, and one without.
2. Both are launched in turns, in random order, each launch with a cold L2 cache; where they are
   shorter than the host's work, as CUDA graphs.
3. The rows that an invariant kernel computes are compared, bit for bit, with the same rows of the
   largest M. A row of the record with other bits says so, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from polygen import __version__
from polygen.api import Fused
from polygen.errors import BenchError, PolygenError
from polygen.frontend.indices import size_value
from polygen.frontend.parse import parse_expression
from polygen.frontend.program import Program
from polygen.frontend.signature import parse_signature
from polygen.kernel import Kernel
from polygen.runtime.arrays import in_order
from polygen.runtime.environment import current_arch
from polygen.runtime.files import write_text_atomic
from polygen.runtime.measure import captured, device_name, interleaved, to_gpu, to_host

LADDER = (1, 16, 64, 256, 1024, 4096)
SHAPES = ("4096x4096", "14336x4096", "4096x14336", "1024x8192", "5120x5120")
REPEATS = 101
FREE, INVARIANT = "free", "invariant"
_GRAPH_BELOW = 60.0  # microseconds
_MANY = 256  # rows from which a product is no longer one of few rows
_PROGRAM = ("x @ w.T", "x:bf16[M,K]", "w:bf16[N,K]")


class Card(Protocol):
    """What measures; tests give something else."""

    name: str
    arch: str

    def operands(self, program: Program, sizes: Mapping[str, int]) -> tuple[Any, ...]:
        """Normal random operands; equal rows for every M."""

    def result(self, kernel: Kernel, operands: Sequence[Any]) -> tuple[np.ndarray[Any, Any], ...]:
        """What a launch gives, on the host."""

    def times(
        self, kernels: Mapping[str, Kernel], operands: Sequence[Any], repeats: int
    ) -> dict[str, list[float]]:
        """Microseconds of every launch, by name."""


class Gpu:
    """The current card, with arrays of CuPy."""

    def __init__(self) -> None:
        self.name, self.arch = device_name(), str(current_arch())

    def operands(self, program: Program, sizes: Mapping[str, int]) -> tuple[Any, ...]:
        """Normal random operands; equal rows for every M."""
        found = host_operands(program, sizes)
        return tuple(to_gpu(one) if isinstance(one, np.ndarray) else one for one in found)

    def result(self, kernel: Kernel, operands: Sequence[Any]) -> tuple[np.ndarray[Any, Any], ...]:
        """What a launch gives, on the host."""
        found = kernel(*operands)
        return tuple(map(to_host, found if isinstance(found, tuple) else (found,)))

    def times(
        self, kernels: Mapping[str, Kernel], operands: Sequence[Any], repeats: int
    ) -> dict[str, list[float]]:
        """Microseconds of every launch, by name."""
        outs = {name: kernel(*operands) for name, kernel in kernels.items()}

        def call(name: str) -> Callable[..., Any]:
            return lambda stream=None: kernels[name](*operands, out=outs[name], stream=stream)

        calls = {name: call(name) for name in kernels}
        pilot = interleaved(calls, 7)
        if min(map(statistics.median, pilot.values())) < _GRAPH_BELOW:
            calls = {name: captured(one) for name, one in calls.items()}
        return interleaved(calls, repeats)


def host_operands(program: Program, sizes: Mapping[str, int]) -> tuple[Any, ...]:
    """Operands whose first rows along M are the same for every M.

    Args:
        program: whose inputs to make.
        sizes: of all dims.
    """
    made: list[Any] = []
    for number, tensor in enumerate(program.inputs):
        generator = np.random.default_rng(number)
        if not tensor.dims:
            made.append(float(np.float32(generator.standard_normal())))
            continue
        # M first, so that more rows are drawn behind the others.
        dims = sorted(tensor.dims, key=lambda dim: dim != "M")
        shape = [size_value(d, sizes) for d in dims]
        places = [dims.index(dim) for dim in tensor.dims]
        drawn = generator.standard_normal(shape, np.float32).transpose(places)
        made.append(in_order(drawn.astype(tensor.dtype.numpy), tensor.order))
    return tuple(made)


@dataclass(frozen=True, slots=True)
class Request:
    """What to compare.

    Attributes:
        program: the expression and its operands, over M, N and K.
        ladder: sizes along M.
        shapes: N and K.
        repeats: launches timed of each kernel.
    """

    program: tuple[str, ...] = _PROGRAM
    ladder: tuple[int, ...] = LADDER
    shapes: tuple[tuple[int, int], ...] = ()
    repeats: int = REPEATS


def compare(request: Request, card: Card, tell: Callable[[str], None]) -> dict[str, Any]:
    """The record of a run.

    Args:
        request: what to compare.
        card: what measures.
        tell: called with a line for every row.
    """
    expression, *operands = request.program
    names = tuple(parse_signature(text).name for text in operands)
    fused = Fused(parse_expression(expression, names), "bench", expression, False)
    rows = []
    for n, k in request.shapes:
        whole: tuple[np.ndarray[Any, Any], ...] = ()
        for m in sorted(request.ladder, reverse=True):
            row: dict[str, Any] = {"m": m, "n": n, "k": k}
            try:
                found, whole = _row(fused, operands, row, card, request.repeats, whole)
                row |= found
            except PolygenError as reason:
                row["error"] = str(reason)
            rows.append(row)
            tell(_line(row))
    return {
        "format": 1,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": card.name,
        "arch": card.arch,
        "polygen": __version__,
        "program": list(request.program),
        "repeats": request.repeats,
        "summary": summary(rows),
        "rows": rows,
    }


def _row(
    fused: Fused,
    operands: Sequence[str],
    sizes: Mapping[str, int],
    card: Card,
    repeats: int,
    whole: tuple[np.ndarray[Any, Any], ...],
) -> tuple[dict[str, Any], tuple[np.ndarray[Any, Any], ...]]:
    """One row, and the results of the largest M, which come first."""
    dims = {name.upper(): size for name, size in sizes.items()}
    kernels = {
        name: fused.compile(*operands, arch=card.arch, sizes=dims, invariant=promised).kernels[0]
        for name, promised in ((FREE, ()), (INVARIANT, ("M",)))
    }
    given = card.operands(kernels[FREE].program, dims)
    found = card.result(kernels[INVARIANT], given)
    whole = whole or found
    axes = [tensor.dims.index("M") for tensor in kernels[FREE].program.outputs]
    same = all(
        one.tobytes() == every.take(range(dims["M"]), axis).tobytes()
        for one, every, axis in zip(found, whole, axes, strict=True)
    )
    times = card.times(kernels, given, repeats)
    row: dict[str, Any] = {"same_bits": same}
    for name, kernel in kernels.items():
        low, middle, high = statistics.quantiles(times[name], n=4)
        row[name] = {
            "schedule": kernel.schedule.name,
            "sums": kernel.sums.digest,
            "microseconds": middle,
            "quartiles": [low, high],
        }
    row["ratio"] = row[INVARIANT]["microseconds"] / row[FREE]["microseconds"]
    return row, whole


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What invariance costs: ratios of times, of few and of many rows."""
    found: dict[str, Any] = {
        "errors": sum("error" in row for row in rows),
        "other_bits": sum(row.get("same_bits") is False for row in rows),
    }
    for name, many in (("few_rows", False), ("many_rows", True)):
        ratios = [r["ratio"] for r in rows if "ratio" in r and (r["m"] >= _MANY) is many]
        if ratios:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            found[name] = {"rows": len(ratios), "mean": mean, "most": max(ratios)}
    return found


def _line(row: Mapping[str, Any]) -> str:
    head = f"{row['m']}x{row['n']}x{row['k']}: "
    if "error" in row:
        return f"{head}{row['error']}"
    bits = "" if row["same_bits"] else ", OTHER BITS"
    free, ours = row[FREE], row[INVARIANT]
    return (
        f"{head}{ours['microseconds']:.2f} us {ours['schedule']}, free {free['microseconds']:.2f} "
        f"us {free['schedule']}, ratio {row['ratio']:.3f}{bits}"
    )


def shape(text: str) -> tuple[int, int]:
    """``4096x1024`` as N and K.

    Raises:
        BenchError: it is none.
    """
    first, _, second = text.partition("x")
    if not (first.isdigit() and second.isdigit()):
        raise BenchError(f"{text!r} is no N x K", where="--shapes", nearest="Write 4096x4096")
    return int(first), int(second)


def main(argv: Sequence[str] | None = None, card: Card | None = None) -> int:
    """Compare, print, and write the record; 1 if a row has other bits or no time.

    Args:
        argv: words of the command line; None: the process's.
        card: what measures; None: the current GPU.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--program", nargs="+", default=_PROGRAM, metavar="WORD")
    parser.add_argument("--m", nargs="+", type=int, default=LADDER, metavar="M")
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="NxK")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--out", type=Path, metavar="FILE", help="the record, as JSON")
    options = parser.parse_args(argv)
    request = Request(
        tuple(options.program), tuple(options.m), tuple(map(shape, options.shapes)), options.repeats
    )
    found = compare(request, card or Gpu(), lambda line: print(line, file=sys.stderr, flush=True))
    text = json.dumps(found, indent=1) + "\n"
    if options.out:
        write_text_atomic(options.out, text)
    print(json.dumps(found["summary"]) if options.out else text)
    return int(found["summary"]["errors"] + found["summary"]["other_bits"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
