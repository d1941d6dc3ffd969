"""Checks that leaves work on their statements' cells, on whole sums, and on shares of those."""

from __future__ import annotations

import itertools

from polygen.errors import VerifyError
from polygen.lower.formulas import value
from polygen.lower.fragments import Make
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.promoting import Promote
from polygen.lower.rest_work import Convert
from polygen.lower.result_work import (
    Epilogue,
    Exchange,
    Finish,
    Folding,
    Lines,
    Meeting,
    Store,
    Warm,
)
from polygen.lower.ring_tiles import operands_of
from polygen.lower.scan_work import PartStore, RowStore
from polygen.lower.tally import Leave, Tally
from polygen.lower.work import (
    Clear,
    Combine,
    Copy,
    Fill,
    FindPages,
    Load,
    Move,
    Product,
    Send,
    Stream,
)
from polygen.poly.chain_layers import left_by
from polygen.poly.tiling import share_of


def check_records(plan: KernelPlan) -> None:
    """What records name is there: operands, their dims, iterators; and as many accesses as are.

    Raises:
        VerifyError: with the record.
    """
    operands, columns = dict(plan.match.operands), plan.tiles.columns
    known = (*operands, *operands_of(plan))
    for leaf in plan.leaves:
        work, where = leaf.work, f"{plan.entry}, {leaf.statement}"
        copies = (
            [work] if isinstance(work, Copy) else [work.copy] if isinstance(work, Stream) else []
        )
        copies += [one.copy for one in work.sources] if isinstance(work, Fill) else []
        for one in copies:
            digits = [step for steps in one.lie for step in steps]
            if len(one.lie) != 2 or any(step.per < 1 or step.modulo < 0 for step in digits):
                raise VerifyError(f"elements lie at {one.lie}", where=where)
        named: list[Copy | Load] = [*copies, *([work] if isinstance(work, Load) else [])]
        for part in named:
            if part.operand not in known or part.role not in ("m", "n"):
                raise VerifyError(f"{part.operand} along {part.role} is no operand", where=where)
        if isinstance(work, Copy | Load) and work.operand != leaf.statement.partition("_")[2]:
            raise VerifyError(f"it moves {work.operand}", where=where)  # rings may have several
        if isinstance(work, Product) and not {n for n, _ in work.overwrites or ()} <= {*leaf.loops}:
            raise VerifyError(f"sums are overwritten by {work.overwrites}", where=where)
        if isinstance(work, Finish):
            for panel in (*work.operands, *work.results):
                if panel.columns < 1 or columns % panel.columns:
                    raise VerifyError(f"panels of {panel.columns} columns", where=where)
    passes = zip(
        (*plan.epilogue.before, plan.epilogue), (*plan.work.before, plan.work), strict=False
    )
    for made, wanted in passes:
        if (len(made.reads), len(made.writes)) != (len(wanted.reads), len(wanted.writes)):
            raise VerifyError(f"{len(made.reads)} arrays are read", where=plan.entry)


def check_cells(plan: KernelPlan, leaf: Leaf) -> None:
    """The record of a leaf names the buffers of its tile statement's cells, in their order."""
    # Like earlier passes' results, those of operands' rows are known to all that compute elements.
    named = _buffers(leaf, [one.norms for one in dict.fromkeys(plan.of(Tally))])
    if isinstance(leaf.work, Clear) and len(set(leaf.work.totals)) != len(leaf.work.totals):
        raise VerifyError(f"{leaf.statement} clears sums twice", where=plan.entry)
    statement = next((s for s in plan.tile_program.statements if s.name == leaf.statement), None)
    if named is None or statement is None:
        return
    cells = [text.split("[")[0] for text in (*statement.reads, *statement.writes)]
    known = [name for name in dict.fromkeys(cells) if not name.startswith("tile_")]
    if known != list(dict.fromkeys(named)):
        raise VerifyError(
            f"{leaf.statement} works on {', '.join(named)}, the tile program's on "
            f"{', '.join(known)}",
            where=plan.entry,
        )


def _buffers(leaf: Leaf, norms: list[str]) -> list[str] | None:
    """The buffers that a record names: what is read, then what is written; None: it names none."""
    work = leaf.work
    if isinstance(work, Fill):
        rings = [source.copy.buffer for source in work.sources]
        return ["pieces"] if leaf.op == "get" else ["pieces", *rings]
    if isinstance(work, Clear):
        return list(work.totals)
    if isinstance(work, Copy):
        if leaf.op == "fetch_chunks":
            return [work.staging]
        return [*([work.staging] if work.staging else []), work.buffer]
    if isinstance(work, Stream):
        return [f"fragment_{work.operand}"]
    if isinstance(work, Load):
        return [work.buffer, f"fragment_{work.operand}"]
    if isinstance(work, FindPages):
        return [work.registers]
    if isinstance(work, Move):
        pages = [boxes.pages for boxes in work.boxes if boxes.pages]
        return [*pages, *(boxes.buffer for boxes in work.boxes)]
    if isinstance(work, Make):
        coming, there = f"ahead_{work.operand}", f"beside_{work.operand}"
        if leaf.op != "make":
            return [coming] if leaf.op == "read_beside" else [coming, there]
        return [work.buffer, *([there] if work.words else []), f"fragment_{work.operand}"]
    if isinstance(work, Product):
        left, right = work.buffers
        if leaf.unit == "none":
            return [work.total]
        if not work.counter:
            left, right = (f"fragment_{name}" for name in work.operands)
        return [work.fragment.partition("[")[0] if work.fragment else left, right, work.total]
    if isinstance(work, Convert):
        return [work.total, work.fragment]
    if isinstance(work, Promote):
        scales = [work.scales] if work.factors else []
        return scales if leaf.op == "read_scales" else [work.inner, *scales, work.total]
    if isinstance(work, Send):
        return [*(one.total for one in work.landings), *(one.buffer for one in work.landings)]
    if isinstance(work, Combine):
        return [*(one.buffer for one in work.landings), *(one.completed for one in work.landings)]
    if isinstance(work, Tally):
        return {
            "begin": [work.registers],
            "tally": [work.buffer, work.registers],
            "share": [work.registers, work.norms],
        }.get(leaf.op, [])
    if isinstance(work, Leave):
        return [work.work.norms]
    if isinstance(work, Epilogue) and work.suffix and leaf.op == "store_pairs":
        sums, rows = [total for _, total in work.sums], ["row" + one.suffix for one in work.before]
        held = [work.holds[1]] if work.holds else []
        return [*sums, *rows, "folded" + work.suffix, *norms, *held]
    if isinstance(work, Folding):
        return ["folded" + work.epilogue.suffix]
    if isinstance(work, Meeting | Exchange):
        folded, row = (what + work.epilogue.suffix for what in ("folded", "row"))
        ends = {"meet": [folded, row], "give": [folded, work.given], "take": [work.given, row]}
        return ends.get(leaf.op.partition("_")[0], [])
    if isinstance(work, Finish):
        rows_of = {value for value, _ in work.states}
        sums = [total for _, total in work.epilogue.sums if total not in rows_of]
        operands, results = (
            [panel.buffer for panel in panels] for panels in (work.operands, work.results)
        )
        made = ["folded"] if work.epilogue.folds or work.epilogue.folding else []
        rows = ["row" + one.suffix for one in work.epilogue.before]
        if not {one.shared for one in work.epilogue.reads if one.shared} <= {*norms}:
            return []
        return [*sums, *work.held, *operands, *made, *rows, *norms, *results]
    if isinstance(work, Lines):
        return [line.panel.buffer for line in work.moved]
    if isinstance(work, Store):
        return [panel.buffer for panel, _ in work.panels]
    return None


def check_sums(plan: KernelPlan) -> None:
    """The epilogue takes each product's value from the sums that its operands are added to, or what
    a pass has left in their place, and what layers have left and states of rows from where these
    are.
    """
    shared = {one.total: one.completed for work in plan.of(Send) for one in work.landings}
    shared |= {one.inner: one.total for one in plan.of(Promote)}
    totals = {work.operands: shared.get(work.total, work.total) for work in plan.of(Product)}
    taken = [
        (one.contraction.write.name, totals.get((one.left, one.right)))
        for one in plan.match.products
    ]
    states = [(work.epilogue, work.states) for work in plan.of(RowStore)]
    states += [(work.epilogue, work.states) for work in plan.of(Finish)]
    states += [(work.epilogue, work.named) for work in plan.of(PartStore)]
    behind = plan.chained.behind if plan.chained is not None else ()
    for one in (*plan.epilogue.before, plan.epilogue):
        own = [(name, name) for of, pairs in states if of == one for name, _ in pairs]
        used = {arg for statement in one.statements for arg in statement.args}
        left = [(name, left_by(layer)) for name, layer in behind if name in used]
        if list(one.sums) != [*taken, *left, *own]:
            raise VerifyError(f"sums{one.suffix} are read as {one.sums}", where=plan.entry)
        taken = [one.holds] if one.holds else taken


def check_shares(plan: KernelPlan) -> None:
    """Of sums that blocks share: every part has its place, and every block its columns."""
    tiles, atom = plan.tiles, plan.atom
    groups = tiles.share // atom.n
    shape = (tiles.atoms[0], groups, groups // tiles.chunks, plan.device.group_threads)
    for send, combine in zip(plan.of(Send), plan.of(Combine), strict=True):
        for one in send.landings:
            made = (one.rows, one.groups, one.sent, one.threads)
            whole = send.blocks * one.part_bytes
            held = one.access_bytes == atom.c.registers * atom.c.dtype.bytes
            if made != shape or not held or whole != plan.buffer(one.buffer).slot_bytes:
                raise VerifyError(f"{one.buffer}: parts of {whole} bytes", where=plan.entry)
        if combine.landings != send.landings or send.blocks != tiles.split:
            raise VerifyError(
                f"parts are sent to {send.blocks} blocks and added as {combine.landings}",
                where=plan.entry,
            )
    if tiles.split > 1:
        columns = [plan.epilogue.column_base]
        columns += [finish.column for finish in plan.of(Finish)]
        columns += [warm.column for warm in plan.of(Warm)]
        for text, rank in itertools.product(columns, range(tiles.split)):
            at = {"b_n": 0, "w_n": 0, "group": 0, share_of(tiles): rank}
            if value(text, at) != rank * tiles.share:
                raise VerifyError(
                    f"block {rank} finishes columns from {value(text, at)} on, not from "
                    f"{rank * tiles.share}",
                    where=f"{plan.entry}: {text}",
                )
