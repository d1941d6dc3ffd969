"""Recorded products with pointwise work around them, as kernels of polygen.

The graph is translated for the rules of `polygen.adapters.rules`, which find groups; a group is
taken if it is legal and, by the cost model, wins. Only products of types that tensor cores multiply
without loss to what NumPy promises are recorded at all: float16, and float32 where the user allows
tf32. Numbers in a group are constants of its kernel.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from polygen.adapters.gain import predicted, unknown
from polygen.adapters.graphs import Graph, Group, Node
from polygen.adapters.groups import groups, program_of, refused
from polygen.adapters.kernels import stored
from polygen.adapters.legality import refusal
from polygen.adapters.numpy.operations import Operation
from polygen.adapters.numpy.planning import Taken
from polygen.adapters.numpy.settings import Settings
from polygen.adapters.numpy.steps import Member
from polygen.adapters.rules import PATTERNS
from polygen.errors import PolygenError
from polygen.frontend.dtypes import BF16, BOOL, F16, F32, DType
from polygen.frontend.functions import PUBLIC
from polygen.frontend.names import ALIASES
from polygen.frontend.program import Program
from polygen.runtime.arrays import storage_order

_TYPES = {"float16": F16, "bfloat16": BF16, "float32": F32, "bool": BOOL}
_NARROW = frozenset([np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)])
_MOST_RECORDS = 256
_LONGEST_NAME = 60
_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "true_divide": operator.truediv,
    "negative": operator.neg,
    "power": operator.pow,
    "positive": lambda x: x,
    "invert": PUBLIC["logical_not"],  # of truth values, the only ones of whole numbers in kernels
    "bitwise_and": PUBLIC["logical_and"],
    "bitwise_or": PUBLIC["logical_or"],
}


@dataclass(frozen=True, slots=True)
class Record:
    """What became of one group.

    Attributes:
        computes: its operations, and the shape of its products.
        taken: whether it is a kernel.
        why: the gain, or what was against it.
    """

    computes: str
    taken: bool
    why: str

    def __str__(self) -> str:
        return f"{'taken' if self.taken else 'left '}  {self.computes}: {self.why}"


records: deque[Record] = deque(maxlen=_MOST_RECORDS)


def multiplied(dtype: np.dtype[Any], settings: Settings) -> bool:
    """Whether kernels may have products of this type."""
    if settings.take == "never":
        return False
    return dtype in _NARROW or (settings.tf32 and dtype == np.float32)


def taken(
    members: Sequence[Member], kept: frozenset[int], values: Sequence[Any],
    numbers: Mapping[int, Any], backend: Any, settings: Settings,
) -> list[Taken]:  # fmt: skip
    """The groups of a graph that are kernels.

    Args:
        members: the graph, each operation after what it reads.
        kept: slots whose values are wanted.
        values: of the first slots: arrays, and numbers.
        numbers: these, by slot.
        backend: for which the kernels are.
        settings: how groups are decided.
    """
    graph = _translated(members, kept, values, numbers).with_patterns(PATTERNS)
    found = []
    for group in groups(graph):
        names = "_".join(t for t in (graph[n].text for n in group.members) if t)[:_LONGEST_NAME]
        computes = f"{names.replace('_', ', ')} over {' x '.join(map(str, group.domain))}"
        try:
            program, sizes = program_of(graph, group, names, allow_tf32=settings.tf32)
            why = _against(graph, group, program, sizes, values, backend, settings)
        except PolygenError as error:
            records.append(Record(computes, False, refused(error)))
            continue
        records.append(Record(computes, why[0], why[1]))
        if why[0]:
            found.append(_kernel(graph, group, program, sizes, backend))
    return found


def _against(
    graph: Graph, group: Group, program: Program, sizes: dict[str, Any], values: Sequence[Any],
    backend: Any, settings: Settings,
) -> tuple[bool, str]:  # fmt: skip
    """Whether a group is taken, and why.

    Raises:
        PolygenError: no kernel can be made of it.
    """
    reason = refusal(program)
    if reason is not None:
        raise reason
    if settings.take == "legal":
        return True, "legal"
    device = backend.device()
    if device is None:
        return False, "there is no GPU to predict it for"
    program = stored(program, [_order(values, name, shape) for name, shape in group.operands])
    why = unknown(program, sizes)
    if why:
        return False, why
    gain = predicted(program, device, sizes)
    return gain.ratio >= settings.threshold, f"predicted {gain}"


def _order(values: Sequence[Any], name: str, shape: tuple[Any, ...]) -> tuple[int, ...]:
    """The axes of an operand, the contiguous one last; what is still to be computed has rows."""
    slot = int(name)
    array = values[slot] if slot < len(values) else None
    if array is None or array.shape != shape:
        return tuple(range(len(shape)))
    return storage_order(shape, [stride // array.itemsize for stride in array.strides])


def _kernel(
    graph: Graph, group: Group, program: Program, sizes: dict[str, Any], backend: Any
) -> Taken:
    shapes = [tuple(map(int, shape)) for _, shape in group.operands]
    wanted = [tuple(map(int, graph[name].shape)) for name in group.outputs]

    def run(*arrays: Any) -> Any:
        shaped = [
            array if array.shape == shape else array.reshape(shape)
            for array, shape in zip(arrays, shapes, strict=True)
        ]
        found = [
            value if value.shape == shape else value.reshape(shape)
            for value, shape in zip(backend.launch(program, sizes, shaped), wanted, strict=True)
        ]
        return found[0] if len(found) == 1 else tuple(found)

    return Taken(
        frozenset(map(int, group.members)),
        tuple(int(name) for name, _ in group.operands),
        tuple(map(int, group.outputs)),
        run,
    )


# --- the graph, as the rules see it ---------------------------------------------------------------
def _translated(
    members: Sequence[Member], kept: frozenset[int], values: Sequence[Any],
    numbers: Mapping[int, Any],
) -> Graph:  # fmt: skip
    nodes: dict[str, Node] = {}
    for slot, value in enumerate(values):
        if slot not in numbers:
            kind = _TYPES.get(value.dtype.name)
            nodes[str(slot)] = Node(str(slot), "other", (), tuple(value.shape), kind)
    for member in members:
        nodes[str(member.slot)] = _node(member, numbers)
    return Graph(nodes, frozenset(map(str, kept)))


def _node(member: Member, given: Mapping[int, Any]) -> Node:
    one, name = member.operation, str(member.slot)
    numbers = {slot: float(given[slot]) for slot in member.reads if slot in given}
    reads = tuple(str(slot) for slot in member.reads if slot not in numbers)
    kind: DType | None = _TYPES.get(one.dtype.name)
    if one.kind == "product":
        return Node(name, "product", reads, one.shape, kind, operator.matmul, text="matmul")
    call = _meaning(one)
    if call is None or kind is None:
        return Node(name, "other", reads, one.shape, kind)

    def compute(*arrays: Any) -> Any:
        given = iter(arrays)
        return call(*(numbers[s] if s in numbers else next(given) for s in member.reads))

    text = ALIASES.get(one.name, one.name)
    return Node(
        name, "pointwise", reads, one.shape, kind, compute, one.name == "astype",
        text, tuple(numbers.values()),
    )  # fmt: skip


def _meaning(one: Operation) -> Callable[..., Any] | None:
    """A pointwise operation on arrays of polygen's vocabulary; None: it has no such meaning."""
    if one.kind != "pointwise" or any(dtype.name not in _TYPES for dtype in one.loop):
        return None
    if one.name == "astype":
        source = one.loop[0]
        if (source == np.bool_) == (one.dtype == np.bool_):
            return lambda x: x  # what is rounded counts only where it leaves the kernel
        return (lambda x: x.astype("f32")) if source == np.bool_ else None
    if one.name in ("invert", "bitwise_and", "bitwise_or") and one.dtype != np.bool_:
        return None
    return _OPERATORS.get(one.name) or PUBLIC.get(ALIASES.get(one.name, one.name))
