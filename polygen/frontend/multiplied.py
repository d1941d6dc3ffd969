"""In which type a product multiplies operands of which at least one is computed.

1. A computed operand meets one that is not: the type of that. What comes from arguments of bf16
   alone meets f16 in tf32, which keeps the numbers of both, and the other way round.
2. Both are computed: each comes from arguments, casts and other products of some types. The first
   type that both sides have; else the least that has the numbers of both. 8-bit types are never
   implied, and f32 only where a side has nothing else: what it computes with is no operand.
3. An operand that is said to be f32, ``(x * s).astype("f32")``: f32, unless the type found so far
   has all numbers of both operands as they are, ``x.astype("f32") @ w.astype("f32").T`` of bf16,
   which are then multiplied as what they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from polygen.frontend.dtypes import BF16, BOOL, F16, F32, TF32, U8, DType
from polygen.frontend.nodes import ApplyNode, InputNode, Node, ProductNode, ViewNode, walk
from polygen.frontend.outer_factors import HOLDS, is_held
from polygen.frontend.shapes import MATMUL_DTYPES, default_output

_PAIRED = (F16, BF16)
_IMPLYING = tuple(one for one in MATMUL_DTYPES if one != U8)
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
    if kind in (*_PAIRED, F32, TF32) or kind.bits < _LEAST_BITS:
        said = any(map(said_f32, computed))
        if said and kind not in (F32, TF32):
            kinds = (kind, *_PAIRED[::-1]) if kind.bits >= _LEAST_BITS else _PAIRED[::-1]
            held = (one for one in kinds if all(_has(one, node) for node in (left, right)))
            kind = next(held, F32)
        return kind, said and kind != F32
    return kind, False


def said_f32(node: Node) -> bool:
    """Whether an operand is a cast to f32, of whatever."""
    node = _source(node)
    return isinstance(node, ApplyNode) and node.function == "cast" and node.dtype == F32


def _source(node: Node) -> Node:
    return _source(node.source) if isinstance(node, ViewNode) else node


def _has(kind: DType, node: Node) -> bool:
    """Whether a type has all numbers of an operand."""
    if said_f32(node):
        source = _source(node)
        assert isinstance(source, ApplyNode)
        (node,) = source.args
    return node.dtype == BOOL or is_held(node, kind)


def _beside(given: DType, computed: Node) -> DType:
    own = {*_types(computed)}
    alone = not any(isinstance(one, ProductNode) for one in walk(computed, products=False))
    return TF32 if alone and {given} | own == {*_PAIRED} != own else given


def _of_both(left: Node, right: Node) -> DType:
    first, second = _types(left), _types(right)
    common = [one for one in first if one in second]
    every = [own[0] for own in (first, second) if own]
    if common or not every:
        return common[0] if common else F32
    if all(one.bits < _LEAST_BITS for one in every):
        return every[0]  # which is refused
    wide = [one for one in (*_PAIRED, *every, F32) if one.bits >= _LEAST_BITS]
    holding = (one for one in wide if all(kind in HOLDS.get(one, ()) for kind in every))
    return TF32 if {*every} == {*_PAIRED} else next(holding, every[0])


def _types(node: Node) -> list[DType]:
    """The types that a computed operand comes from: 16 bits and more first, f32 if nothing else."""
    found: list[DType] = []
    for one in walk(node, products=False):
        said = isinstance(one, ApplyNode) and one.function == "cast"
        if isinstance(one, ProductNode):
            kind = one.operand
            found.append(TF32 if kind == TF32 else default_output(kind, bare=False))
        elif one.dtype in (_PAIRED if said else _IMPLYING if isinstance(one, InputNode) else ()):
            found.append(one.dtype)
    wide = [one for one in found if one.bits >= _LEAST_BITS and one != F32]
    narrow = [one for one in found if one.bits < _LEAST_BITS]
    return list(dict.fromkeys(wide or narrow or found))
