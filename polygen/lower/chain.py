"""`ChainMatch` x `ScheduleTree` -> `KernelPlan`: the plan of two products in one loop over keys.

1. Shared memory holds a ring for the rows, one for the keys and one for the values, each in the
   layout that matrix descriptors tell, proved as for any product.
2. The second product's operand stays where the first one left its sums: the fragment of the one
   composed with the fragment of the other is the identity of every thread, in pairs of one register
   (`carried`). Nothing moves.
3. What is computed at (row, key) is split at the reference: what makes its terms, and what is made
   with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polygen.errors import UnsupportedProgram, VerifyError
from polygen.frontend.dtypes import F32
from polygen.frontend.program import Program
from polygen.hardware.atom import Atom
from polygen.hardware.device import Device, common_facts
from polygen.lower.accesses import corner, map_axes
from polygen.lower.build import arguments
from polygen.lower.chain_memory import chain_memory, chain_resources, layouts
from polygen.lower.epilogue import epilogue, own_part
from polygen.lower.given import Given
from polygen.lower.key_parts import AFTER, combining_launch, room
from polygen.lower.lanes import closed_form
from polygen.lower.memory import needed
from polygen.lower.plan import Argument, Buffer, KernelPlan, Launch, Leaf, Place
from polygen.lower.result_work import Epilogue, Read
from polygen.lower.scan_work import PartStore, RowStore, Scan, ScanState, Terms
from polygen.lower.synchronise import (
    AGENTS,
    counter_of,
    counters,
    counting,
    owners,
    placed,
    sync_leaves,
)
from polygen.lower.work import Boxes, Groups, Locate, Move, Nothing, Placed, Product
from polygen.poly.by_chain import ChainShape
from polygen.poly.chain_match import VALUES, WEIGHTS, ChainMatch
from polygen.poly.key_tiles import FIRST, PART, KeyTiles, prove_key_tiles
from polygen.poly.legality import Proof
from polygen.poly.mapping import ScheduleTree
from polygen.poly.match import Operand
from polygen.poly.pointwise import Compute
from polygen.poly.raster import prove_linear_raster, prove_raster
from polygen.rewrite.key_range import RowBound
from polygen.rewrite.parts import parts_combine
from polygen.schedule.model import Schedule

_GROUP = AGENTS["consumer"]
_STEP, _TILE = ("i", "k"), ("i",)
_FAST_BITS = 16
SHORT = "short"  # what a schedule says of functions


def lower_chain(
    program: Program,
    matched: ChainMatch,
    tree: ScheduleTree,
    shape: ChainShape,
    schedule: Schedule,
    atom: Atom,
    device: Device,
) -> KernelPlan:
    """Decide everything that the emitter needs.

    Raises:
        ResourceError: the plan does not fit the device.
        ScheduleError: a tile has no layout.
        VerifyError: the second product's operand is not where the first one's sums are.
    """
    sync = tree.synchronised
    made = layouts(matched, shape, atom, f"schedule {schedule.name}")
    barriers = [
        (one.name, one.slots, owners(sync, one))
        for one in sync.syncs
        if one.kind in ("mbarrier", "turn")
    ]
    buffers = chain_memory(matched, shape, made, barriers)
    copied = {f"fill_{name}": layout.bytes for name, layout in made.items()}
    syncs = placed(sync, copied)
    given = Given(matched.chain.values, tree, schedule, atom, device, matched.after)
    out = _results(given, matched)
    made_of = _Leaves(given, matched, shape, buffers, syncs, out)
    found = made_of.all()
    leaves = tuple(counting(tuple(found), sync.counters))
    taken = chain_resources(matched, shape, schedule, device, needed(buffers))
    maps = tuple(
        Argument(b.map, "map", tensor=b.tensor.name, axes=b.axes, swizzle=b.span)
        for leaf in leaves
        if isinstance(leaf.work, Move)
        for b in leaf.work.boxes
    )
    along = matched.values.m
    launch = Launch(
        along, matched.values.n, shape.tiles.cta[0], shape.tiles.cta[1], schedule.raster.group,
        taken.threads, taken.shared_bytes, persistent=device.multiprocessors,
        batches=tuple(extent for _, extent in matched.values.batches),
    )  # fmt: skip
    visited = key_tiles(matched, schedule)
    more: tuple[Proof, ...] = ()
    after = None
    if visited is not None:  # each block has as many tiles of keys as its rows want
        launch = replace(launch, persistent=0)
        more = prove_key_tiles(visited, matched.values.depths[0], atom.m)
    if schedule.tile.part:
        each = schedule.tile.part
        launch = replace(launch, across=matched.values.depths[0], tile_across=each)
        after = combining_launch(f"pg_{program.name}", room(matched, each))
        claims = parts_combine(matched.chain)
        more = (*more, *(Proof(claim, "rewrite") for claim in claims))
    rows, columns, keys = shape.tiles.cta
    return KernelPlan(
        entry=f"pg_{program.name}",
        program=program,
        schedule=schedule,
        device=device,
        atom=atom,
        tiles=shape.tiles,
        mapping=f"{rows} rows by {keys} keys by {columns} columns, {shape.consumers} consumer "
        f"warpgroup(s) of {shape.tiles.warp[0]} rows, {atom.name} on {device.name}",
        arguments=arguments(program, maps, workspace=after is not None),
        following=after,
        launch=launch,
        match=matched.values,
        work=matched.after,
        tile_program=sync.program,
        buffers=buffers,
        leaves=leaves,
        places=_places(given, shape),
        syncs=syncs,
        frame=sync.frame,
        proofs=(
            *tree.proofs, carried_proof(atom), *more,
            *(prove_linear_raster(1) if visited is None else (prove_raster(1),)),
        ),
        resources=taken,
        sums=tree.sums,
        scores=matched.scores,
        scored=matched.before,
        key_tiles=visited,
        key_bounds=made_of.bounds(),
    )  # fmt: skip


def key_tiles(matched: ChainMatch, schedule: Schedule) -> KeyTiles | None:
    """The tiles of keys that a block visits; None: all of its rows."""
    cta, part = schedule.tile.cta, schedule.tile.part
    if matched.chain.range is None and not part:
        return None
    return KeyTiles(matched.chain.range, cta.m, cta.k, part // cta.k)


def _places(given: Given, shape: ChainShape) -> tuple[Place, ...]:
    loops = {one.place.name: one.loops() for one in given.tree.places}
    roles, warps = given.schedule.roles, shape.consumers * given.device.warpgroup_warps
    return (
        Place(
            "producer", warps, 1, 1, True, AGENTS["producer"], roles.producer_registers,
            loops["producer"], counters(given, "producer"),
        ),
        Place(
            "consumer", 0, warps, shape.consumers, False, _GROUP, roles.consumer_registers,
            loops["consumer"], counters(given, "consumer"),
        ),
    )  # fmt: skip


def _results(given: Given, matched: ChainMatch) -> Epilogue:
    """The statements behind the second product; states are passed beside its sums."""
    found = epilogue(given)
    used = {arg for s in matched.after.statements for arg in s.args}
    states = tuple((name, name) for name, _ in matched.states if name in used)
    return replace(found, sums=(*found.sums, *states))


# --- fragments -----------------------------------------------------------------------------------
def carried(atom: Atom) -> tuple[tuple[int, int], ...]:
    """Per register of an instruction's left operand, the accumulator's pair that is its content.

    A pair is (group of columns, first element) of those that cover the instruction's k; the second
    element is the next one. For every thread, the position of the pair in the accumulator is that
    of the register's elements in the operand.

    Raises:
        VerifyError: a thread's operand is not among its own sums, or not in pairs.
    """
    groups = atom.k // atom.n
    own = atom.c.table  # lane, element -> row, column
    wide = np.concatenate([own + np.array([0, g * atom.n]) for g in range(groups)], axis=1)
    per = own.shape[1]
    found = []
    for register in range(atom.a.registers):
        each = atom.a.elements_per_register
        wanted = atom.a.table[:, register * each : (register + 1) * each]
        at = [
            next(
                (e for e in range(wide.shape[1]) if np.array_equal(wide[:, e], wanted[:, h])), None
            )
            for h in range(each)
        ]
        if each != 2 or at[0] is None or at[1] != at[0] + 1:
            raise VerifyError(
                f"{atom.name}: register {register} of the left operand is no pair of sums of the "
                "same thread",
                where="chain",
            )
        found.append((at[0] // per, at[0] % per))
    return tuple(found)


def carried_proof(atom: Atom) -> Proof:
    """That the second product's operand stays in the registers of its threads."""
    carried(atom)
    claim = "every thread's sums of the first product are its own operand of the second"
    return Proof(claim, atom.name)


# --- leaves --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Leaves:
    """Writes down the leaves of both places, in the order in which they are declared."""

    given: Given
    matched: ChainMatch
    shape: ChainShape
    buffers: tuple[Buffer, ...]
    syncs: tuple[Placed, ...]
    out: Epilogue

    def all(self) -> list[Leaf]:
        """The leaves."""
        raster, batches = self.given.schedule.raster, self.matched.values.batches
        locate = Locate("m", "n", raster.group, (1, 1), batches, None)
        found = [Leaf("locate", "locate", "threads", _TILE, locate)]
        if self._visited is not None:
            found = [Leaf("locate", "located", "threads", _TILE, Nothing())]
        found += [self._fill(name, operand) for name, operand in self.matched.operands]
        consumer = [*self._between(), *self._products(), *self._end()]
        found += [replace(leaf, place=leaf.place or "consumer") for leaf in consumer]
        return [*found, *sync_leaves(self.given, self.syncs, "")]

    @property
    def _visited(self) -> KeyTiles | None:
        return key_tiles(self.matched, self.given.schedule)

    @property
    def _key(self) -> str:
        """Where key tile `k` begins."""
        first = f"({FIRST} + k)" if self._visited is not None else "k"
        return f"{first} * {self.shape.tiles.cta[2]}"

    def _buffer(self, name: str) -> Buffer:
        return next(b for b in self.buffers if b.name == name)

    def _fill(self, name: str, operand: Operand) -> Leaf:
        statement = f"fill_{name}"
        full = next(p for p in self.syncs if p.bytes and statement in dict(p.sync.signals))
        counter = counter_of(self.given.tree.synchronised, statement, full.sync.buffers[0])
        boxes = self._boxes(name, operand)
        loops = _TILE if name == "a" else _STEP
        work = Move((boxes,), full, counter, boxes.note)
        return Leaf(statement, "move", "tma", loops, work, "producer")

    def _boxes(self, name: str, operand: Operand) -> Boxes:
        """The boxes of one operand's tile."""
        layout = self._buffer(f"ring_{name}").matrix
        rows, columns, _ = self.shape.tiles.cta
        first = name != VALUES
        starts = {
            "m": f"b_m * {rows}",
            "n": self._key if first else f"b_n * {columns}",
            "k": "0" if first else self._key,
        }
        box = (layout.rows, layout.span // operand.tensor.dtype.bytes)
        sides = (operand.role, "k") if operand.k_contiguous else ("k", operand.role)
        axes, dims = map_axes(
            operand.tensor, operand.index, dict(operand.extents),
            dict(zip(sides, box, strict=True)),
        )  # fmt: skip
        note = (
            f"{operand.tensor.name} -> ring_{name}, {layout.boxes} box(es) of {box[0]} x {box[1]} "
            "elements by the copy engine; zeros outside the array; proved equal to what the "
            "instruction's descriptors read"
        )
        return Boxes(
            operand.tensor, f"map_{name}", f"ring_{name}", axes, layout.boxes, layout.span,
            layout.box_bytes, corner(dims, starts), note,
        )  # fmt: skip

    def _products(self) -> list[Leaf]:
        tree, tiles = self.given.tree.synchronised, self.shape.tiles
        loops = ("i", "k", "s", "m")
        layout = self._buffer("ring_a").matrix
        own = own_part(tiles, 0, _GROUP, tiles.atoms[0] * layout.block)
        score = Product(
            ("a", "b"), "scores", counter_of(tree, "score", "ring_b"), (own, ""),
            left_counter=counter_of(tree, "score", "ring_a"), columns=tiles.cta[2],
            begins="s > 0",
        )  # fmt: skip
        multiply = Product(
            (WEIGHTS, VALUES),
            "sum",
            counter_of(tree, "multiply", f"ring_{VALUES}"),
            fragment="weights[m][s]",
        )
        return [
            Leaf("score", "multiply", "wgmma", loops, score),
            Leaf("multiply", "multiply", "wgmma", loops, multiply),
            Leaf("commit_score", "commit", "wgmma", _STEP, Groups()),
            Leaf("commit_multiply", "commit", "wgmma", _STEP, Groups()),
        ]

    def _between(self) -> list[Leaf]:
        scan = self._scan()
        names = [*(("advance",) if scan.advance else ()), "weigh"]
        names += [*(("rescale",) if scan.advance else ()), "convert"]
        found = [Leaf(name, name, "threads", _STEP, scan) for name in names]
        if scan.states:
            found.append(Leaf("complete", "complete", "threads", _TILE, scan))
        return found

    def _end(self) -> list[Leaf]:
        finish = [
            Leaf("compute", "compute", "threads", (), self.out),
            Leaf("finish_element", "edge", "threads", (), self.out),
        ]
        elements, loops = _elements(self.given.atom), ("i", "m")
        registers = {name: f"state_{value}" for name, value in self.matched.states}
        own = tuple(
            (total, registers[value]) for value, total in self.out.sums if value in registers
        )
        part = self.given.schedule.tile.part
        if part:
            total, *states = room(self.matched, part)
            held = tuple(zip(self._states(), states, strict=True))
            parts = PartStore(self.out, "sum", total, held, own, elements, PART)
            combined = [replace(leaf, place=AFTER) for leaf in finish]
            return [*combined, Leaf("store", "store_parts", "threads", loops, parts)]
        work = RowStore(self.out, own, elements)
        return [*finish, Leaf("store", "store_rows_of_states", "threads", loops, work)]

    def _states(self) -> tuple[ScanState, ...]:
        """The states as registers hold them, the reference first."""
        chain = self.matched.chain
        return tuple(
            ScanState(s.value, s.monoid, "" if s.value == chain.reference else s.term, s.rescaled)
            for s in chain.states
        )

    def _scan(self) -> Scan:
        matched, tiles, atom = self.matched, self.shape.tiles, self.given.atom
        table = atom.c.table[: common_facts()["warp_size"]]
        chain = matched.chain
        advance, weigh = self._terms()
        groups = atom.k // atom.n
        pairs = carried(atom)
        return Scan(
            advance=advance,
            weigh=weigh,
            states=self._states(),
            factors=chain.correction,
            rows=tiles.atoms[0],
            row_step=atom.m,
            score_groups=tiles.cta[2] // atom.n,
            total_groups=tiles.warp[1] // atom.n,
            group_columns=atom.n,
            elements=_elements(atom),
            half_rows=int(table[0, -1, 0] - table[0, 0, 0]),
            masks=_masks(table),
            first_row=f"{self.out.row_base} + m * {atom.m} + {closed_form(table[:, 0, 0])}",
            first_key=f"{self._key} + {closed_form(table[:, 0, 1])}",
            keys=matched.values.depths[0],
            tile=tiles.cta[2],
            dtype=matched.values.operand(VALUES).tensor.dtype.name,
            fragment=tuple(
                tuple((step * groups + group, element) for group, element in pairs)
                for step in range(tiles.k_steps)
            ),
            fast=self._fast,
            short=self._fast and self.given.schedule.functions == SHORT,
            inside=self._inside(),
        )

    @property
    def _fast(self) -> bool:
        """Whether functions take forms for results of 16 bits; states of rows round nothing."""
        writes = self.matched.after.writes
        return all(w.tensor.dtype.bits <= _FAST_BITS for w in writes if w.kind != "row")

    def _inside(self) -> str:
        """When no key of a tile is masked by a range."""
        visited, tiles = self._visited, self.shape.tiles
        if visited is None or visited.range is None or not visited.range.inside:
            return ""
        row = f"b_m * {tiles.cta[0]} + w_m * {tiles.warp[0]} + m * {self.given.atom.m}"
        return visited.within(row, self.given.atom.m, self._key)

    def _terms(self) -> tuple[Terms | None, Terms]:
        """What is computed of a score, split at the reference."""
        matched, chain = self.matched, self.matched.chain
        score = matched.scores.products[0].contraction.write.name
        used = {arg for s in matched.before.statements for arg in s.args}
        own = [name for name, value in matched.states if value == chain.reference]
        given = {name: "reference" for name in own if name in used}
        if not chain.reference:
            if any(s.term == chain.weight for s in chain.states):
                raise self._both(chain.weight)
            wanted = (chain.weight, *dict.fromkeys(s.term for s in chain.states))
            return None, self._part(wanted, {score: "score"})
        (x,) = (s.term for s in chain.states if s.value == chain.reference)
        rest = dict.fromkeys(s.term for s in chain.states if s.value != chain.reference)
        if chain.weight in rest:
            raise self._both(chain.weight)
        advance = self._part((x,), {score: "score"})
        weigh = self._part((chain.weight, *rest), {x: "score", **given})
        if any(score == arg for s in weigh.statements for arg in s.args):
            raise UnsupportedProgram(
                f"{chain.weight} is made of {score} and of {x}",
                where=chain.scores.name,
                why=f"a thread keeps one number a score, {x}, which {chain.reference} is folded of",
                nearest=f"Make {chain.weight} of {x} alone",
            )
        return advance, weigh

    def _both(self, weight: str) -> UnsupportedProgram:
        return UnsupportedProgram(
            f"{weight} is folded and multiplied",
            where=self.matched.chain.scores.name,
            why="behind the last key it is 0 for the product, which the fold need not be",
            nearest="Fold the value before it is rounded",
        )

    def _part(self, wanted: tuple[str, ...], given: dict[str, str]) -> Terms:
        """The statements behind some values, up to those that are given."""
        work = self.matched.before
        needs, statements = set(wanted) - set(given), []
        for one in reversed(work.statements):
            if one.result in needs and one.result not in given:
                statements.append(one)
                needs |= {arg for arg in one.args if isinstance(arg, str)}
        statements.reverse()
        elements = {read.name: read for read in self._reads()}
        made = {s.result for s in statements}
        results = []
        for name in wanted:  # results are what casts write
            last = next((s for s in statements if s.result == name), None)
            if last is not None and last.function == "cast":
                results.append(name)
                continue
            kept = f"{name}_kept"
            statements.append(Compute(kept, "cast", (name,), F32))
            results.append(kept)
        used = {arg for s in statements for arg in s.args if isinstance(arg, str)} - made
        return Terms(
            tuple(statements),
            tuple(given.items()),
            tuple(elements[name] for name in elements if name in used),
            tuple((name, place) for name, place in work.coordinates if name in used),
            tuple(results),
            self._unmasked(statements, results),
        )

    def _unmasked(
        self, statements: Sequence[Compute], results: Sequence[str]
    ) -> tuple[Compute, ...]:
        """The statements where the mask lets everything through; none if they are the same."""
        inside = self.matched.chain.range
        if inside is None or not inside.inside:
            return ()
        changed = [
            Compute(s.result, "cast", (inside.inside,), F32) if s.result == inside.value else s
            for s in statements
        ]
        if changed == list(statements):
            return ()
        needs, found = set(results), []
        for one in reversed(changed):
            if one.result in needs:
                found.append(one)
                needs |= {arg for arg in one.args if isinstance(arg, str)}
        return tuple(reversed(found))

    def bounds(self) -> tuple[tuple[RowBound, Read], ...]:
        """The bounds of rows' keys that arrays hold, and how these are read."""
        found = self.matched.chain.range
        reads = {read.tensor.name: read for read in self._reads()}
        return tuple((one, reads[one.array]) for one in (found.arrays if found else ()))

    def _reads(self) -> tuple[Read, ...]:
        """The reads at (row, key), with their strides."""
        given = replace(
            self.given,
            program=self.matched.chain.scores,
            tree=replace(self.given.tree, match=self.matched.scores),
            work=replace(self.matched.before, writes=()),
        )
        return epilogue(given).reads


def _elements(atom: Atom) -> tuple[tuple[int, int], ...]:
    """Per element of a thread in a group of columns: which of its rows, and its column."""
    table = atom.c.table[0]
    rows = sorted({int(row) for row in table[:, 0]})
    return tuple((rows.index(int(row)), int(column - table[0, 1])) for row, column in table)


def _masks(table: np.ndarray[Any, Any]) -> tuple[int, ...]:
    """Bits in which the numbers of lanes differ that have elements of the same rows."""
    lanes = np.arange(len(table))
    bits = [1 << bit for bit in range(len(table).bit_length() - 1)]
    return tuple(bit for bit in bits if np.array_equal(table[lanes ^ bit][:, :, 0], table[:, :, 0]))
