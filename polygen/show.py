"""`KernelPlan` as an explanation: what runs where, in which memory; what each barrier is for."""

from __future__ import annotations

from polygen.decide import candidates
from polygen.hardware.cost_parameters import cost_parameters
from polygen.lower.plan import Copy, KernelPlan, Load
from polygen.lower.role_plan import Fill, RoleWork
from polygen.poly import ast
from polygen.schedule.problem import Fitted
from polygen.tune.cost import cost
from polygen.tune.cost.explain import explain

STAGES = ("program", "scop", "tree", "ast", "plan", "cost", "cuda", "ptx", "sass")


def show_cost(plan: KernelPlan, sizes: dict[str, int], origin: str) -> str:
    """Where the plan's time goes at the sizes it was optimised for, by the cost model."""
    device = plan.device
    problem, _ = candidates(plan.program, device, sizes)
    fitted = Fitted(plan.schedule, plan.resources.blocks_per_multiprocessor)
    found = cost(device, fitted, problem)
    text = explain(device, problem, found, cost_parameters(device))
    return f"{plan.program.source}\nschedule: {plan.schedule.name}: {origin}\n{text}"


def show_plan(plan: KernelPlan, origin: str) -> str:
    """The plan, section by section."""
    program = plan.program
    if plan.roles is not None:
        return _lines(_role_sections(plan, plan.roles, origin))
    sections = [
        ("computes", [f"{program.source}", *(f"{t}" for t in (*program.inputs, *program.outputs))]),
        ("schedule", [f"{plan.schedule.name}: {origin}"]),
        (
            "mapping",
            [
                plan.mapping,
                f"m, n, k = {', '.join(str(extent) for _, extent in plan.extents)}",
                f"grid: groups of {plan.launch.group} tiles along {plan.schedule.raster.along}, "
                f"{plan.launch.threads} threads per block",
            ],
        ),
        ("shared memory", [str(buffer) for buffer in plan.buffers]),
        ("copies", [_copy(plan, copy) for copy in plan.copies]),
        ("fragment loads", [_load(load) for load in plan.loads]),
        ("epilogue", _epilogue(plan)),
        ("barriers", _barriers(plan)),
        ("resources", [str(plan.resources)]),
        ("proofs", [str(proof) for proof in plan.proofs]),
        ("loops of one thread block", ast.text(plan.loops).splitlines()),
    ]
    return _lines(sections)


def _lines(sections: list[tuple[str, list[str]]]) -> str:
    return "\n".join(
        line
        for title, lines in sections
        for line in (f"{title}:", *(f"  {text}" for text in lines))
    )


def _role_sections(plan: KernelPlan, work: RoleWork, origin: str) -> list[tuple[str, list[str]]]:
    """The sections of a specialised kernel."""
    program, cluster = plan.program, work.cluster
    turns = "take turns at whole tiles" if work.pingpong else "share every tile"
    shared = f", clusters of {cluster[0]} x {cluster[1]} share operands" if max(cluster) > 1 else ""
    return [
        ("computes", [f"{program.source}", *(f"{t}" for t in (*program.inputs, *program.outputs))]),
        ("schedule", [f"{plan.schedule.name}: {origin}"]),
        (
            "mapping",
            [
                plan.mapping,
                f"m, n, k = {', '.join(str(extent) for _, extent in plan.extents)}",
                f"at most {plan.launch.persistent} persistent blocks, groups of "
                f"{plan.launch.group} tiles along {plan.schedule.raster.along}{shared}",
            ],
        ),
        (
            "roles",
            [
                f"producer: one thread keeps the ring full; {work.registers[0]} registers",
                *(
                    [
                        f"loaders: one thread per consumer brings panels of "
                        f"{', '.join(p.tensor.name for p in work.operands)}"
                    ]
                    if work.operands
                    else []
                ),
                f"consumers: {work.consumers} warpgroups {turns}; {work.registers[1]} registers",
            ],
        ),
        ("shared memory", [str(region) for region in work.regions]),
        ("copies", [_fill(fill) for fill in work.fills]),
        ("epilogue", _role_epilogue(plan, work)),
        ("barriers", _role_barriers(work)),
        ("resources", [str(plan.resources)]),
        ("proofs", [str(proof) for proof in plan.proofs]),
        *((f"loops of the {part.role}", ast.text(part.loops).splitlines()) for part in work.roles),
    ]


def _fill(fill: Fill) -> str:
    share = f", each of {fill.parts} blocks its part for all" if fill.parts > 1 else ""
    return (
        f"fill[i,k], operand {fill.operand}: {fill.tensor.name}, {fill.tile} of {fill.role} x "
        f"{fill.tile_k} of k -> {fill.ring}, {fill.layout.boxes} box(es) of "
        f"{fill.box[0]} x {fill.box[1]} elements by the copy engine{share}; "
        "zeros outside the array; proved equal to what the instruction's descriptors read"
    )


def _role_epilogue(plan: KernelPlan, work: RoleWork) -> list[str]:
    if not work.results:
        return _epilogue(plan)
    lines = [
        f"each warpgroup finishes its sums in panels of 64 x {work.panel_columns}, "
        "which the copy engine writes"
    ]
    panels = {panel.name for panel in work.operands}
    for read in plan.epilogue.reads:
        way = "panels that the copy engine brings" if read.name in panels else read.kind
        lines.append(f"read {read.tensor} as {way}")
    return [*lines, *_statements(plan), *(f"write {p.tensor} as panels" for p in work.results)]


def _role_barriers(work: RoleWork) -> list[str]:
    lines = []
    for placed in work.barriers:
        lines.append(f"{placed}; enforces")
        lines += [f"    {dependence}" for dependence in placed.barrier.dependences]
    for group in work.groups:
        lines.append(
            f"{group.name}: the threads of one warpgroup, between {group.before} and "
            f"{group.after}, with at most {group.pending} earlier panel(s) still being read; "
            "enforces"
        )
        lines += [f"    {dependence}" for dependence in group.dependences]
    for turn, _ in work.turns:
        lines.append(f"{turn.name}: consumers start {turn.statement} in turns; enforces")
        lines += [f"    {dependence}" for dependence in turn.dependences]
    return lines


def _copy(plan: KernelPlan, copy: Copy) -> str:
    how = "in the background" if copy.asynchronous else "through registers"
    slots = plan.buffer(copy.buffer).slots
    along = "k" if copy.k_contiguous else copy.role
    return (
        f"copy_{copy.operand}[k,p]: {copy.tensor.name}, {copy.tile} of {copy.role} x "
        f"{copy.tile_k} of k -> {copy.buffer}[k mod {slots}], contiguous along {along}, "
        f"{copy.width} bytes at a time, {how}; "
        "zeros outside the array"
    )


def _load(load: Load) -> str:
    return (
        f"load_{load.operand}[k,s]: {load.buffer} -> registers, "
        f"{load.tiles} x {load.load.count} of "
        f"{load.load.ptx}, ring of {load.slots}; proved equal to the instruction's fragment"
    )


def _epilogue(plan: KernelPlan) -> list[str]:
    e = plan.epilogue
    way = (
        f"sums go through shared memory; each lane finishes {e.vector} adjacent results of a row"
        if e.staged
        else "each lane finishes the pairs of results it holds"
    )
    lines = [way]
    lines += [f"read {r.tensor} as {r.kind}" for r in e.reads]
    lines += _statements(plan)
    lines += [f"write {w.tensor} as {w.kind}, {w.width} bytes at a time" for w in e.writes]
    return lines


def _statements(plan: KernelPlan) -> list[str]:
    lines = []
    for statement in plan.epilogue.statements:
        arguments = ", ".join(a if isinstance(a, str) else repr(a) for a in statement.args)
        lines.append(f"{statement.result} = {statement.function}({arguments})  ({statement.dtype})")
    return lines


def _barriers(plan: KernelPlan) -> list[str]:
    lines = []
    for entry in plan.enforced:
        barrier = entry.barrier
        kind = "all warps of the block" if barrier.scope == "block" else "the lanes of one warp"
        waits = (
            ""
            if barrier.pending is None
            else (f", after waiting for all but the last {barrier.pending} group(s) of copies")
        )
        lines.append(f"{barrier.name}: {kind}, before each {barrier.before}{waits}; enforces")
        lines += [f"    {dependence}" for dependence in entry.dependences]
    return lines
