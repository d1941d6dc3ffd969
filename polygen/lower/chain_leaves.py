"""The leaves of a chain: what both places do, from the products to what the rows store."""

from __future__ import annotations

from dataclasses import dataclass, replace

from polygen.lower.accesses import corner, map_axes
from polygen.lower.buffers import Buffer
from polygen.lower.chain_scan import KeyScan
from polygen.lower.chain_warps import warp_leaves
from polygen.lower.epilogue import finish, own_part, panel, store
from polygen.lower.find_pages import PIECE, find_pages, in_one_page
from polygen.lower.folds import around
from polygen.lower.given import Given
from polygen.lower.key_parts import AFTER, room
from polygen.lower.plan import Leaf
from polygen.lower.result_work import Epilogue
from polygen.lower.scan_work import PartStore, RowStore
from polygen.lower.sync_work import Groups, Nothing, Placed
from polygen.lower.synchronise import AGENTS, counter_of, sync_leaves
from polygen.lower.work import FIRST_OF_TILE, Boxes, Locate, LocateRows, Move, Product
from polygen.poly.by_chain import page_registers
from polygen.poly.chain_match import VALUES, WEIGHTS, ChainMatch
from polygen.poly.chain_shape import ChainShape
from polygen.poly.key_pages import KeyPages, PagedOperand
from polygen.poly.key_tiles import PART
from polygen.poly.operand import Operand

_GROUP = AGENTS["consumer"]
_READ: tuple[str, ...] = ()  # loops are those of the tile program


@dataclass(frozen=True, slots=True)
class ChainLeaves:
    """Writes down the leaves of both places, in the order in which they are declared."""

    given: Given
    matched: ChainMatch
    shape: ChainShape
    buffers: tuple[Buffer, ...]
    syncs: tuple[Placed, ...]
    out: Epilogue
    between: KeyScan

    def all(self) -> list[Leaf]:
        """The leaves."""
        if self.shape.roles:
            found = self._of_roles()
        else:
            named = {one.name: one for one in self.buffers}
            found = warp_leaves(
                self.given, self.matched, self.shape, named, self.between, self._between()
            )
            found += self._end()
        return [*map(self._placed, found), *sync_leaves(self.given, self.syncs, "")]

    def _of_roles(self) -> list[Leaf]:
        """Those of producer and consumers."""
        raster, batches = self.given.schedule.raster, self.matched.values.batches
        locate = Locate("m", "n", raster.group, (1, 1), batches, None)
        found = [Leaf("locate", "locate", "threads", _READ, locate)]
        visited = self.between.visited
        if visited is not None and self.shape.varying:
            rows = LocateRows(batches, *visited.of_rows())
            found = [Leaf("locate", "locate_rows", "threads", _READ, rows)]
        elif visited is not None:
            found = [Leaf("locate", "located", "threads", _READ, Nothing())]
        found += self._finds()
        found += [self._fill(name, operand) for name, operand in self.matched.operands]
        return [*found, *self._between(), *self._products(), *self._end()]

    def _placed(self, leaf: Leaf) -> Leaf:
        """A leaf with the loops and the place that its statement was proved to have.

        What several places call stands in front of them; what no loop calls, where it is used.
        """
        program = self.given.tree.synchronised.program
        named = [s for s in program.statements if leaf.statement in (s.name, s.calls)]
        if not named:
            return replace(leaf, place=leaf.place or program.statement("store").place.name)
        place = named[0].place.name if len(named) == 1 else ""
        return replace(leaf, loops=named[0].loops, place=place)

    def _finds(self) -> list[Leaf]:
        """What finds the pages of keys and values that lie in pages."""
        operands, both = dict(self.matched.operands), self.matched.chain
        tensors = both.scores.tensors | both.values.tensors
        return [
            find_pages(
                name, operands[name], one, tensors[one.table], self._pages(one), self.between.tile
            )
            for name, one in self.matched.paged.items()
        ]

    def _pages(self, paged: PagedOperand) -> KeyPages:
        return KeyPages(paged.page, self.shape.tiles.cta[2])

    def _buffer(self, name: str) -> Buffer:
        return next(b for b in self.buffers if b.name == name)

    def _fill(self, name: str, operand: Operand) -> Leaf:
        statement = f"fill_{name}"
        full = next(p for p in self.syncs if p.bytes and statement in dict(p.sync.signals))
        counter = counter_of(self.given.tree.synchronised, statement, full.sync.buffers[0])
        boxes = self._boxes(name, operand)
        work = Move((boxes,), full, counter, boxes.note)
        return Leaf(statement, "move", "tma", _READ, work)

    def _boxes(self, name: str, operand: Operand) -> Boxes:
        """The boxes of one operand's tile."""
        layout = self._buffer(f"ring_{name}").matrix
        rows, columns, _ = self.shape.tiles.cta
        first = name != VALUES
        starts = {
            "m": f"b_m * {rows}",
            "n": self.between.key if first else f"b_n * {columns}",
            "k": "0" if first else self.between.key,
        }
        paged = self.matched.paged.get(name)
        pieces, pages, found, way = 1, "", operand.index, ""
        if paged is not None:
            own = self._pages(paged)
            pieces, pages = own.boxes, page_registers(name)
            starts["n" if first else "k"] = own.row(self.between.tile)
            starts[str(operand.index[paged.axis])] = f"{pages}[{PIECE}]"
            found = in_one_page(operand.index)
            way = f", from pages that {paged.table} names, {own}"
        box = (layout.rows // pieces, layout.span // operand.tensor.dtype.bytes)
        sides = (operand.role, "k") if operand.k_contiguous else ("k", operand.role)
        axes, _ = map_axes(
            operand.tensor, operand.index, dict(operand.extents),
            dict(zip(sides, box, strict=True)),
        )  # fmt: skip
        _, dims = map_axes(
            operand.tensor, found, dict(operand.extents), dict(zip(sides, box, strict=True))
        )
        note = (
            f"{operand.tensor.name} -> ring_{name}, {layout.boxes * pieces} box(es) of {box[0]} x "
            f"{box[1]} elements by the copy engine{way}; zeros outside the array; proved equal to "
            "what the instruction's descriptors read"
        )
        return Boxes(
            operand.tensor, f"map_{name}", f"ring_{name}", axes, layout.boxes, layout.span,
            layout.box_bytes, corner(dims, starts), note, pieces=pieces, pages=pages,
        )  # fmt: skip

    def _products(self) -> list[Leaf]:
        tree, tiles = self.given.tree.synchronised, self.shape.tiles
        layout = self._buffer("ring_a").matrix
        own = own_part(tiles, 0, _GROUP, tiles.atoms[0] * layout.block)
        score = Product(
            ("a", "b"), "scores", counter_of(tree, "score", "ring_b"), (own, ""),
            left_counter=counter_of(tree, "score", "ring_a"), columns=tiles.cta[2],
            overwrites=(("s", 0),),
        )  # fmt: skip
        multiply = Product(
            (WEIGHTS, VALUES),
            "sum",
            counter_of(tree, "multiply", f"ring_{VALUES}"),
            fragment="weights[m][s]",
            overwrites=FIRST_OF_TILE,
        )
        return [
            Leaf("score", "multiply", "wgmma", _READ, score),
            Leaf("multiply", "multiply", "wgmma", _READ, multiply),
            Leaf("commit_score", "commit", "wgmma", _READ, Groups()),
            Leaf("commit_multiply", "commit", "wgmma", _READ, Groups()),
        ]

    def _between(self) -> list[Leaf]:
        scan = self.between.scan()
        names = [*(("advance",) if scan.advance else ()), "weigh"]
        names += [*(("rescale",) if scan.advance else ()), "convert"]
        found = [Leaf(name, name, "threads", _READ, scan) for name in names]
        if scan.states:
            found.append(Leaf("complete", "complete", "threads", _READ, scan))
        return found

    def _panels(self, states: tuple[tuple[str, str], ...]) -> list[Leaf]:
        """What makes panels of results, and has the copy engine store them."""
        given, tree = self.given, self.given.tree.synchronised
        results = []
        for name, element in zip(
            self.shape.panels.outputs, self.matched.in_panels.writes, strict=True
        ):
            buffer = self._buffer(f"result_{name}")
            counter = counter_of(tree, "finish", buffer.name)
            results.append(panel(given, element, buffer, self.shape.panels, counter))
        made = finish(given, self.out, (), tuple(results))
        held = ("states",) if self.shape.states else ()
        beside = tuple(one for one in self.out.writes if one.kind == "row")
        made = replace(made, states=states, held=held, beside=beside)
        return [
            Leaf("finish", "finish", "threads", _READ, made),
            Leaf("store", "store", "tma", _READ, store(given, made.results)),
        ]

    def _end(self) -> list[Leaf]:
        edge = [
            Leaf("compute", "compute", "threads", (), self.out),
            Leaf("finish_element", "edge", "threads", (), self.out),
        ]
        own = self._states(self.out)
        part = self.given.schedule.tile.part
        if part:
            total, *states = room(self.matched, part)
            held = tuple(zip(self.between.states(), states, strict=True))
            parts = PartStore(self.out, "sum", total, held, own, PART)
            combined = [replace(leaf, place=AFTER) for leaf in edge]
            return [*combined, Leaf("store", "store_parts", "threads", _READ, parts)]
        if self.shape.panels.columns:
            return [*edge, *self._panels(own)]

        def stores(one: Epilogue) -> tuple[str, RowStore]:
            return "store_rows_of_states", RowStore(one, self._states(one))

        op, work = stores(self.out)
        store = Leaf("store", op, "threads", _READ, work)
        return [*edge, *around((store,), self.out, _READ, terms=stores)]

    def _states(self, one: Epilogue) -> tuple[tuple[str, str], ...]:
        """The variables of a pass that are states, and their registers."""
        registers = {name: f"state_{value}" for name, value in self.matched.states}
        return tuple((total, registers[value]) for value, total in one.sums if value in registers)
