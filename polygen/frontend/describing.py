"""Nodes as a person would write them, for messages."""

from __future__ import annotations

from dataclasses import replace

from polygen.frontend.dtypes import DType
from polygen.frontend.nodes import (
    GROUPED,
    ApplyNode,
    CoordinateNode,
    ExtentNode,
    FoldNode,
    GroupNode,
    InputNode,
    JoinNode,
    Node,
    ProductNode,
    ScalarNode,
    ViewNode,
)

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**"}
_INFIX |= {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_WRITTEN = {"deviations": "var"}  # folds of which people write what is made of them
_SUM, _PRODUCT, _POWER, _ATOM = 1, 2, 3, 4  # how tightly an operator binds; comparisons 0
_BINDING = {"add": _SUM, "sub": _SUM, "mul": _PRODUCT, "div": _PRODUCT, "pow": _POWER}


def describe(node: Node, depth: int = 3) -> str:
    """The expression as a person would write it, for messages; deeper parts become ``…``."""
    if isinstance(node, InputNode):
        return node.tensor.name
    if isinstance(node, ScalarNode):
        return f"{node.value:g}"
    if isinstance(node, CoordinateNode):
        return f"indices(…)[{node.axis}]"
    if isinstance(node, ExtentNode):
        return f"size({', '.join(map(str, node.extents))})"
    if isinstance(node, GroupNode):
        return f"per_group({node.source.tensor.name}, {node.ends.tensor.name}, …)"
    if depth == 0:
        return "…"
    if isinstance(node, FoldNode):
        axis = ", ".join(map(str, node.axes))
        axis = f"({axis})" if len(node.axes) > 1 else axis
        name = _WRITTEN.get(node.function, node.function)
        return f"{name}({describe(node.value, depth - 1)}, axis={axis})"
    if isinstance(node, ProductNode):
        return describe_product(node.notation, node.lhs, node.rhs, depth)
    if isinstance(node, ViewNode):
        return _describe_view(node, depth)
    if isinstance(node, JoinNode):
        parts = ", ".join(describe(part, depth - 1) for part in node.parts)
        return f"concatenate([{parts}], axis={node.axis})"
    if node.function == "cast":
        return describe_cast(node.args[0], node.dtype, depth)
    if node.function in _INFIX:
        binding = _BINDING.get(node.function, 0)
        left = _operand(node.args[0], depth, binding)
        right = _operand(node.args[1], depth, binding + 1)
        return f"{left} {_INFIX[node.function]} {right}"
    if node.function.startswith("nibble_"):  # of bytes that are repeated
        (packed, _), kind = node.args, node.function.removeprefix("nibble_")
        source = packed.source if isinstance(packed, ViewNode) else packed
        return f'unpack({describe(source, depth - 1)}, "{kind}")'
    return f"{node.function}({', '.join(describe(arg, depth - 1) for arg in node.args)})"


def describe_cast(node: Node, dtype: DType, depth: int = 3) -> str:
    """A cast as a person would write it, for messages."""
    return f'{_operand(node, depth, _ATOM)}.astype("{dtype}")'


def describe_product(notation: str, lhs: Node, rhs: Node, depth: int = 3) -> str:
    """A product of two operands as a person would write it, for messages."""
    if notation == GROUPED:
        return f"{GROUPED}({describe(lhs, depth - 1)}, {describe(rhs, depth - 1)}, …)"
    if notation != "@":
        operands = ", ".join(describe(operand, depth - 1) for operand in (lhs, rhs))
        return f'einsum("{notation}", {operands})'
    return f"{_operand(lhs, depth, _PRODUCT)} @ {_operand(rhs, depth, _PRODUCT + 1)}"


def _describe_view(node: ViewNode, depth: int) -> str:
    """A view as subscripts in the order of the source's axes, then the order of its own."""
    text = _operand(node.source, depth, _ATOM)
    named = [reach for reach in node.reaches if reach.rows is not None and reach.places]
    if named:  # by an array of several axes
        text = f"{text}[{named[0].rows.tensor.name}]"  # type: ignore[union-attr]
        plain = all(len(form.terms) == 1 and form.only for form in named[0].places)
        return text if plain else f"{text}.reshape({', '.join(map(str, node.dims))})"
    forms = [reach.form for reach in node.reaches if reach.form is not None]
    if any(form.padded or form.overlaps(dict(enumerate(node.dims))) for form in forms):
        return f"windows({text})" if len(node.dims) > len(node.reaches) else f"pad({text})"
    if forms:
        return f"{text}.reshape({', '.join(map(str, node.dims))})"
    for axis, reach in enumerate(node.reaches):
        if reach.per > 1 and reach.axis is not None:
            reaches, dims = list(node.reaches), list(node.dims)
            size = dims[reach.axis]
            reaches[axis] = replace(reach, per=1)
            dims[reach.axis] = size if isinstance(size, str) else size // reach.per
            once = ViewNode(node.source, tuple(reaches), tuple(dims))
            whole = dims == list(node.source.dims) and node.axes == tuple(range(len(dims)))
            text = describe(node.source if whole else once, depth)
            return f"repeat({text}, {reach.per}, axis={reach.axis})"
    kept = [axis for axis in node.axes if axis is not None]
    if kept == sorted(kept):
        items = []
        position = 0
        for axis, reach in enumerate(node.reaches):
            if reach.axis is not None:
                items += ["None"] * (reach.axis - position)
                position = reach.axis + 1
            items.append(_subscript(node, axis))
        items += ["None"] * (len(node.dims) - position)
        return f"{text}[{', '.join(items)}]"
    items = [_subscript(node, axis) for axis in range(len(node.reaches))]
    if set(items) != {":"}:
        text += f"[{', '.join(items)}]"
    remaining = sorted(kept)
    order = [remaining.index(axis) for axis in kept]
    if len(order) == 2:
        text += ".T"
    elif order == [*range(len(order) - 2), len(order) - 1, len(order) - 2]:
        text += ".mT"
    else:
        text += f".transpose({', '.join(map(str, order))})"
    if None in node.axes:
        new = ("None" if axis is None else ":" for axis in node.axes)
        text += f"[{', '.join(new)}]"
    return text


def _subscript(node: ViewNode, axis: int) -> str:
    """What a view takes of an axis of its source, as a subscript."""
    reach, extent = node.reaches[axis], node.source.dims[axis]
    if reach.rows is not None:
        return reach.rows.tensor.name
    if reach.axis is None:
        return str(reach.offset)
    size = node.dims[reach.axis]
    if isinstance(size, str) or isinstance(extent, str) or (size, reach.scale) == (extent, 1):
        return ":"
    stop = reach.offset + reach.scale * size
    start = str(reach.offset) if reach.offset != (0 if reach.scale > 0 else extent - 1) else ""
    end = str(stop) if 0 <= stop < extent else ""
    return f"{start}:{end}" + (f":{reach.scale}" if reach.scale != 1 else "")


def _operand(node: Node, depth: int, binding: int) -> str:
    """An operand in brackets where it binds less tightly than its operator."""
    own = _ATOM
    if isinstance(node, ProductNode):
        own = _PRODUCT if node.notation == "@" else _ATOM
    elif isinstance(node, ApplyNode) and node.function in _INFIX:
        own = _BINDING.get(node.function, 0)
    text = describe(node, depth - 1)
    return f"({text})" if own < binding and text != "…" else text
