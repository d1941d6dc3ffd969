"""`Chain` -> its two products in the dims of the kernel, and what is computed at every element.

The dims are those of the results: m counts rows, n columns, k keys, z0, z1, ... matrices. The first
product has its keys along its own n, and sums over a dim that no tile cuts. Folds of results are
split as those of any product (`polygen.poly.folds`): the kernel makes terms of them, in passes over
the sums where elements use results of their own rows there (`polygen.poly.row_passes`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from polygen.errors import UnsupportedProgram
from polygen.frontend.program import Program, Tensor
from polygen.poly.folds import Split, split_results
from polygen.poly.fusion import Fusion, fuse
from polygen.poly.key_pages import PagedOperand, paged_operand
from polygen.poly.layer_match import (
    ROWS,
    LayerMatch,
    Left,
    match_layers,
    read_again,
    require_one_left,
    require_rows_of,
    sized,
)
from polygen.poly.match import Along, Match, match
from polygen.poly.operand import Operand
from polygen.poly.pointwise import Element, Pointwork, pointwork
from polygen.poly.prologue import size_in_front
from polygen.poly.row_passes import in_passes
from polygen.poly.scop import scop
from polygen.rewrite.chain import Chain
from polygen.rewrite.key_range import KeyRange

WEIGHTS, VALUES = "weights", "c"  # the second product's operands, as the tile program calls them


@dataclass(frozen=True, slots=True)
class ChainMatch:
    """A chain in the kernel's dims.

    Attributes:
        chain: what is run.
        scores: the first product, or several of the same rows; m: rows, n: keys, k: what it sums
            over.
        values: the second; m: rows, n: columns, k: keys.
        fusion: of the second program.
        before: what is computed at every (row, key), m and n of the first product.
        split: the second program, with a term for each component in a fold's place.
        after: what is computed at every result; states are none of its reads.
        states: what `before` and `after` call the states that they read: (variable, state).
        layers: that make the rows of the first product; none where they are an argument.
        again: what `before` reads of what these have made: variable, and whose registers it is in.
        behind: the same of `after`, of what the first product has left ("") as well.
    """

    chain: Chain
    scores: Match
    values: Match
    fusion: Fusion
    split: Split
    before: Pointwork
    after: Pointwork
    states: tuple[tuple[str, str], ...]
    layers: tuple[LayerMatch, ...] = ()
    again: tuple[tuple[str, str], ...] = ()
    behind: tuple[tuple[str, str], ...] = ()

    @property
    def depth(self) -> int:
        """Elements that the first product sums over."""
        found = self.scores.depths[0]
        assert isinstance(found, int)
        return found

    @property
    def columns(self) -> int:
        """Columns of a matrix of results."""
        assert isinstance(self.values.n, int)
        return self.values.n

    @property
    def item(self) -> int:
        """Bytes of an element of the operands."""
        return self.values.operand(VALUES).tensor.dtype.bytes

    @property
    def in_panels(self) -> Pointwork:
        """What is computed at every result, with those results that panels hold: matrices."""
        matrices = tuple(one for one in self.after.writes if one.kind != "row")
        return replace(self.after, writes=matrices)

    @property
    def width(self) -> int:
        """Keys, where there is a number of them: columns of the first product's sums."""
        assert isinstance(self.scores.n, int)
        return self.scores.n

    @property
    def folds(self) -> bool:
        """Whether results are folded, in tiles or in the launch that follows."""
        return bool(self.chain.values.folds)

    @property
    def results(self) -> tuple[Tensor, ...]:
        """What is returned, but for values of rows' states, which round nothing."""
        kept = self.after.kept
        stored = [w.tensor for w in self.after.writes if w.kind != "row" and w.name not in kept]
        made = {one.tensor.name for one in self.after.writes}
        others = (t for t in self.chain.values.outputs if t.name not in made)
        return (*stored, *others, *self.chain.returned, *self.returned_by_layers)

    @property
    def returned_by_layers(self) -> tuple[Tensor, ...]:
        """The results that are made of the sums of layers alone."""
        return tuple(tensor for one in self.chain.layers for tensor in one.returned)

    @property
    def returned(self) -> tuple[Element, ...]:
        """The results that are made of the first product's sums."""
        names = {tensor.name for tensor in self.chain.returned}
        return tuple(one for one in self.before.writes if one.tensor.name in names)

    @property
    def whole(self) -> bool:
        """Whether a tile has all keys: rows of them stay in registers, in places of their own."""
        return bool(self.again) or any(not layer for _, layer in self.behind)

    @property
    def paged(self) -> dict[str, PagedOperand]:
        """The operands whose keys lie in pages, by the name of their ring."""
        found = {
            name: paged_operand(operand.index if name == VALUES else renamed(operand.index))
            for name, operand in self.operands
        }
        return {name: one for name, one in found.items() if one is not None}

    @property
    def operands(self) -> tuple[tuple[str, Operand], ...]:
        """The arrays that are multiplied, by the name of their ring."""
        values = (VALUES, self.values.operand(VALUES))
        if not self.layers:
            return (*self.scores.operands, values)
        keys = (one for one in self.scores.operands if one[0] != self.scores.products[0].left)
        rights = (right for one in self.layers for right in one.rights)
        return ((ROWS, self.layers[0].left), *rights, *keys, values)

    @property
    def sums(self) -> tuple[str, ...]:
        """What the program calls the sums of the first product, or of several of the same rows."""
        return tuple(one.contraction.write.name for one in self.scores.products)

    @property
    def scored(self) -> tuple[str, ...]:
        """All that a score is made of in registers: sums, and what layers have made."""
        return (*self.sums, *(name for name, _ in self.again))

    @property
    def by_warps(self) -> bool:
        """Whether it is for warps that do everything: with layers, or several first products."""
        return bool(self.layers) or len(self.scores.products) > 1


def match_chain(chain: Chain, *, behind: bool = False) -> ChainMatch:
    """Both products in the kernel's dims.

    Args:
        chain: what is run.
        behind: whether rows that use results of their own do so in the launch that follows; else in
            the kernel, where a tile has them whole.

    Raises:
        UnsupportedProgram: rows or matrices of the one are not those of the other.
    """
    scores_fusion, scores = _matched(chain.scores)
    arrays = {one.name: one.name for one in chain.values.inputs if one.dims}
    split = split_results(chain.values, of_tiles=arrays)  # parts of keys are merged without them
    if not behind and _covered(split):
        with contextlib.suppress(UnsupportedProgram):  # then the launch that follows has them
            split = in_passes(chain.values, split)
    fusion, values = _matched(split.main, dict(split.passes.statements) if split.passes else {})
    before = pointwork(chain.scores, scores_fusion, scores)
    chain = replace(chain, range=_readable(chain.range, before))
    after = pointwork(split.main, fusion, values, split)
    _require_results_alone(chain, split)
    _require_same_rows(chain, scores, values, before)
    require_one_left(chain.scores, scores)
    layers = match_layers(chain.layers)
    if layers:
        require_rows_of(chain.scores, layers[-1], scores)
    for work in (before, *(one.work for one in layers)):
        if work.sizes:
            raise size_in_front(work.sizes[0][0])
    left = [one.leaves for one in layers]
    before, again = read_again(chain.scores, before, left)
    own = next(one.index for one in before.writes if one.name == chain.kept)
    after, read = _read_behind(chain.values, after, [*left, Left(chain.kept, own, "")])
    values = _named(values)
    states = {state.value for state in chain.states}
    known = [
        (read.name, read.tensor.name)
        for one in (before, *after.before, after)
        for read in one.reads
        if read.tensor.name in states
    ]
    found = ChainMatch(
        chain,
        scores,
        values,
        fusion,
        split,
        _own(_without(before, states)),
        _of_states(after, states, chain),
        tuple(dict.fromkeys(known)),
        layers,
        again,
        read,
    )
    return found


def _read_behind(
    program: Program, after: Pointwork, left: list[Left]
) -> tuple[Pointwork, tuple[tuple[str, str], ...]]:
    """The same as `read_again`, of all passes."""
    *before, last = (read_again(program, one, left) for one in (*after.before, after))
    behind = dict(pair for _, found in (*before, last) for pair in found)
    return replace(last[0], before=tuple(one for one, _ in before)), tuple(behind.items())


def _readable(found: KeyRange | None, before: Pointwork) -> KeyRange | None:
    """The range with those bounds that arrays hold of which a row has one element, read as it is.

    The others stay conditions that are computed at every key.
    """
    if found is None:
        return None
    kept = []
    for one in found.arrays:
        reads = [read for read in before.reads if read.tensor.name == one.array]
        plain = all(a.per == 1 and not (a.group or a.rows) for r in reads for a in r.index)
        if len(reads) == 1 and plain:
            kept.append(one)
    made = replace(found, arrays=tuple(kept))
    return made if made.bounded else None


def _covered(split: Split) -> bool:
    """Whether a tile, which has all columns, has whole rows of all that use results of theirs."""
    return len(split.rows) == 1 and split.rows[0].own == tuple(range(len(split.rows[0].axes) - 1))


def _matched(program: Program, passes: Mapping[str, int] | None = None) -> tuple[Fusion, Match]:
    fusion = fuse(program, scop(program, passes=passes), passes)
    return fusion, match(program, fusion)


def _without(work: Pointwork, states: set[str]) -> Pointwork:
    return replace(work, reads=tuple(r for r in work.reads if r.tensor.name not in states))


def _own(work: Pointwork) -> Pointwork:
    """What is written and read again is a value, and no array."""
    made = {write.name for write in work.writes}
    names = {read.name: read.tensor.name for read in work.reads if read.tensor.name in made}
    statements = tuple(
        replace(s, args=tuple(names.get(a, a) if isinstance(a, str) else a for a in s.args))
        for s in work.statements
    )
    reads = tuple(read for read in work.reads if read.name not in names)
    return replace(work, reads=reads, statements=statements)


def _of_states(after: Pointwork, states: set[str], chain: Chain) -> Pointwork:
    """What is computed at every result, in all passes, with states that are no arrays."""
    before = tuple(_without(one, states) for one in after.before)
    return replace(_with_rows(_without(after, states), chain), before=before)


def _with_rows(work: Pointwork, chain: Chain) -> Pointwork:
    """Outputs of one element a row are arrays without columns."""
    rows = {tensor.name: tensor for tensor in chain.rows}

    def write(element: Element) -> Element:
        tensor = rows.get(element.name)
        return element if tensor is None else Element(element.name, tensor, element.index[:-1])

    return replace(work, writes=tuple(map(write, work.writes)))


def _named(values: Match) -> Match:
    """The second product with its operands called as in the tile program."""
    (product,) = values.products
    names = {product.left: WEIGHTS, product.right: VALUES}
    return replace(
        values,
        products=(replace(product, left=WEIGHTS, right=VALUES),),
        operands=tuple((names[name], operand) for name, operand in values.operands),
    )


def _require_same_rows(chain: Chain, scores: Match, values: Match, before: Pointwork) -> None:
    """Rows, keys and matrices of what is scored are those of what is multiplied."""
    scored = next(write.index for write in before.writes if write.name == chain.weight)
    (product,) = values.products
    operand = values.operand(product.left)
    turned = {"n": "k"}
    wanted = tuple(replace(one, dim=turned.get(one.dim, one.dim)) for one in scored)
    same = operand.tensor.name == chain.weight and operand.index == wanted
    if same and scores.batches == values.batches:
        return
    raise UnsupportedProgram(
        f"{chain.weight}[{', '.join(map(str, wanted))}] is multiplied as "
        f"[{', '.join(map(str, operand.index))}]",
        where=chain.values.name,
        why="rows of the first product stay in the registers of the threads that multiply them, "
        "and results are stored with their columns innermost",
        nearest="Write f(q @ k.mT) @ v, with a result whose last axis is that of v",
    )


def _require_results_alone(chain: Chain, split: Split) -> None:
    """Refuse work on states of rows, or on what is left of layers, in the launch that follows,
    which has none of them.

    Raises:
        UnsupportedProgram: with the statement.
    """
    left = {chain.kept, *(one.kept for one in chain.layers)}
    whose = dict.fromkeys(left, ("of a layer", "what a layer makes is"))
    whose |= {state.value: ("a row's", "states of rows are") for state in chain.states}
    late = (*split.after, *(one for rows in split.rows for one in rows.statements))
    for one in late:
        for access in one.reads:
            if access.name in whose:
                of, what = whose[access.name]
                raise UnsupportedProgram(
                    f"{one.name} reads {access}, {of}, beside a fold of results",
                    where=chain.values.name,
                    why=f"{what} in the registers of the kernel, and results of folds are known "
                    "behind it",
                    nearest=f"Return {access.name} as well, and combine both outside",
                )


def require_numbers(found: ChainMatch) -> None:
    """Refuse head dims that have no numbers.

    Raises:
        UnsupportedProgram: with the dim.
    """
    chain, scores, values = found.chain, found.scores, found.values
    own = (("sums over", scores.depths[0]), ("has columns", values.n))
    keys = (("sums over", values.depths[0]),) if found.whole else ()
    for what, extent in (*sized(found.layers), *own, *keys):
        if not isinstance(extent, int):
            error = UnsupportedProgram(
                f"a product of a chain {what} {extent}",
                where=chain.values.name,
                why="its tile holds the whole of it",
                nearest=f'Give {extent} as a number in the signature, as in "bf16[B,S,128]"',
            )
            error.unknown = (extent,)
            raise error


# Dims of the first product -> those of the kernel.
KEYS = {"n": "k", "k": "depth"}


def renamed(index: tuple[Along, ...]) -> tuple[Along, ...]:
    """An index of the first product in the dims of the kernel: its keys are k."""
    return tuple(one.renamed(KEYS) for one in index)
