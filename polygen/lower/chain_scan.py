"""Between a chain's products: the tiles of keys that a block visits, and what is made of scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polygen.errors import UnsupportedProgram
from polygen.frontend.dtypes import F32
from polygen.frontend.monoids import MONOIDS
from polygen.frontend.program import Program
from polygen.hardware.device import common_facts
from polygen.lower.epilogue import epilogue
from polygen.lower.given import Given
from polygen.lower.lanes import closed_form
from polygen.lower.result_work import Epilogue, Read
from polygen.lower.scan_work import Scan, ScanState, Terms, score_names
from polygen.poly.chain_match import ChainMatch
from polygen.poly.chain_shape import ChainShape
from polygen.poly.kernel_parts import main_loop
from polygen.poly.key_tiles import FIRST, KeyTiles
from polygen.poly.layer_match import LayerMatch
from polygen.poly.match import Match
from polygen.poly.pointwise import Compute, Element, Pointwork
from polygen.rewrite.key_range import RowBound

_FAST_BITS = 16
SHORT = "short"  # what a schedule says of functions


@dataclass(frozen=True, slots=True)
class KeyScan:
    """What lies between both products, and which tiles of keys it is of."""

    given: Given
    matched: ChainMatch
    shape: ChainShape
    out: Epilogue

    @property
    def visited(self) -> KeyTiles | None:
        """The tiles of keys that a block visits; None: all of its rows."""
        cta, part = self.given.schedule.tile.cta, self.given.schedule.tile.part
        if self.matched.chain.range is None and not part:
            return None
        return KeyTiles(self.matched.chain.range, cta.m, cta.k, part // cta.k)

    @property
    def tile(self) -> str:
        """Which tile of keys the block's `k`-th is."""
        return f"({FIRST} + k)" if self.visited is not None else "k"

    @property
    def key(self) -> str:
        """Where key tile `k` begins."""
        return f"{self.tile} * {self.shape.tiles.cta[2]}"

    def of_layer(self, one: LayerMatch, columns: int) -> Scan:
        """What threads do from a layer's sums to the next product's left operand.

        Args:
            one: the layer.
            columns: of its sums, as registers hold them.
        """
        atom = self.given.atom
        table = atom.c.table[: common_facts()["warp_size"]]
        program = self.matched.chain.layers[one.at].program
        found = _accesses(self.given, one.match, one.work, program, one.returned)
        wanted = tuple(dict.fromkeys((one.kept, *(w.name for w in one.returned))))
        return Scan(
            advance=None,
            weigh=_part(one.work, found.reads, wanted, score_names(one.scored)),
            states=(),
            factors=(),
            first_row=f"{self.out.row_base} + m * {atom.m} + {closed_form(table[:, 0, 0])}",
            first_key=f"0 + {closed_form(table[:, 0, 1])}",
            fast=self._fast,
            keys=one.columns,
            columns=columns,
            short=self._fast and self.given.schedule.functions == SHORT,
            layer=one.name,
            products=len(one.sums),
            again=tuple(layer for _, layer in one.again),
            returned=found.writes,
        )

    def bounds(self) -> tuple[tuple[RowBound, Read], ...]:
        """The bounds of rows' keys that arrays hold, and how these are read."""
        found = self.matched.chain.range
        reads = {read.tensor.name: read for read in self._reads()}
        return tuple((one, reads[one.array]) for one in (found.arrays if found else ()))

    def states(self) -> tuple[ScanState, ...]:
        """The states as registers hold them, the reference first."""
        chain = self.matched.chain
        return tuple(
            ScanState(s.value, s.monoid, "" if s.value == chain.reference else s.term, s.rescaled)
            for s in chain.states
        )

    def scan(self) -> Scan:
        """What threads do from a tile's scores to the weights of the second product."""
        matched, chain, atom = self.matched, self.matched.chain, self.given.atom
        table = atom.c.table[: common_facts()["warp_size"]]
        advance, weigh = self._terms()
        return Scan(
            advance=advance,
            weigh=weigh,
            states=self.states(),
            factors=chain.correction,
            first_row=f"{self.out.row_base} + m * {atom.m} + {closed_form(table[:, 0, 0])}",
            first_key=f"{self.key} + {closed_form(table[:, 0, 1])}",
            fast=self._fast,
            keys=matched.values.depths[0],
            columns=self.shape.tiles.cta[2],
            short=self._fast and self.given.schedule.functions == SHORT,
            inside=self._inside(),
            products=len(matched.sums),
            again=self.shape.again,
            returned=self._accesses().writes,
        )

    @property
    def _fast(self) -> bool:
        """Whether functions take forms for results of 16 bits; states of rows round nothing."""
        return all(one.dtype.bits <= _FAST_BITS for one in self.matched.results)

    def _inside(self) -> str:
        """When no key of a tile is masked by a range."""
        visited, tiles = self.visited, self.shape.tiles
        if visited is None or visited.range is None or not visited.range.inside:
            return ""
        row = f"b_m * {tiles.cta[0]} + w_m * {tiles.warp[0]} + m * {self.given.atom.m}"
        return visited.within(row, self.given.atom.m, self.key)

    def _terms(self) -> tuple[Terms | None, Terms]:
        """What is computed of a score, split at the reference."""
        matched, chain = self.matched, self.matched.chain
        scores = score_names(matched.scored)
        used = {arg for s in matched.before.statements for arg in s.args}
        own = [name for name, value in matched.states if value == chain.reference]
        given = {name: "reference" for name in own if name in used}
        if not chain.reference:
            wanted = (chain.kept, *(s.term for s in chain.states))
            return None, self._part(self._weighed(wanted), scores)
        (x,) = (s.term for s in chain.states if s.value == chain.reference)
        rest = (s.term for s in chain.states if s.value != chain.reference)
        advance = self._part((x,), scores)
        weigh = self._part(self._weighed((chain.kept, *rest)), {x: "score", **given})
        read = {arg for s in weigh.statements for arg in s.args}
        score = next((one for one in scores if one in read), "")
        if score:
            raise UnsupportedProgram(
                f"{chain.weight} is made of {score} and of {x}",
                where=chain.scores.name,
                why=f"a thread keeps one number a score, {x}, which {chain.reference} is folded of",
                nearest=f"Make {chain.weight} of {x} alone",
            )
        return advance, weigh

    def _weighed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """What is multiplied, what is folded and what is returned, each once: the same where it is
        summed as it is.

        Raises:
            UnsupportedProgram: it is folded in another way.
        """
        weight = self.matched.chain.weight
        folds = (s.monoid for s in self.matched.chain.states if s.term == weight)
        if any(MONOIDS[monoid].identity != (0.0,) for monoid in folds):
            raise UnsupportedProgram(
                f"{weight} is folded and multiplied",
                where=self.matched.chain.scores.name,
                why="behind the last key it is 0 for the product, which the fold need not be",
                nearest="Fold the value before it is rounded",
            )
        returned = (one.name for one in self.matched.returned)
        return tuple(dict.fromkeys((*wanted, *returned)))

    def _part(self, wanted: tuple[str, ...], given: dict[str, str]) -> Terms:
        """The statements behind some values, up to those that are given."""
        found = _part(self.matched.before, self._reads(), wanted, given)
        return replace(found, unmasked=self._unmasked(found.statements, found.results))

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

    def _reads(self) -> tuple[Read, ...]:
        """The reads at (row, key), with their strides."""
        return self._accesses().reads

    def _accesses(self) -> Epilogue:
        """What is read at (row, key), and what is stored."""
        of = self.matched
        return _accesses(self.given, of.scores, of.before, of.chain.scores, of.returned)


def _accesses(
    given: Given, match: Match, work: Pointwork, program: Program, returned: tuple[Element, ...]
) -> Epilogue:
    """What is read and stored at every element of a product's sums, with its strides."""
    tree = replace(given.tree, match=match, main=main_loop(match))
    own = replace(work, writes=returned)
    return epilogue(replace(given, program=program, tree=tree, work=own))


def _part(
    work: Pointwork, reads: tuple[Read, ...], wanted: tuple[str, ...], given: dict[str, str]
) -> Terms:
    """The statements behind some values, up to those that are given; all of them masked."""
    needs, statements = set(wanted) - set(given), []
    for one in reversed(work.statements):
        if one.result in needs and one.result not in given:
            statements.append(one)
            needs |= {arg for arg in one.args if isinstance(arg, str)}
    statements.reverse()
    elements = {read.name: read for read in reads}
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
    )
