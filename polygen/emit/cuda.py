"""`KernelPlan` -> `KernelSource`: fill the templates of the leaves and the frame.

1. Each leaf of the plan becomes a record of ready strings and numbers; templates only lay them out.
2. A leaf is a lambda named like its statement, so the loops below are, line for line, the ones isl
   generated.
3. The header says what the kernel computes and how it was decided; the host launcher is left out
   under NVRTC.
"""

from __future__ import annotations

import functools
from typing import Any

import jinja2

from polygen.emit import epilogue as epilogues
from polygen.emit import leaves, roles
from polygen.emit.conditions import refusals
from polygen.emit.ctext import loops
from polygen.emit.launcher import launcher, parameter, plan_conditions
from polygen.emit.source import KernelSource
from polygen.lower.plan import KernelPlan
from polygen.schedule.load import dumps

SUM_TYPES = {"f32": "float", "f16": "unsigned", "s32": "int"}


@functools.cache
def environment() -> jinja2.Environment:
    """Jinja2 for CUDA text: undefined names are errors, nothing is escaped, no blank lines."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("polygen.emit"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def emit(plan: KernelPlan, command: str = "") -> KernelSource:
    """Render a plan.

    Args:
        plan: the kernel.
        command: the command that made it, for the header.
    """
    context = (_role_frame if plan.roles else _frame)(plan) | {"header": header(plan, command)}
    template = "roles.cu.j2" if plan.roles else "kernel.cu.j2"
    text = environment().get_template(template).render(context)
    declared = environment().get_template("header.h.j2").render(context)
    return KernelSource(
        entry=plan.entry,
        text=_tidy(text),
        header=_tidy(declared),
        arch=plan.device.compile_target,
        arguments=plan.arguments,
        launch=plan.launch,
        conditions=plan_conditions(plan),
    )


def header(plan: KernelPlan, command: str) -> list[str]:
    """The first comment: expression, statements, arguments, schedule, resources, command."""
    program = str(plan.program).splitlines()
    schedule = [f"  {line}" for line in dumps(plan.schedule).splitlines() if line]
    conditions = [
        f"  {refusal.code}: {refusal.sentence}"
        for refusal in refusals(plan_conditions(plan), plan.launch, plan.program.tensors)
    ]
    enforced = [
        f"  {e.barrier.name} ({e.barrier.scope}): {'; '.join(e.dependences)}" for e in plan.enforced
    ]
    if plan.roles is not None:
        enforced = [f"  {sync.name}: {'; '.join(sync.dependences)}" for sync in plan.roles.syncs]
    lines = [
        *program,
        "",
        f"target: {plan.device.name}, instruction: {plan.atom.name}, {plan.tiles}"
        if plan.roles is None
        else f"mapping: {plan.mapping}",
        f"needs: {plan.resources}",
        "arguments, and what the launcher returns for others (lengths in elements, addresses in "
        "bytes):",
        *conditions,
        "barriers, and the dependences they enforce:",
        *enforced,
        "schedule:",
        *schedule,
    ]
    lines += [f"made by: {command}"] if command else []
    return [_comment(part) for line in lines for part in (line.splitlines() or [""])]


def _comment(line: str) -> str:
    """A line that ends where it ends: a backslash at its end would comment out the next one."""
    printable = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line.rstrip())
    return f"{printable} ." if printable.endswith("\\") else printable


def _tidy(text: str) -> str:
    """At most one blank line in a row, no trailing blanks."""
    lines: list[str] = []
    for line in text.splitlines():
        stripped = line.rstrip()
        if stripped or (lines and lines[-1]):
            lines.append(stripped)
    return "\n".join(lines).rstrip() + "\n"


def _role_frame(plan: KernelPlan) -> dict[str, Any]:
    """The context of a specialised kernel."""
    epilogue = epilogues.epilogue(plan)
    module: Any = environment().get_template("leaves.cu.j2").module
    return {
        **launcher(plan),
        **roles.frame(plan),
        "types": epilogues.types(plan),
        "helpers": epilogue["helpers"],
        "parameters": ", ".join(parameter(plan, argument) for argument in plan.arguments),
        "compute": module.compute(epilogue),
        "store": "".join(
            render(epilogue) for render in (module.compute, module.edge, module.store_fragments)
        ),
    }


def _frame(plan: KernelPlan) -> dict[str, Any]:
    tiles, schedule, atom = plan.tiles, plan.schedule, plan.atom
    extents = leaves.extent_names(plan)
    along = schedule.raster.along
    across = "n" if along == "m" else "m"
    epilogue = epilogues.epilogue(plan)
    module: Any = environment().get_template("leaves.cu.j2").module
    order = [module.compute, module.edge]
    if plan.epilogue.staged:
        order += [module.prepare, module.stage, module.store_staged]
    else:
        order += [module.store_fragments]
    parts = [render(epilogue) for render in order]
    return {
        **launcher(plan),
        "types": epilogues.types(plan),
        "copy_instructions": leaves.copy_instructions(plan),
        "fragment_loads": leaves.fragment_functions(plan),
        "round_to_tf32": any(load.round_to_tf32 for load in plan.loads),
        "mma": leaves.multiply(plan),
        "mma_comment": f"sum[m][n] += a[m] * b[n], one {atom.name}",
        "buffers": [{"name": b.name, "formula": leaves.placement(b)} for b in plan.buffers],
        "helpers": epilogue["helpers"],
        "min_blocks": schedule.min_blocks,
        "shared_alignment": leaves.SHARED_ALIGNMENT,
        "parameters": ", ".join(parameter(plan, argument) for argument in plan.arguments),
        "lanes": plan.device.warp_size,
        "warps_n": tiles.warps[1],
        "raster_comment": (
            f"raster: groups of {schedule.raster.group} tiles along {along}, "
            f"then the next tile along {across}"
        ),
        "along": along,
        "across": across,
        "k_extent": extents["k"],
        "tile_k": tiles.cta[2],
        "fragments": schedule.pipeline.fragments,
        "atoms_m": tiles.atoms[0],
        "atoms_n": tiles.atoms[1],
        "registers_a": atom.a.registers,
        "registers_b": atom.b.registers,
        "registers_c": atom.c.registers,
        "sum_type": SUM_TYPES[atom.c.dtype.name],
        "copies": [leaves.copy(plan, copy) for copy in plan.copies],
        "loads": [leaves.load(plan, load) for load in plan.loads],
        "waits": leaves.synchronisation(plan),
        "epilogue": epilogue,
        "store": "".join(parts),
        "loops": loops(plan.loops, leaves.LOOP_COMMENTS, 1),
    }
