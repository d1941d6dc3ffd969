"""In which type the operands of a product are multiplied, and the rounding of computed ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from polygen.errors import DTypeError
from polygen.frontend.describing import describe
from polygen.frontend.dtypes import BF16, BOOL, F16, F32, TF32, DType
from polygen.frontend.multiplied import multiplied_in, said_f32
from polygen.frontend.nodes import (
    ApplyNode,
    GroupNode,
    InputNode,
    Node,
    ProductNode,
    ScalarNode,
    ViewNode,
    walk,
)
from polygen.frontend.outer_factors import Factors, without_factors
from polygen.frontend.scaled import scaled_types
from polygen.frontend.shapes import MATMUL_DTYPES, ProductAxes

if TYPE_CHECKING:
    from polygen.frontend.trace import Trace


@dataclass(frozen=True, slots=True)
class Rounded:
    """How a product multiplies its operands.

    Attributes:
        left: operand.
        right: operand.
        kinds: the types in which they are multiplied.
        factors: what multiplies their sums.
        wide: whether they are said to be f32, and multiplied in a type of fewer bits that has all
            their numbers.
    """

    left: Node
    right: Node
    kinds: tuple[DType, DType]
    factors: Factors = ()
    wide: bool = False


def rounded(
    trace: Trace,
    left: Node,
    right: Node,
    axes: ProductAxes,
    text: str,
    *,
    in_groups: bool = False,
    whole: bool = True,
) -> Rounded:
    """Both operands as they are multiplied.

    In which type computed ones are, `polygen.frontend.multiplied` says; 8-bit types are never
    implied, since what they lose is the caller's to choose. f16 meets bf16 in tf32, which keeps
    both as they are; not in groups of rows, all of which an operand that is computed would have to
    be. Of a `whole` sum, factors of computed operands that it does not index are no part of them
    (`polygen.frontend.outer_factors`).
    """
    computed = [node for node in (left, right) if _is_computed(node)]
    given = [node.dtype for node in (left, right) if node not in computed]
    if not computed and not in_groups and {left.dtype, right.dtype} == {F16, BF16}:
        # No instruction takes both. A tf32 holds all numbers of either, as f32 does.
        sides = [_operand(trace, node, F32) for node in (left, right)]
        return Rounded(sides[0], sides[1], (TF32, TF32))
    if not computed:
        return Rounded(left, right, (left.dtype, right.dtype))
    scaled = scaled_types(left, right)
    if scaled is not None:
        return Rounded(left, right, scaled, wide=any(map(said_f32, computed)))
    kind, wide = multiplied_in(left, right, computed, in_groups=in_groups)
    if kind not in MATMUL_DTYPES or kind.bits < 16:
        operand = describe(computed[0])
        reason = f"the other operand is {kind}" if given else f"it comes from {kind}"
        implied = "only 16-bit types, tf32, f32 and f64 are implied"
        raise DTypeError(
            f"{text}: the computed operand {operand} is {computed[0].dtype}",
            why=f"{reason}; {implied}",
            nearest=_nearest(operand, computed[0], kind, bool(given)),
        )
    sides = []
    factors: Factors = ()
    for node, labels in ((left, axes.lhs), (right, axes.rhs)):
        other = node in computed or node.dtype != kind
        if node in computed:
            summed = frozenset(at for at, label in enumerate(labels) if label >= len(axes.dims))
            node, own = without_factors(trace, node, summed, kind) if whole else (node, ())
            factors += tuple((one, labels) for one in own)
        # f32 is how tf32 is stored
        if other and (kind != TF32 or node.dtype not in (F32, TF32)):
            node = _operand(trace, node, F32 if kind == TF32 else kind)
        sides.append(node)
    return Rounded(sides[0], sides[1], (kind, kind), factors, wide)


def _nearest(operand: str, node: Node, kind: DType, given: bool) -> str:
    """What is written in the place of a computed operand whose type nothing says.

    Args:
        operand: the operand, for people.
        node: the operand.
        kind: the type that it meets, or comes from.
        given: whether the other operand is one that is not computed.
    """
    in_bf16 = f'Write ({operand}).astype("{BF16}")'
    behind = [one for one in walk(node, products=False) if isinstance(one, ProductNode)]
    if kind == F32 or any(min(kind.bits, one.operand.bits) < BF16.bits for one in behind):
        return f"Return {operand} from one function, and multiply it in a second"
    return f'{in_bf16}, and .astype("{BF16}") behind the other operand' if given else in_bf16


def _operand(trace: Trace, node: Node, kind: DType) -> Node:
    """A computed operand rounded; views stay outermost, so that one value serves them all."""
    if isinstance(node, ViewNode):
        return trace.reach(_operand(trace, node.source, kind), node.reaches, node.dims)
    inner = node.args[0] if isinstance(node, ApplyNode) and said_f32(node) else node
    return trace.cast(inner if inner.dtype == kind else node, kind)


def _is_computed(node: Node) -> bool:
    """Whether an operand has to be rounded: its values are f32 or bool, and no argument's."""
    source = node.source if isinstance(node, ViewNode) else node
    given = isinstance(source, (InputNode, ScalarNode, GroupNode))
    return not given and node.dtype in (F32, BOOL)
