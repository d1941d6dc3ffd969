"""cuBLASLt with its native epilogue and the fastest of its algorithms.

1. The steps after the product go into the epilogue as far as it has them: a vector of N added is
   its bias, a matrix added is C with beta 1, relu and gelu (in the tanh form, as cuBLASLt has it)
   end it. The rest follows as PyTorch kernels in place.
2. The heuristic proposes algorithms; each is timed here, with a cold cache; the fastest is kept.

Through the bindings of nvmath-python; without that package through PyTorch, whose functions reach a
part of it (``torch._addmm_activation``), with the heuristic's first choice. Row-major matrices are
column-major transposed ones, so that cuBLASLt computes the transposed product; its bias then runs
along rows, as it must. Batches are strides of the layouts. Of several products each is a call of
its own, from the last to the first; the value of one is a matrix added to another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.bench.operations import VALUE, Chain, Step, chain, fixed_forms, value
from polygen.bench.peers.in_turn import Stage, in_turn
from polygen.bench.products import by_operator, no_steps_in_place, product
from polygen.bench.rows import Row
from polygen.bench.source import Call
from polygen.bench.torch_code import in_place
from polygen.errors import BenchError

MOST_ALGORITHMS = 16
TRIALS = 5  # launches of each algorithm
WORKSPACE = 64 << 20  # bytes; cuBLAS recommends 32 MiB on Hopper

# cudaDataType_t; by row type: cublasComputeType_t, type of alpha and beta, type of the result.
_TYPES = {"f16": 2, "bf16": 14, "f32": 0, "tf32": 0, "s8": 3, "s32": 10, "e4m3": 28}
_COMPUTE = {
    ("f16", "f32"): (68, "f32", "f16"), ("f16", "f16"): (64, "f16", "f16"),
    ("bf16", "f32"): (68, "f32", "bf16"), ("tf32", "f32"): (77, "f32", "f32"),
    ("e4m3", "f32"): (68, "f32", "bf16"), ("s8", "f32"): (72, "s32", "s32"),
}  # fmt: skip
_NUMBERS = {"f32": np.float32, "f16": np.float16, "s32": np.int32}


@dataclass(frozen=True, slots=True)
class Native:
    """What the epilogue takes over.

    Attributes:
        bias: name of the vector, or None.
        added: name of the matrix, or None.
        activation: "relu", "gelu" or None.
        rest: the steps that follow.
    """

    bias: str | None
    added: str | None
    activation: str | None
    rest: tuple[Step, ...]

    @property
    def epilogue(self) -> str:
        """As cuBLASLt names it."""
        parts = [self.activation.upper()] if self.activation else []
        return "_".join([*parts, *(["BIAS"] if self.bias else [])]) or "DEFAULT"


def native(found: Chain, ranks: dict[str, int]) -> Native:
    """Split a chain into what the epilogue has and the rest.

    Args:
        found: the chain.
        ranks: of the operands and values by name; a matrix has that of the left operand.
    """
    full = ranks[found.left[0]]
    bias = added = activation = None
    for done, step in enumerate(found.steps):
        other = next((a for a in step.arguments if isinstance(a, str) and a != VALUE), None)
        if step.function == "add" and other and ranks[other] == 1 and bias is None:
            bias = other
        elif step.function == "add" and other and ranks[other] == full and added is None:
            added = other
        elif (step.function, step.words) in (("relu", ()), ("gelu", ("tanh",))):
            return Native(bias, added, step.function, found.steps[done + 1 :])
        else:
            return Native(bias, added, activation, found.steps[done:])
    return Native(bias, added, activation, ())


def ranks_of(row: Row) -> dict[str, int]:
    """Of the operands, and of the products' values."""
    ranks = {name: len(dims) for name, dims in row.operation.operands}
    return ranks | {value(number): len(shape) for number, shape in enumerate(row.products)}


class CublasLt:
    """cuBLASLt, through nvmath-python where it is installed."""

    def __init__(self) -> None:
        import torch  # noqa: PLC0415

        self.via, self.lt = "torch", None
        try:
            from nvmath.bindings import cublasLt  # noqa: PLC0415

            self._handle = cublasLt.create()
        except Exception as error:  # also what its own dependencies raise
            self.why = f"{type(error).__name__}: {error}"[:200]
        else:
            self.via, self.lt, self.why = "nvmath", cublasLt, ""
            self._workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device="cuda")

    def versions(self) -> dict[str, Any]:
        """How it is reached, and its version."""
        if self.lt is None:
            return {"via": "torch", "because": self.why}
        return {"via": "nvmath", "version": self.lt.get_version()}

    def make(self, work: Any) -> Call:
        """The products with their epilogues, and what follows.

        Raises:
            BenchError: it has no form for the row.
        """
        if self.lt is None:
            return through_torch(work)
        found = fixed_forms(work.row.operation)
        facts: list[dict[str, Any]] = []
        stages = [self._stage(work, number, facts) for number in range(len(found))]
        told = facts[0] if len(facts) == 1 else {"products": facts}
        work.note("cublaslt", via="nvmath", **told)
        return in_turn(work.row.operation, stages)

    def _stage(self, work: Any, number: int, facts: list[dict[str, Any]]) -> Stage:
        """One product, by the fastest algorithm; tells of it."""
        found = fixed_forms(work.row.operation)[number]
        no_steps_in_place(work.row.dtype, found.steps)
        split = native(found, ranks_of(work.row))
        problem = Problem(self.lt, work, number, split)
        algorithms = problem.algorithms(self._handle, WORKSPACE)
        calls = [
            functools.partial(problem.launch, self._handle, algorithm, self._workspace)
            for algorithm in algorithms
        ]
        times = {}
        for number, call in enumerate(calls):
            try:
                call()
                times[number] = float(np.median(work.timed([call] * TRIALS)))
            except Exception:  # the heuristic proposes some that then refuse to run
                continue
        if not times:
            raise BenchError("none of the algorithms runs", where="cuBLASLt")
        chosen = min(times, key=times.__getitem__)
        facts.append(
            {
                "epilogue": split.epilogue,
                "added": split.added is not None,
                "steps_after": len(split.rest),
                "algorithms": len(times),
                "chosen": chosen,
            }
        )
        rest = in_place(split.rest, work.operands.timed | work.operands.values)
        return Stage(calls[chosen], rest)


class Problem:
    """Descriptors of one product with its epilogue.

    Args:
        lt: the bindings.
        work: row and operands.
        number: of the chain.
        split: what the epilogue takes over.
    """

    def __init__(self, lt: Any, work: Any, number: int, split: Native) -> None:
        row, held = work.row, work.operands
        found, tensors = fixed_forms(row.operation)[number], held.timed | held.values
        self._lt, self._kept = lt, [work.operands]
        compute, scale, result = _COMPUTE[row.dtype, row.acc]
        scalar = _NUMBERS[scale]
        self._alpha = np.array(1, scalar)
        self._beta = np.array(1 if split.added else 0, scalar)
        # Column-major: D' = right' left', each operand's memory is its transpose.
        self._a, self._b = tensors[found.right[0]], tensors[found.left[0]]
        self._d = held.scratches[number]
        self._c = tensors[split.added] if split.added else self._d
        kinds = [_TYPES[name] for name in (row.dtype, row.dtype, result, result)]
        self._description = lt.matmul_desc_create(compute, _TYPES[scale])
        attribute = lt.MatmulDescAttribute
        self._set(attribute.TRANSA, int(found.right[1]), np.int32)
        self._set(attribute.TRANSB, int(found.left[1]), np.int32)
        self._set(attribute.EPILOGUE, int(lt.Epilogue[split.epilogue]), np.int32)
        if split.bias:
            self._set(attribute.BIAS_POINTER, held.timed[split.bias].data_ptr(), np.uint64)
        if row.dtype == "e4m3":  # the matrix unit's own sums, as polygen's are
            self._set(attribute.FAST_ACCUM, 1, np.int8)
        matrices = (self._a, self._b, self._c, self._d)
        self._layouts = [self._layout(k, t) for k, t in zip(kinds, matrices, strict=True)]
        self._integers = result == "s32"

    def _layout(self, kind: int, tensor: Any) -> int:
        """What a tensor's memory is, column-major; with a third axis a batch of matrices."""
        *batch, rows, columns = tensor.shape
        leading = max(tensor.stride(-2), columns)
        layout: int = self._lt.matrix_layout_create(kind, columns, rows, leading)
        if batch:
            name = self._lt.MatrixLayoutAttribute
            for attribute, held in (
                (name.BATCH_COUNT, np.array(batch[0], np.int32)),
                (name.STRIDED_BATCH_OFFSET, np.array(tensor.stride(0), np.int64)),
            ):
                self._lt.matrix_layout_set_attribute(
                    layout, int(attribute), held.ctypes.data, held.nbytes
                )
        return layout

    @property
    def result(self) -> Any:
        """The matrix that `launch` writes, in the type that it has there."""
        import torch  # noqa: PLC0415

        return self._d.view(torch.int32) if self._integers else self._d

    def _set(self, attribute: Any, value: int, kind: Any) -> None:
        held = np.array(value, kind)
        self._lt.matmul_desc_set_attribute(
            self._description, int(attribute), held.ctypes.data, held.nbytes
        )

    def algorithms(self, handle: int, workspace: int) -> list[Any]:
        """What the heuristic proposes, best first.

        Raises:
            RuntimeError: nothing fits.
        """
        lt = self._lt
        preference = lt.matmul_preference_create()
        limit = np.array(workspace, np.uint64)
        name = lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES
        lt.matmul_preference_set_attribute(preference, int(name), limit.ctypes.data, limit.nbytes)
        results = np.zeros(MOST_ALGORITHMS, lt.matmul_heuristic_result_dtype)
        count = np.zeros(1, np.int32)
        lt.matmul_algo_get_heuristic(
            handle, self._description, *self._layouts, preference, MOST_ALGORITHMS,
            results.ctypes.data, count.ctypes.data,
        )  # fmt: skip
        lt.matmul_preference_destroy(preference)
        found = [np.ascontiguousarray(results["algo"][i : i + 1]) for i in range(int(count[0]))]
        if not found:
            raise RuntimeError("cuBLASLt has no algorithm for this")
        return found

    def launch(self, handle: int, algorithm: Any, workspace: Any) -> Any:
        """Queue the product on PyTorch's current stream; gives the `result`."""
        import torch  # noqa: PLC0415

        a, b, c, d = self._layouts
        self._lt.matmul(
            handle, self._description, self._alpha.ctypes.data, self._a.data_ptr(), a,
            self._b.data_ptr(), b, self._beta.ctypes.data, self._c.data_ptr(), c,
            self._d.data_ptr(), d, algorithm.ctypes.data, workspace.data_ptr(), WORKSPACE,
            torch.cuda.current_stream().cuda_stream,
        )  # fmt: skip
        return self.result


# --- without nvmath -------------------------------------------------------------------------------
def through_torch(work: Any) -> Call:
    """The part of cuBLASLt that PyTorch's functions reach; the rest in place.

    Raises:
        BenchError: they reach it for one product of two matrices alone.
    """
    import torch  # noqa: PLC0415

    found = chain(work.row.operation)
    split = native(found, ranks_of(work.row))
    held, (z,) = work.operands.timed, work.operands.scratches
    if len(z.shape) > 2:
        raise BenchError("PyTorch's functions reach no batches of it", where="cuBLASLt")
    x, w = (held[n].t() if turned else held[n] for n, turned in (found.left, found.right))
    steps: tuple[Step, ...] = split.rest
    first_call: Callable[[], Any]
    if not by_operator(work.row.dtype):
        no_steps_in_place(work.row.dtype, found.steps)
        steps, multiply = found.steps, product(work.row.dtype)
        first_call = lambda: multiply(x, w, out=z)  # noqa: E731
    elif split.activation and split.bias and not split.added:
        gelu, bias = split.activation == "gelu", held[split.bias]
        first_call = lambda: torch._addmm_activation(bias, x, w, use_gelu=gelu)  # noqa: E731
    elif split.added or split.bias:
        first = split.added or split.bias
        steps = tuple(s for s in found.steps if first not in s.arguments)
        operand = held[str(first)]
        first_call = lambda: torch.addmm(operand, x, w, out=z)  # noqa: E731
    else:
        steps = found.steps
        first_call = lambda: _preferring_lt(torch, x, w, z)  # noqa: E731
    work.note("cublaslt", via="torch", steps_after=len(steps))
    rest = in_place(steps, held)
    return lambda: functools.reduce(lambda value, step: step(value), rest, first_call())


def _preferring_lt(torch: Any, x: Any, w: Any, z: Any) -> Any:
    prefer = torch.backends.cuda.preferred_blas_library
    before = prefer()
    prefer("cublaslt")
    try:
        return torch.mm(x, w, out=z)
    finally:
        prefer(before)
