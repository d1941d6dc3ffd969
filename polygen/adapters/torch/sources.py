"""What the operands of a product of matrices are views of.

PyTorch multiplies stacks of matrices as one axis of matrices: what has batches and heads is
expanded, copied where it has to be, and viewed. Kernels read any strides and broadcast, so that an
operand is followed back to the tensor that it shows, and no copy is made:

1. Views of the leading axes, expansions, copies and exchanges of the last two axes are undone.
2. Heads that are repeated, ``[B, K, 1, T, D]`` expanded to ``[B, K, G, T, D]`` and viewed as
   ``[B, K * G, T, D]``, are the tensor with one head a group.
3. A factor that is a number, and a cast to a wider type, are put aside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node as FxNode

from polygen.adapters.graphs import Shape, same
from polygen.adapters.torch.aten import VIEWS, name_of

_SAME = ("clone", "alias", "contiguous", "expand")
_NARROW = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Source:
    """The tensor that an operand shows.

    Attributes:
        node: whose value it is.
        shape: in which it is read: leading axes as asked for, or 1 where it is broadcast; with
            `group` above 1, one more axis of extent 1 behind the heads that it has.
        swapped: whether its last two axes are exchanged in the operand.
        group: how many heads of the operand show one of its own.
        factor: by which it is multiplied.
    """

    node: FxNode
    shape: Shape
    swapped: bool = False
    group: int = 1
    factor: float = 1.0


def sources(node: FxNode, lead: Shape) -> list[Source]:
    """All tensors that an operand shows, the nearest first.

    Args:
        node: the operand, of matrices.
        lead: the leading axes that it is to have.

    Returns:
        At least one: the operand itself, perhaps in another shape.
    """
    matrix = shape_of(node)[-2:]
    found = [Source(node, (*lead, *matrix))]
    swapped, factor, at = False, 1.0, node
    while True:
        shape = shape_of(at)
        if _shows(shape[:-2], lead):
            found.append(Source(at, shape, swapped, 1, factor))
        name, before = name_of(at), at.args[0] if at.args else None
        if not isinstance(before, FxNode) or not isinstance(before.meta.get("val"), torch.Tensor):
            return found
        if name in VIEWS:
            repeated = _repeated(before, shape, lead)
            if repeated is not None:
                own, group = repeated
                shape = shape_of(own)
                if name_of(own) == "unsqueeze":
                    own = own.args[0]
                narrow = _widened(own)
                found.append(Source(narrow or own, shape, swapped, group, factor))
                return found
            if not same(shape_of(before)[-2:], shape[-2:]):
                return found
        elif name in ("permute", "transpose"):
            if permutation(at) != _exchanging(len(shape)):
                return found
            swapped = not swapped
        elif name == "mul" and _number(at.args[1]):
            factor *= float(at.args[1])
        elif _widened(at) is not None:
            pass
        elif name not in _SAME or len(shape_of(before)) != len(shape):
            return found
        at = before


def shape_of(node: FxNode) -> Shape:
    """The shape of a node's value."""
    return tuple(node.meta["val"].shape)


def broadcast_axes(value: torch.Tensor) -> list[int]:
    """The axes along which a tensor is broadcast: all of their indices are one element."""
    pairs = enumerate(zip(value.shape, value.stride(), strict=True))
    return [axis for axis, (extent, step) in pairs if same((step,), (0,)) and extent != 1]


def _shows(own: Shape, lead: Shape) -> bool:
    """Whether axes are those asked for, or broadcast."""
    return len(own) == len(lead) and all(
        str(a) in ("1", str(b)) for a, b in zip(own, lead, strict=True)
    )


def _repeated(node: FxNode, shape: Shape, lead: Shape) -> tuple[FxNode, int] | None:
    """What has one head for each group of a view of heads, and how many a group has."""
    while name_of(node) in ("clone", "contiguous"):
        assert isinstance(node.args[0], FxNode)
        node = node.args[0]
    wide = shape_of(node)
    if name_of(node) != "expand" or len(wide) != len(shape) + 1 or len(lead) + 2 != len(shape):
        return None
    own = node.args[0]
    assert isinstance(own, FxNode)
    before, group = shape_of(own), wide[-3]
    joined = same((*wide[:-4], wide[-4] * group, *wide[-2:]), shape)
    one_each = same((*wide[:-3], 1, *wide[-2:]), before)
    return (own, group) if joined and one_each and isinstance(group, int) else None


def permutation(node: FxNode) -> tuple[int, ...]:
    """The axes of its argument that a permutation's are; of any other node (), which is none."""
    rank = len(shape_of(node)) if isinstance(node.meta.get("val"), torch.Tensor) else 0
    if name_of(node) == "permute":
        return tuple(int(axis) % rank for axis in node.args[1])
    if name_of(node) != "transpose":
        return ()
    first, second = (int(axis) % rank for axis in node.args[1:3])
    changed = {first: second, second: first}
    return tuple(changed.get(axis, axis) for axis in range(rank))


def _exchanging(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


def _widened(node: FxNode) -> FxNode | None:
    """What a node casts to a wider type; None: it is no such cast."""
    before = node.args[0] if name_of(node) in ("convert_element_type", "_to_copy") else None
    narrow = isinstance(before, FxNode) and before.meta["val"].dtype in _NARROW
    return before if narrow else None


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
