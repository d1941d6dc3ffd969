"""`KernelPlan` as an explanation: what runs where, in which memory; what each barrier is for."""

from __future__ import annotations

from polygen.lower.plan import Copy, KernelPlan, Load
from polygen.poly import ast

STAGES = ("program", "scop", "tree", "ast", "plan", "cuda", "ptx", "sass")


def show_plan(plan: KernelPlan, origin: str) -> str:
    """The plan, section by section."""
    program = plan.program
    sections = [
        ("computes", [f"{program.source}", *(f"{t}" for t in (*program.inputs, *program.outputs))]),
        ("schedule", [f"{plan.schedule.name}: {origin}"]),
        (
            "mapping",
            [
                f"{plan.tiles}, {plan.atom.name} on {plan.device.name}",
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
    return "\n".join(
        line
        for title, lines in sections
        for line in (f"{title}:", *(f"  {text}" for text in lines))
    )


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
    for statement in e.statements:
        arguments = ", ".join(a if isinstance(a, str) else repr(a) for a in statement.args)
        lines.append(f"{statement.result} = {statement.function}({arguments})  ({statement.dtype})")
    lines += [f"write {w.tensor} as {w.kind}, {w.width} bytes at a time" for w in e.writes]
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
