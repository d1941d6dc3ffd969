"""In which type a product multiplies operands of which at least one is computed.

1. A computed operand meets one that is not: the type of that. What comes from arguments of bf16
   alone meets f16 in tf32, which keeps the numbers of both, and the other way round.
2. Both are computed: each comes from arguments, casts and other products of some types. The first
   type that both sides have; else the least that has the numbers of both. 8-bit types are never
   implied, and f32 only where a side has nothing else, or s32: what it computes with is no operand.
   Truth values are of no type, whatever was compared.
3. An operand that is said to be f32, ``(x * s).astype("f32")``: f32, unless the type found so far
   has all numbers of both operands as they are, ``x.astype("f32") @ w.astype("f32").T`` of bf16,
   which are then multiplied as what they are; or the other operand is an argument of tf32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from polygen.frontend.dtypes import BF16, BOOL, F16, F32, F64, S32, TF32, U8, DType
from polygen.frontend.nodes import ApplyNode, InputNode, Node, ProductNode, ViewNode, read_by
from polygen.frontend.outer_factors import HOLDS, is_held
from polygen.frontend.shapes import MATMUL_DTYPES, default_output

_PAIRED = (F16, BF16)
_LEAST_BITS = 16  # of a type that is implied


def multiplied_in(
    left: Node, right: Node, computed: Sequence[Node], *, in_groups: bool
) -> tuple[DType, bool]:
    """The type, and whether it has fewer bits than the f32 that an operand is said to be.

    Args:
        left: operand.
        right: operand.
        computed: those of them that are.
        in_groups: whether their rows are in groups, whose operands are multiplied as they are.
    """
    given = [node.dtype for node in (left, right) if node not in computed]
    kind = _beside(given[0], computed[0]) if given else _of_both(left, right)
    if in_groups:
        return given[0] if given else kind, False
    if kind in (F32, F64) or given == [TF32] or not any(map(said_f32, computed)):
        return kind, False
    kinds = (kind, BF16, F16) if kind.bits >= _LEAST_BITS else (BF16, F16)
    held = (one for one in kinds if all(_is_had(one, node) for node in (left, right)))
    kind = next(held, F32)
    return kind, kind != F32


def said_f32(node: Node) -> bool:
    """Whether an operand is a cast to f32, of whatever."""
    node = _source(node)
    return isinstance(node, ApplyNode) and node.function == "cast" and node.dtype == F32


def _source(node: Node) -> Node:
    return _source(node.source) if isinstance(node, ViewNode) else node


def _is_had(kind: DType, node: Node) -> bool:
    """Whether a type has all numbers of an operand."""
    if said_f32(node):
        source = _source(node)
        assert isinstance(source, ApplyNode)
        (node,) = source.args
    return node.dtype == BOOL or is_held(node, kind)


def _beside(given: DType, computed: Node) -> DType:
    own = {*_types(computed)}
    alone = not any(isinstance(one, ProductNode) for one in _behind(computed))
    return TF32 if alone and {given} | own == {*_PAIRED} != own else given


def _of_both(left: Node, right: Node) -> DType:
    first, second = _types(left), _types(right)
    common = [one for one in first if one in second]
    every = [own[0] for own in (first, second) if own]
    if not every:  # truth values alone
        common = [one for one in _types(left, compared=True) if one.bits >= _LEAST_BITS]
    if common or not every:
        return common[0] if common else F32
    if all(one.bits < _LEAST_BITS for one in every):
        return F32 if U8 in every else every[0]  # which is refused
    return next(one for one in HOLDS if all(kind in HOLDS[one] for kind in every))


def _types(node: Node, *, compared: bool = False) -> list[DType]:
    """The types that a computed operand comes from: 16 bits and more first, f32 if nothing else.

    Args:
        node: the operand.
        compared: whether what truth values come of counts.
    """
    found: list[DType] = []
    for one in _behind(node, compared=compared):
        said = isinstance(one, ApplyNode) and one.function == "cast"
        if isinstance(one, ProductNode):
            kind = one.operand
            found.append(TF32 if kind == TF32 else default_output(kind, bare=False))
        elif isinstance(one, InputNode) and one.dtype == S32:
            found.append(F32)
        elif one.dtype in (
            _PAIRED if said else MATMUL_DTYPES if isinstance(one, InputNode) else ()
        ):
            found.append(one.dtype)
    wide = [one for one in found if one.bits >= _LEAST_BITS and one != F32]
    narrow = [one for one in found if one.bits < _LEAST_BITS]
    return list(dict.fromkeys(wide or narrow or found))


def _behind(root: Node, *, compared: bool = False) -> Iterator[Node]:
    """What a value is computed from, itself first, each once, in the order of the text; not what
    products multiply, nor what truth values come of.
    """
    stack, seen = [root], set[Node]()
    while stack:
        node = stack.pop()
        if node in seen or (node.dtype == BOOL and not compared):
            continue
        seen.add(node)
        yield node
        if not isinstance(node, ProductNode):
            stack.extend(reversed(read_by(node)))
