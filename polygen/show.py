"""`KernelPlan` as an explanation: what runs where, in which memory; what each barrier is for."""

from __future__ import annotations

from polygen.analysis import in_tiles
from polygen.chained import as_made, is_chain, matched
from polygen.decide import candidates
from polygen.frontend.program import Program
from polygen.hardware.cost_parameters import cost_parameters
from polygen.lower.begins import in_words
from polygen.lower.plan import BlockPlan, KernelPlan, Leaf, MakePlan, MakeRowsPlan, Place
from polygen.lower.promoting import Promote
from polygen.lower.result_work import Finish
from polygen.lower.scan_work import Scan
from polygen.lower.sync_work import Placed
from polygen.lower.tally import Tally
from polygen.lower.work import Copy, FindPages, Load, Move
from polygen.poly import ast
from polygen.poly.elements import Compute
from polygen.poly.half_planes import said
from polygen.poly.operand import Operand
from polygen.poly.prologue import Prologue
from polygen.poly.realign import make_operands
from polygen.poly.tile_domain import all_tiles_because
from polygen.problems import whole_problem
from polygen.rewrite.even_sections import even_sections
from polygen.rewrite.programs import ASSUMED, rewritten
from polygen.rewrite.separation import correction
from polygen.schedule.problem import Fitted, Problem
from polygen.schedule.sums import reproducible
from polygen.tune.cost import cost
from polygen.tune.cost.explain import explain

STAGES = ("program", "rewrite", "scop", "tree", "ast", "plan", "cost", "cuda", "ptx", "sass")


def show_rewrite(program: Program) -> str:
    """How a chain of products became one loop over keys, step by step; or what left a product."""
    if not is_chain(program):
        normed = rewritten(program)
        if normed is program:
            return f"{program.source}: nothing is rewritten, no product reads what another sums"
        if normed.first:
            made = ", ".join(normed.first)
            return f"{program}\n\n# {made}: rows are made by a launch that goes before the kernel"
        if normed == even_sections(program):
            said = "columns are in parts, so that all sections have as many products"
            return f"{program}\n\n# {said}\n{normed}"
        return f"{program}\n\n# {ASSUMED}\n{normed}"
    found, whole = matched(program), as_made(program)
    parts = [f"{program}"]
    if whole.statements != program.statements:
        parts.append(f"{whole}")
    if (copy := make_operands(whole)) is not None:
        made = ", ".join(one.name for one in copy.made)
        parts.append(f"# {made}: made by a launch that goes before the kernel")
    return "\n\n".join([*parts, f"{found.chain}", f"{found.scores}\n{found.values}"])


def show_cost(program: Program, plan: KernelPlan, sizes: dict[str, int], origin: str) -> str:
    """Where the time of a program's plan goes at the sizes it was optimised for, by the model."""
    device = plan.device
    if plan.scores is not None:
        return (
            f"{program.source}\nschedule: {origin}\nthe model knows no time of chains of products"
        )
    problem = problem_for(plan, sizes)
    fitted = Fitted(plan.schedule, plan.resources.blocks_per_multiprocessor)
    found = cost(device, fitted, problem)
    text = explain(device, problem, found, cost_parameters(device))
    return f"{program.source}\nschedule: {plan.schedule.name}: {origin}\n{text}"


def problem_for(plan: KernelPlan, sizes: dict[str, int]) -> Problem:
    """What the cost model prices a plan for: with rows in its tiles, or behind the kernel."""
    if plan.schedule.covers_rows:
        return whole_problem(plan.whole, in_tiles(plan.whole), sizes)
    return candidates(plan.whole, plan.device, sizes)[0]


def show_plan(plan: KernelPlan, origin: str) -> str:
    """The plan, section by section."""
    program = plan.whole
    sections = [
        ("computes", [f"{program.source}", *(f"{t}" for t in (*program.inputs, *program.outputs))]),
        ("schedule", [f"{plan.schedule.name}: {origin}"]),
        (
            "mapping",
            [
                plan.mapping,
                f"m, n, k = {', '.join(str(extent) for _, extent in plan.extents)}",
                _grid(plan),
                *_domain(plan),
            ],
        ),
        ("launch", in_words(plan)),
        ("places", [_place(plan, place) for place in plan.places]),
        ("shared memory", [str(buffer) for buffer in plan.buffers if buffer.kind != "barrier"]),
        ("copies", [_copy(plan, leaf) for leaf in plan.leaves if isinstance(leaf.work, Copy)]),
        ("before it", [str(plan.realign)] if plan.realign else []),
        ("computed operands", _computed(plan)),
        ("promotions", _promotions(plan)),
        ("pages", [_pages(leaf) for leaf in plan.leaves if isinstance(leaf.work, FindPages)]),
        ("boxes", [_boxes(leaf) for leaf in plan.leaves if isinstance(leaf.work, Move)]),
        ("fragment loads", [_load(load) for load in plan.of(Load)]),
        ("between the products", _between(plan)),
        ("epilogue", [line for one in plan.each for line in (*_whose(one, plan), *_epilogue(one))]),
        ("sums", [reproducible(plan.sums), *plan.sums.said]),
        ("barriers", [line for placed in plan.syncs for line in _barrier(placed)]),
        ("resources", [str(plan.resources)]),
        ("proofs", [str(proof) for proof in plan.proofs]),
        *((copy.title, _group(copy)) for copy in plan.copies),
        *((f"loops of the {p.name}", ast.text(p.loops).splitlines()) for p in plan.places),
        *((group.title, _group(group)) for group in plan.groups),
    ]
    return "\n".join(
        line
        for title, lines in sections
        if lines
        for line in (f"{title}:", *(f"  {text}" for text in lines))
    )


def _grid(plan: KernelPlan) -> str:
    launch, cluster = plan.launch, plan.schedule.cluster
    groups = f"groups of {launch.group} tiles along {plan.schedule.raster.along}"
    if launch.further:
        outputs = (" x ".join(map(str, (*s.batches, s.along, s.across))) for s in launch.sections)
        groups += f", of {len(launch.sections)} sections one after another: {', '.join(outputs)}"
    elif launch.batches:
        groups += f" of each of {' x '.join(map(str, launch.batches))} matrices"
    if plan.match.groups:
        known = plan.match.groups
        groups += f", rows in {known.extent} groups that end at {known.ends}"
    if not launch.persistent:
        return f"grid: {groups}, {launch.threads} threads per block"
    size = f"{cluster.m} x {cluster.n}"
    shared = f", clusters of {size} share operands" if launch.cluster != (1, 1) else ""
    if plan.tiles.beside > 1:
        shared += f" and cover rows of {plan.tiles.row} elements"
    if cluster.k > 1:
        whose = "a tile of the last round" if cluster.last else "a tile"
        shared = f", clusters of {cluster.k} share the sums of {whose}, each a range of k"
    return f"at most {launch.persistent} persistent blocks, {groups}{shared}"


def _domain(plan: KernelPlan) -> list[str]:
    """Which tiles have products, where not all of their elements are read."""
    if plan.tile_domain is not None:
        before = ", which come before the others" if plan.launch.persistent else ""
        return [f"products in {plan.tile_domain}{before}; others store what reads no sum"]
    return [
        f"products in all tiles, though sums are read only where {said(one.match.domain)}: "
        + _in_all(plan, one)
        for one in plan.each
        if one.match.domain
    ]


def _in_all(plan: KernelPlan, one: KernelPlan) -> str:
    """Why all tiles of a plan, or of a section of it, have products."""
    reason = all_tiles_because(
        one.match,
        plan.schedule,
        folded=bool(plan.of(Tally)),
        covered=bool(plan.epilogue.before),
        several=bool(plan.sections),
    )
    return reason or "every tile may have some of them"


def _place(plan: KernelPlan, place: Place) -> str:
    threads = "one thread" if place.elected else f"{plan.device.warp_size} threads"
    who = f"{place.name}: {place.warps} warp(s), {threads} of each"
    if place.agents not in (1, place.warps):
        who += f", as {place.agents} warpgroups"
    if plan.schedule.in_turns and not place.elected:
        who += " that take turns at whole tiles"
    return f"{who}; {place.registers} registers" if place.registers else who


def _copy(plan: KernelPlan, leaf: Leaf) -> str:
    copy = leaf.work
    assert isinstance(copy, Copy)
    how = "in the background" if copy.asynchronous else "through registers"
    slots = plan.buffer(copy.buffer).slots
    along = "k" if copy.k_contiguous else copy.role
    return (
        f"{leaf.statement}[k,p]: {copy.tensor.name}, {copy.tile} of {copy.role} x "
        f"{copy.tile_k} of k -> {copy.buffer}[k mod {slots}], contiguous along {along}, "
        f"{copy.width} bytes at a time, {how}; "
        "zeros outside the array"
    )


def _computed(plan: KernelPlan) -> list[str]:
    """Where an operand is computed that is none in memory, and from what."""
    found = []
    for one in plan.copies:
        if isinstance(one, MakeRowsPlan):
            found += _made_by_rows(one)
        made = one.operand.computed if isinstance(one, MakePlan) else None
        if made is not None:
            found.append(
                f"{one.tensor.name}, {made.dtype}, made by the launch that goes before, once: k "
                "counts the elements of a stored row, m the rows; zeros behind their ends"
            )
            found += _computed_from(made)
    for name, operand in plan.match.operands:
        if operand.fragment is not None:
            found += _fragments(name, operand)
            continue
        made = operand.computed
        if made is None:
            continue
        index = ", ".join(map(str, operand.index))
        by = "all warps on its way"
        if plan.schedule.specialised:
            by = "the producer's threads, which read a round ahead, on its way"
        found.append(
            f"operand {name}: {operand.tensor.name}[{index}], {made.dtype}, computed by {by} into "
            f"ring_{name}, again in every block that needs it; zeros outside"
        )
        found += _computed_from(made)
    return found


def _made_by_rows(of: MakeRowsPlan) -> list[str]:
    """An operand that is made row by row, of folds over its rows or of digits of them."""
    folded = ", ".join(f"{fold.write.name} ({fold.function})" for fold in of.made.rows.folds)
    how = f"{folded} in {of.made.passes} pass(es) over the row, then its elements"
    return [
        f"{of.tensor.name}, {of.tensor.dtype}, made by the launch that goes before, a row by a "
        f"block: {how if folded else 'its elements'}",
        *(f"  {one}" for one in (*of.made.rows.statements, *of.made.after)),
    ]


def _fragments(name: str, operand: Operand) -> list[str]:
    """What consumers compute in their registers."""
    of = operand.fragment
    assert of is not None
    index = ", ".join(map(str, operand.index))
    return [
        f"operand {name}: {of.value}, {of.prologue.dtype}, computed by consumers in their "
        f"registers of {operand.tensor.name}[{index}], which the copy engine brings into "
        f"ring_{name}, again in every block that needs it; zeros behind the end of k",
        *_computed_from(of.prologue),
    ]


def _computed_from(made: Prologue) -> list[str]:
    """What an element is computed from, and how."""
    found = []
    for read in made.reads:
        places = ", ".join(map(str, read.index))
        found.append(f"  reads {read.name} = {read.tensor.name}[{places}]: {read.tensor}")
    return [*found, *(f"  {line}" for line in _compute_lines(made.statements))]


def _promotions(plan: KernelPlan) -> list[str]:
    """What multiplies the sums of blocks, and where it is read."""
    found = []
    for work in dict.fromkeys(plan.of(Promote)):
        behind = "k tile" if work.tiles == 1 else f"{work.tiles} k tiles"
        found.append(
            f"{work.total} += {'factors * ' * bool(work.factors)}{work.inner}, the products of "
            f"{work.block} of k: behind "
            f"every {behind}, when they are complete, in f32, in registers"
        )
        numbers = work.row_numbers + work.column_numbers + bool(work.of_side(""))
        for factor in work.factors:
            side = f"{factor.side} / {factor.per[0]}" if factor.per[0] > 1 else factor.side
            place = ", ".join(part for part in (side, f"k / {factor.per[1]}") if part)
            found.append(f"  reads {factor.tensor.name}[{place}]: {factor.tensor}")
        if work.factors:
            found.append(
                "  in front of the block's products, by every thread for its own rows and columns: "
                f"{numbers} numbers; those behind the ends of arrays read the last"
            )
    return found


def _boxes(leaf: Leaf) -> str:
    assert isinstance(leaf.work, Move)
    notes = "; ".join(boxes.note for boxes in leaf.work.boxes)
    return f"{leaf.statement}[{','.join(leaf.loops)}]: {notes}"


def _pages(leaf: Leaf) -> str:
    assert isinstance(leaf.work, FindPages)
    return f"{leaf.statement}[{','.join(leaf.loops)}]: {leaf.work.note}"


def _load(load: Load) -> str:
    return (
        f"load_{load.operand}[k,s]: {load.buffer} -> registers, "
        f"{load.tiles} x {load.load.count} of "
        f"{load.load.ptx}, ring of {load.slots}; proved equal to the instruction's fragment"
    )


def _between(plan: KernelPlan) -> list[str]:
    """What layers compute of every sum, a chain of every score, and its states."""
    if plan.scores is None:
        return []
    *layers, scan = dict.fromkeys(plan.of(Scan))
    front = [
        f"layer {one.layer}: {line}"
        for one in layers
        for line in _compute_lines(one.weigh.statements)
    ]
    found = [f"{state.value}: {state.monoid}" for state in scan.states]
    if scan.reference is not None:
        found[0] += f", the reference; c(m, m') = {correction(scan.factors)}"
    for name, terms in (("advance", scan.advance), ("weigh", scan.weigh)):
        if terms is not None:
            found += [f"{name}: {line}" for line in _compute_lines(terms.statements)]
    if plan.key_tiles is not None:
        found += str(plan.key_tiles).split("; ")
    return [*front, *found]


def _whose(section: KernelPlan, plan: KernelPlan) -> list[str]:
    """Which section of a plan follows; nothing where it has none."""
    names = ", ".join(one.contraction.name for one in section.match.products)
    return [f"section {plan.sections.index(section)}, of {names}:"] if plan.sections else []


def _epilogue(plan: KernelPlan) -> list[str]:
    e = plan.epilogue
    found = plan.of(Finish)
    if found:
        (work,) = found
        rows = work.results[0].rows
        moved = {panel.name for panel in work.operands}
        way = "panels that the copy engine brings"
        return [
            f"each warpgroup finishes its sums in panels of {rows} x {work.results[0].columns}, "
            "which the copy engine writes",
            *(f"read {r.tensor} as {way if r.name in moved else r.kind}" for r in e.reads),
            *_statements(plan),
            *(f"write {panel.tensor} as panels" for panel in work.results),
        ]
    way = (
        f"sums go through shared memory; each lane finishes {e.vector} adjacent results of a row"
        if e.staged
        else "each lane finishes the pairs of results it holds"
    )
    return [
        way,
        *(f"read {r.tensor} as {r.kind}" for r in e.reads),
        *_statements(plan),
        *(f"write {w.tensor} as {w.kind}, {w.width} bytes at a time" for w in e.writes),
    ]


def _statements(plan: KernelPlan) -> list[str]:
    return _compute_lines(plan.epilogue.statements)


def _compute_lines(statements: tuple[Compute, ...]) -> list[str]:
    lines = []
    for statement in statements:
        arguments = ", ".join(a if isinstance(a, str) else repr(a) for a in statement.args)
        lines.append(f"{statement.result} = {statement.function}({arguments})  ({statement.dtype})")
    return lines


def _group(group: BlockPlan) -> list[str]:
    """What blocks of a launch beside the kernel's do."""
    loops = ast.text(group.place.loops).splitlines()
    who = f"{group.place.warps} warps of a block"
    return [who, *(line for placed in group.syncs for line in _barrier(placed)), *loops]


def _barrier(placed: Placed) -> list[str]:
    return [f"{placed}; enforces", *(f"    {one}" for one in placed.sync.enforces)]
