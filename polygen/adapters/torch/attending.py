"""Attention in a graph of PyTorch -> launches of kernels, where that is legal and predicted to win.

1. Operands are followed back to the tensors that they show (`polygen.adapters.torch.sources`), so
   that heads in rows and heads in groups are read where they are.
2. The program is traced, then refused, priced or measured, and compiled, as that of a group.
3. The result is stored as PyTorch's kernel would store it, or as its only reader wants it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.fx import Graph as FxGraph
from torch.fx import Node as FxNode

from polygen.adapters.attention import Attention, in_groups
from polygen.adapters.chain_gain import predicted_chain
from polygen.adapters.forms import Form, most_general
from polygen.adapters.gain import Gain
from polygen.adapters.graphs import Graph, Shape, same
from polygen.adapters.groups import multiplied_as, refused
from polygen.adapters.kernels import stored
from polygen.adapters.legality import refusal
from polygen.adapters.torch import tensors
from polygen.adapters.torch.aten import name_of
from polygen.adapters.torch.attentions import Found, calls, written
from polygen.adapters.torch.launching import text_of
from polygen.adapters.torch.measuring import measured_attention
from polygen.adapters.torch.placing import caller, hint, shaped, sort
from polygen.adapters.torch.running import KERNELS
from polygen.adapters.torch.settled import Record, Settings
from polygen.adapters.torch.sources import Source, broadcast_axes, permutation, shape_of, sources
from polygen.adapters.torch.tensors import KNOWN, same_extent
from polygen.api import target
from polygen.chained import with_numbers
from polygen.errors import PolygenError, UnsupportedProgram
from polygen.frontend.build import build_program
from polygen.frontend.dtypes import F32, TF32, DType
from polygen.frontend.program import Program, Tensor
from polygen.runtime.arrays import storage_order

_MULTIPLIED = ("query", "key", "value")


def attend(graph: FxGraph, translated: Graph, settings: Settings) -> list[Record]:
    """Replace attention in a graph by launches.

    Args:
        graph: of ATen's operations on fake tensors; changed in place.
        translated: the same, by `polygen.adapters.torch.aten`.
        settings: how it is decided what is taken.

    Returns:
        What became of each, kernels of PyTorch first.
    """
    records = []
    for found in [*calls(graph), *written(graph, translated)]:
        names = tuple(node.name for node in found.members)
        try:
            plan = _Plan.of(found)
            taken, why = _decided(plan, settings)
            if taken:
                _replace(graph, plan)
            records.append(Record(names, str(found), taken, why))
        except PolygenError as error:
            records.append(Record(names, str(found), False, refused(error)))
    if any(record.taken for record in records):
        sort(graph)
        graph.lint()
    return records


@dataclass(frozen=True, slots=True)
class _Operand:
    """An array that a kernel reads: a node's value, in another shape, broadcast axes as one."""

    node: FxNode
    shape: Shape
    broadcast: tuple[int, ...] = ()

    @property
    def value(self) -> torch.Tensor:
        """What the kernel gets, as in the trace."""
        found: torch.Tensor = self.node.meta["val"]
        for axis in self.broadcast:
            found = found.narrow(axis, 0, 1)
        return found if same(tuple(found.shape), self.shape) else found.reshape(self.shape)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Attention, its operands as a kernel reads them, and where its result goes."""

    found: Found
    operands: tuple[_Operand, ...]
    function: Attention
    result: FxNode
    program: Program
    sizes: dict[str, int]
    exact: bool

    @staticmethod
    def of(found: Found) -> _Plan:
        """The plan.

        Raises:
            PolygenError: no kernel can be made of it.
        """
        if found.refused:
            raise UnsupportedProgram("attention is left to PyTorch", why=found.refused)
        operands, function, group = _read(found)
        result, order = _result(found)
        function = replace(function, order=_order(order, found.lead, group))
        values = [one.value for one in operands]
        exact = all(v.dtype == torch.float64 and v.device.type == "cpu" for v in values[:3])
        types = [_type(value, exact, place) for place, value in enumerate(values)]
        kind = result.meta["val"].dtype
        if kind != values[0].dtype:
            raise UnsupportedProgram(
                f"the result is {kind}, of operands that are {values[0].dtype}",
                why="a kernel rounds the weights to its operands' type",
                nearest="Leave the casts away",
            )
        forms = [
            Form(f"a{place}", kind, one.shape)
            for place, (kind, one) in enumerate(zip(types, operands, strict=True))
        ]

        def trace(tensors: Sequence[Tensor]) -> Program:
            return build_program(function, "attention", str(found), tensors, [_stored(result)])

        program, extents = most_general(trace, forms, same_extent)
        sizes = {dim: hint(extent) for dim, extent in extents.items()}
        return _Plan(found, tuple(operands), function, result, program, sizes, exact)


def _type(value: torch.Tensor, exact: bool, place: int) -> DType:
    """The type in which a kernel reads an array.

    Raises:
        PolygenError: it reads none of that type, or f32 may not be multiplied as tf32.
    """
    multiplied = place < len(_MULTIPLIED)
    if exact and value.dtype == torch.float64:
        return TF32 if multiplied else F32
    found = KNOWN.get(value.dtype)
    if found is None:
        raise UnsupportedProgram(f"an array beside the scores is {value.dtype}")
    if not multiplied:
        return found
    allowed = torch.get_float32_matmul_precision() != "highest"
    return multiplied_as(found, _MULTIPLIED[place], "attention", allow_tf32=allowed)


def _stored(result: FxNode) -> DType:
    kind = result.meta["val"].dtype
    return F32 if kind == torch.float64 else KNOWN[kind]


# --- operands and result --------------------------------------------------------------------------
def _read(found: Found) -> tuple[list[_Operand], Attention, int]:
    """The arrays that a kernel reads, the array code of them, and how many heads share keys."""
    shown = [
        sources(node, shape_of(node)[:-2] if found.library else found.lead)
        for node in found.operands
    ]
    groups = [max(one.group for one in each) for each in shown[1:]]
    group = groups[0] if groups[0] == groups[1] else 1
    own = _of_call(found) if found.library else 1
    picked = [_picked(each, wanted) for each, wanted in zip(shown, (1, group, group), strict=True)]
    operands = []
    for place, source in enumerate(picked):
        if place == 0:
            shape = in_groups(source.shape, group * own)
        elif own > 1 and group == 1:
            lead, heads = source.shape[:-3], source.shape[-3]
            shape = (*lead, heads, 1, *source.shape[-2:])
        else:
            shape = source.shape
        operands.append(_Operand(source.node, shape))
    factor = picked[0].factor * picked[1].factor
    if picked[2].factor != 1.0:
        raise UnsupportedProgram("the values are multiplied by a number before the product")
    swapped = (picked[0].swapped, picked[1].swapped != found.swapped, picked[2].swapped)
    for node in found.arrays:
        value = node.meta["val"]
        axes = tuple(broadcast_axes(value))
        shape = tuple(1 if axis in axes else e for axis, e in enumerate(value.shape))
        operands.append(_Operand(node, in_groups(shape, group * own), axes))
    return operands, Attention(found.weights, swapped, factor), group * own


def _of_call(found: Found) -> int:
    """How many heads of a call's queries have one of its keys and values."""
    heads, keys, values = (shape_of(node)[-3] for node in found.operands)
    if same((heads, heads), (keys, values)):
        return 1
    if not all(isinstance(one, int) for one in (heads, keys, values)) or keys != values:
        raise UnsupportedProgram(f"{heads} heads of queries, {keys} of keys, {values} of values")
    return int(heads // keys)


def _picked(shown: Sequence[Source], group: int) -> Source:
    """The furthest tensor that an operand shows, heads in such groups."""
    return next(one for one in reversed(shown) if one.group == group)


def _result(found: Found) -> tuple[FxNode, tuple[int, ...]]:
    """The node whose value the kernel gives, and the order in which it stores the axes."""
    at = found.result
    while len(at.users) == 1:
        (user,) = at.users
        if not _shows_result(user, at, found.lead):
            break
        at = user
    wanted = {permutation(user) for user in at.users}
    if len(wanted) == 1 and wanted != {()}:  # its readers say how they want it
        return at, wanted.pop()
    value = at.meta["val"]
    return at, storage_order([hint(e) for e in value.shape], [hint(s) for s in value.stride()])


def _order(order: tuple[int, ...], lead: Shape, group: int) -> tuple[int, ...]:
    """The order of the kernel's axes; (): as they are, or as nothing but a copy gives them.

    Args:
        order: of the result's axes.
        lead: the leading ones of the scores; where heads are in groups, the last has both.
        group: how many heads a group has.
    """
    last = len(lead) + 1
    if len(order) != last + 1 or order[-1] != last or order == tuple(range(last + 1)):
        return ()
    if group == 1:
        return order
    heads = last - 2
    found = [
        one
        for axis in order
        for one in ((heads, heads + 1) if axis == heads else (axis + (axis > heads),))
    ]
    return tuple(found)


def _shows_result(user: FxNode, at: FxNode, lead: Shape) -> bool:
    """Whether a node splits the leading axes again, or casts back to the operands' type."""
    if user.op != "call_function" or not isinstance(user.meta.get("val"), torch.Tensor):
        return False
    before, after = shape_of(at), shape_of(user)
    if name_of(user) in ("view", "reshape", "_unsafe_view"):
        return same(after[:-2], lead) and same(after[-2:], before[-2:])
    return (
        name_of(user) == "convert_element_type"
        and user.meta["val"].dtype.itemsize < at.meta["val"].dtype.itemsize
    )


# --- decisions ------------------------------------------------------------------------------------
def _decided(plan: _Plan, settings: Settings) -> tuple[bool, str]:
    """Whether a kernel is taken, and why.

    Raises:
        PolygenError: no kernel can be made of it.
    """
    values = [one.value for one in plan.operands]
    devices = {value.device for value in values}
    if not ((plan.exact and settings.take == "legal") or tensors.are_on_gpus(values)):
        raise UnsupportedProgram("the tensors are not on a CUDA device", where="attention")
    if len(devices) > 1:
        raise UnsupportedProgram("the tensors are on several devices", where="attention")
    known = with_numbers(plan.program, plan.sizes)
    reason = refusal(known)
    if reason is not None:
        raise reason
    if plan.exact:
        return True, "legal"
    orders = [
        storage_order([hint(e) for e in value.shape], [hint(s) for s in value.stride()])
        for value in values
    ]
    laid_out = stored(plan.program, orders)
    gain: Gain | str | None = None
    if settings.take == "predicted":
        gain = predicted_chain(stored(known, orders), target(None), plan.sizes, plan.found.library)
    elif settings.take == "measured":
        gain = measured_attention(laid_out, plan.sizes, plan.found)
    if isinstance(gain, str):
        return False, gain
    if gain is not None and gain.ratio < settings.threshold:
        return False, f"{settings.take} {gain}"
    KERNELS.alone(laid_out, plan.sizes).compiled()  # refused if it spills or fails
    return True, f"{settings.take} {gain}" if gain else "legal"


# --- the graph ------------------------------------------------------------------------------------
def _replace(graph: FxGraph, plan: _Plan) -> None:
    """Put one launch in the place of attention; the order of nodes is mended later."""
    own = plan.result
    call = caller(graph, own)
    with graph.inserting_after(own):
        arrays = []
        for one in plan.operands:
            node = one.node
            for axis in one.broadcast:
                node = call(torch.ops.aten.slice.Tensor, node, axis, 0, 1)
            arrays.append(shaped(graph, call, node, one.shape))
        launched = call(torch.ops.polygen.launch.default, arrays, [], text_of(plan.program))
        made = call(operator.getitem, launched, 0)
        if plan.function.order:
            order = plan.function.order
            back = [order.index(axis) for axis in range(len(order))]
            made = call(torch.ops.aten.permute.default, made, back)
        made = shaped(graph, call, made, shape_of(own))
    put = {made, launched, *made.all_input_nodes}
    own.replace_all_uses_with(made, delete_user_cb=lambda user: user not in put)
    for reader in made.users:
        if permutation(reader):  # which may be no copy behind it now
            reader.meta["val"] = made.meta["val"].permute(permutation(reader))
    _erase(graph, [own, *plan.found.members])


def _erase(graph: FxGraph, nodes: Sequence[FxNode]) -> None:
    """Erase nodes that nobody reads any more, and what only they read."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node.op != "call_function" or node.users or node.graph is not graph or node._erased:
            continue
        waiting += node.all_input_nodes
        graph.erase_node(node)
