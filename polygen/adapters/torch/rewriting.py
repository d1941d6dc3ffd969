"""Groups of a graph of PyTorch -> launches of kernels, where that is legal and predicted to win.

1. Attention is replaced (`polygen.adapters.torch.attending`). What is left is translated, patterns
   are replaced, and the rules find groups.
2. A group's program is traced; what polygen refuses is left. What is left over is priced, or
   measured, and taken if it wins by the threshold; then its kernel is compiled, and a group whose
   kernel does not compile is left, too.
3. The nodes of a group that is taken give way to one launch, and reshapes where rows were split.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import Graph as FxGraph
from torch.fx import Node as FxNode

from polygen.adapters.gain import Gain, predicted, unknown
from polygen.adapters.graphs import Graph, Group, Shape, same
from polygen.adapters.groups import groups, has_work, program_of, refused
from polygen.adapters.kernels import stored
from polygen.adapters.legality import refusal
from polygen.adapters.rules import PATTERNS
from polygen.adapters.torch import tensors
from polygen.adapters.torch.aten import VIEWS, translated
from polygen.adapters.torch.attending import attend
from polygen.adapters.torch.launching import text_of
from polygen.adapters.torch.measuring import measured
from polygen.adapters.torch.placing import caller, hint, shaped, sort
from polygen.adapters.torch.running import KERNELS, without_elements
from polygen.adapters.torch.settled import Record, Settings
from polygen.adapters.torch.tensors import same_extent
from polygen.api import target
from polygen.chained import with_numbers
from polygen.errors import PolygenError, UnsupportedProgram
from polygen.frontend.program import Program
from polygen.runtime.arrays import storage_order

_LONGEST_NAME = 60


def rewrite(graph: FxGraph, settings: Settings) -> list[Record]:
    """Replace groups of a graph by launches.

    Args:
        graph: of ATen's operations on fake tensors; changed in place.
        settings: how groups are decided.

    Returns:
        What became of each group, in order.
    """
    records = attend(graph, translated(graph), settings)
    given = translated(graph)
    known = given.with_patterns(PATTERNS).without_twins()
    named = {node.name: node for node in graph.nodes}
    # What a product alone takes is measured, and not predicted: a library's is as good as any.
    bare = settings.take == "measured"
    for group in groups(known, bare=bare):
        records.append(_settled(graph, known, group, named, settings))
        waiting = [] if records[-1].taken else [*group.parts, *group.instead]
        while waiting:
            part = waiting.pop(0)
            if bare or has_work(known, part):
                records.append(_settled(graph, known, part, named, settings))
                waiting = [*(() if records[-1].taken else part.instead), *waiting]
    if len(graph.nodes) > len(named):
        sort(graph)
        _erase_unread(graph, given, named)
        graph.lint()
    return records


def _settled(
    graph: FxGraph, known: Graph, group: Group, named: dict[str, FxNode], settings: Settings
) -> Record:
    """What becomes of a group: one that is taken is replaced."""
    computes = _line(known, group)
    try:
        program, why = _decided(known, group, named, settings)
        if program is not None:
            _replace(graph, known, group, named, program)
        return Record(group.members, computes, program is not None, why)
    except PolygenError as error:
        return Record(group.members, computes, False, refused(error))


def _operations(graph: Graph, group: Group) -> list[str]:
    """The names of a group's operations, for people; casts have none."""
    texts = (graph[name].text.partition(" ")[0] for name in group.members)
    return [text for text in texts if text and text not in VIEWS]


def _line(graph: Graph, group: Group) -> str:
    """The operations of a group, for people."""
    domains = dict.fromkeys(" x ".join(map(str, part.domain)) for part in group.each)
    return f"{', '.join(_operations(graph, group))} over {', '.join(domains)}"


def _decided(
    graph: Graph, group: Group, named: dict[str, FxNode], settings: Settings
) -> tuple[Program | None, str]:
    """The group's program if it is taken, and why it is or is not.

    Raises:
        PolygenError: no kernel can be made of the group.
    """
    name = "_".join(_operations(graph, group))[:_LONGEST_NAME]
    values = [named[operand].meta["val"] for operand, _ in group.operands]
    exact = all(v.dtype == torch.float64 and v.device.type == "cpu" for v in values)
    devices = {v.device for v in values}
    if not ((exact and settings.take == "legal") or tensors.are_on_gpus(values)):
        raise UnsupportedProgram("the tensors are not on a CUDA device", where=name)
    if len(devices) > 1:
        raise UnsupportedProgram("the tensors are on several devices", where=name)
    allow_tf32 = exact or torch.get_float32_matmul_precision() != "highest"
    program, extents = program_of(graph, group, name, allow_tf32=allow_tf32, alike=same_extent)
    sizes = {dim: hint(extent) for dim, extent in extents.items()}
    if without_elements(program, sizes):
        raise UnsupportedProgram("an array has no elements, and there is nothing to launch")
    reason = refusal(with_numbers(program, sizes))
    if reason is not None:
        raise reason
    if exact:
        return program, "legal"
    orders = [
        _order(value, shape) for value, (_, shape) in zip(values, group.operands, strict=True)
    ]
    laid_out = with_numbers(stored(program, orders), sizes)
    gain: Gain | None = None
    least = settings.threshold
    if settings.take == "predicted":
        # Where Inductor multiplies single rows itself, it has taken the product apart before.
        why = unknown(laid_out, sizes, library=True)
        if why:
            return None, why
        gain = predicted(laid_out, target(None), sizes, _followed(graph, group, program))
        if group.parts or group.instead:
            found = _of_parts(graph, group, named, allow_tf32)
            if gain.ratio >= least:  # than libraries: beside its own parts the faster one is taken
                least = 1.0
            gain = Gain(gain.fused, found if group.parts else min(found, gain.apart))
    elif settings.take == "measured":
        gain = measured(laid_out, sizes, _followed(graph, group, program))
    if gain is not None and gain.ratio < least:
        return None, f"{settings.take} {gain}"
    KERNELS.alone(laid_out, sizes).compiled()  # refused if it spills or fails
    return program, f"{settings.take} {gain}" if gain else "legal"


def _of_parts(graph: Graph, group: Group, named: dict[str, FxNode], allow_tf32: bool) -> float:
    """Predicted time of the groups that one is made of, each as a kernel or apart.

    Raises:
        PolygenError: of one of them no kernel can be made.
    """
    found = 0.0
    for part in group.parts or group.instead:
        program, extents = program_of(graph, part, "part", allow_tf32=allow_tf32, alike=same_extent)
        orders = [_order(named[operand].meta["val"], shape) for operand, shape in part.operands]
        sizes = {dim: hint(extent) for dim, extent in extents.items()}
        followed = _followed(graph, part, program)
        gain = predicted(stored(program, orders), target(None), sizes, followed)
        found += min(gain.fused, gain.apart)
    return found


def _followed(graph: Graph, group: Group, program: Program) -> list[str]:
    """The outputs of a group's program that kernels behind it would compute in passing."""
    pairs = zip(group.outputs, program.outputs, strict=True)
    return [tensor.name for output, tensor in pairs if graph.joins_later(output)]


def _order(value: torch.Tensor, shape: Shape) -> tuple[int, ...]:
    """The axes of an operand in its shape, the contiguous one last."""
    if not same(tuple(value.shape), shape):
        return tuple(range(len(shape)))
    return storage_order([hint(e) for e in value.shape], [hint(s) for s in value.stride()])


# --- the graph ------------------------------------------------------------------------------------
def _replace(
    graph: FxGraph, known: Graph, group: Group, named: dict[str, FxNode], program: Program
) -> None:
    """Put one launch in the place of a group; the order of nodes is mended later."""
    last = named[max(group.members, key=known.places.__getitem__)]
    call = caller(graph, last)

    with graph.inserting_after(last):
        arrays = [shaped(graph, call, named[operand], shape) for operand, shape in group.operands]
        launched = call(torch.ops.polygen.launch.default, arrays, [], text_of(program))
        for position, output in enumerate(group.outputs):
            made = shaped(graph, call, call(operator.getitem, launched, position),
                           known[output].shape)  # fmt: skip
            own = named[output]
            own.replace_all_uses_with(
                made, delete_user_cb=lambda user: user.name not in group.members
            )
            named[output] = made  # what groups behind it read


def _erase_unread(graph: FxGraph, given: Graph, named: dict[str, FxNode]) -> None:
    """Erase what was inserted or is known to do nothing but compute, and nobody reads."""
    for node in reversed(list(graph.nodes)):
        if node.op != "call_function" or node.users:
            continue
        if node.name not in named or given[node.name].kind != "other":
            graph.erase_node(node)
