"""Between two products: terms of the reference, what is weighed under it, states, the rescale.

A thread has elements of two rows of an instruction: index [m][row] of states and corrections. Terms
of a row are combined in two registers by turns, so that they wait less for each other. Tiles that
reach beyond the last key have code of their own: there terms are what combines to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from polygen.emit.ctext import definition
from polygen.emit.folds import combined, exchanged, identities
from polygen.emit.leaf.scan_correction import correction_lines
from polygen.emit.leaf.score_reads import arguments, by_row, pair_reads
from polygen.emit.leaf.score_terms import (
    called,
    functions,
    largest_size,
    near,
    terms_lines,
    unmasked,
    within,
)
from polygen.emit.leaf.score_writes import (
    kept_for_pair,
    pair_held,
    pair_writes,
    stored_by_row,
)
from polygen.emit.leaf.store_pairs import held_declared, pairs_text
from polygen.emit.leaf.table import Text, leaf
from polygen.emit.leaves import extent_names, made_sums, plus, size_name
from polygen.frontend.monoids import MONOIDS
from polygen.lower.carried import carried
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.result_work import Read, Write
from polygen.lower.scan_work import RowStore, Scan, Terms
from polygen.poly.chain_match import VALUES

_TURNS = 2
_UNROLL = "#pragma unroll"


def scan_helpers(plan: KernelPlan) -> list[str]:
    """Helper files that scans call."""
    found: list[str] = []
    for scan in plan.of(Scan):
        for terms in (scan.advance, scan.weigh):
            if terms is not None:
                small = bool(near(scan, terms))
                for masked, inside in ((True, False), (False, False), (False, small)):
                    found += terms_lines(scan, terms, masked=masked, small=inside)[1]
        found += correction_lines(scan)[2]
        found += [name for state in scan.states for name in _combine(state.monoid)[2]]
    return found


def scan_combining(plan: KernelPlan, known: Collection[str]) -> list[str]:
    """Functions that combine terms into states, in C; `known`: monoids that have theirs."""
    lines = []
    own = dict.fromkeys(state.monoid for scan in plan.of(Scan) for state in scan.states)
    for name in (one for one in own if one not in known):
        body, (value,), _ = _combine(name)
        lines += [
            f"__device__ __forceinline__ void combine_{name}(float& a, const float b) {{",
            *(f"  {line}" for line in body),
            f"  a = {value};",
            "}",
        ]
    return lines


def _combine(monoid: str) -> tuple[list[str], list[str], list[str]]:
    """Two numbers combined: lines of C, the result, and helper files."""
    known = MONOIDS[monoid]
    return definition(known.combine, ["a", "b"], fast=known.short)


def scan_accesses(plan: KernelPlan) -> list[Read | Write]:
    """The arrays that scores are computed with, and those in which something of them is stored."""
    scans = plan.of(Scan)
    parts = [terms for scan in scans for terms in (scan.advance, scan.weigh) if terms is not None]
    reads = (read for terms in parts for read in terms.reads)
    return [*reads, *(write for scan in scans for write in scan.returned)]


def _elements(
    plan: KernelPlan,
    scan: Scan,
    terms: Terms,
    function: str,
    beyond: Sequence[str],
    use: Callable[[int], list[str]],
    writes: Sequence[Write] = (),
) -> list[str]:
    """The loop over a thread's scores of instruction `m`, for whole tiles and for the last one.

    Args:
        plan: the kernel.
        scan: the registers.
        terms: what is computed.
        function: that computes it.
        beyond: what results are behind the last key.
        use: lines that use an element's results.
        writes: what is stored of them.
    """
    kept = [called(one.name) for one in writes]
    results, atom = [called(name) for name in terms.results], plan.atom

    def body(edge: bool, small: bool = False) -> list[str]:
        lines = [_UNROLL, f"for (int n = 0; n < {scan.columns // atom.n}; ++n) {{"]
        for element, (_, offset) in enumerate(atom.c.of_thread):
            if element % 2 == 0:
                lines += [
                    "  {",
                    *(f"    {line}" for line in pair_reads(atom, terms, element, edge)),
                    *(f"    {line}" for line in pair_held(writes)),
                ]
            given = ", ".join([*arguments(atom, scan.all_scores, terms, element), *results])
            own = unmasked(function) if terms.unmasked and not edge else function
            own = within(own) if small else own
            lines += ["    {", f"      float {', '.join(results)};", f"      {own}({given});"]
            if edge:
                place = plus(f"first_key + n * {atom.n}", offset)
                outside = " ".join(
                    f"{name} = {value};" for name, value in zip(results, beyond, strict=True)
                )
                lines.append(f"      if ({place} >= keys) {{ {outside} }}")
            lines += [f"      {scan.scores}[m][n][{element}] = {results[0]};"]
            lines += [f"      {line}" for line in use(element)]
            lines += [f"      {line}" for line in kept_for_pair(writes, element, kept)]
            lines.append("    }")
            if element % 2:
                stores = pair_writes(atom, writes, element, edge)
                lines += [*(f"    {line}" for line in stores), "  }"]
        return [*lines, "}"]

    inside = f" && {scan.inside}" if scan.inside and terms.unmasked else ""
    limit, lines = near(scan, terms), [f"if (whole{inside}) {{"]
    if limit:
        lines += [
            *(_in(line) for line in largest_size(plan, scan)),
            f"  if (__all_sync(0xffffffffu, largest <= {limit})) {{",
            *(_in(_in(line)) for line in body(False, small=True)),
            "  } else {",
            *(_in(_in(line)) for line in body(False)),
            "  }",
        ]
    else:
        lines += [_in(line) for line in body(False)]
    return [
        *lines,
        "} else {",
        *(_in(line) for line in body(True)),
        "}",
    ]


def _instance(one: Leaf) -> str:
    """The statement with its loops."""
    return f"{one.statement}[{','.join(one.loops)}]"


def _in(line: str) -> str:
    return line if line.startswith("#") else f"  {line}"


def _tile(plan: KernelPlan, scan: Scan) -> list[str]:
    """Where the tile is."""
    return [
        f"const int keys = {size_name(scan.keys)}, rows = {extent_names(plan)['m']};",
        f"const int first_key = {scan.first_key}, half_rows = {plan.atom.c.half_rows};",
        f"const bool whole = {scan.first_key.rpartition(' + ')[0]} + {scan.columns} <= keys;",
    ]


def _over_rows(plan: KernelPlan, scan: Scan, *lines: str) -> list[str]:
    by_row = any("first_row" in line for line in lines)
    return [
        _UNROLL,
        f"for (int m = 0; m < {plan.tiles.atoms[0]}; ++m) {{",
        *([f"  const int first_row = {scan.first_row};"] if by_row else []),
        *(_in(line) for line in lines),
        "}",
    ]


def _nothing(identity: str) -> str:
    """What terms of both rows are combined into."""
    each = "{" + ", ".join([identity] * _TURNS) + "}"
    return f"{{{each}, {each}}}"


def _text(lines: Sequence[str], comment: str, declarations: Sequence[str] = ()) -> Text:
    body = "\n".join(line if line.startswith("#") else f"  {line}" for line in lines)
    return Text(body, comment, tuple(declarations))


# --- the leaves ----------------------------------------------------------------------------------
@leaf("advance", "threads", Scan, ("k",), needs=("scan",))
def _(plan: KernelPlan, one: Leaf, scan: Scan) -> Text:
    terms, state = scan.advance, scan.reference
    assert terms is not None and state is not None
    (nothing,) = identities(state.monoid)
    x, register, lanes = called(terms.results[0]), state.register, plan.atom.c.same_rows
    correction, names, _ = correction_lines(scan)

    def use(element: int) -> list[str]:
        row, _ = plan.atom.c.of_thread[element]
        return [combined(state.monoid, [f"now[{row}][n % {_TURNS}]"], [x])]

    lines = [
        *_tile(plan, scan),
        *_over_rows(
            plan,
            scan,
            *by_row(terms),
            *made_sums(plan, f"{scan.scores}[m]"),
            f"float now[2][{_TURNS}] = {_nothing(nothing)};",
            *_elements(plan, scan, terms, "term_of_reference", [nothing], use),
            _UNROLL,
            "for (int row = 0; row < 2; ++row) {",
            f"  const float before = k == 0 ? {nothing} : {register}[m][row];",
            f"  {combined(state.monoid, ['now[row][0]'], ['now[row][1]'])}",
            *(f"  {line}" for line in exchanged(state.monoid, ["now[row][0]"], lanes)),
            f"  {combined(state.monoid, ['now[row][0]'], ['before'])}",
            "  // Where there is nothing yet, any number serves as the reference.",
            f"  const float after = now[row][0] == {nothing} ? 0.0f : now[row][0];",
            *(f"  {line}" for line in correction),
            f"  correction[m][row] = before == {nothing} ? 0.0f : {names};",
            f"  {register}[m][row] = now[row][0];",
            "}",
        ),
    ]
    declared = [
        f"float {register}[{plan.tiles.atoms[0]}][2], correction[{plan.tiles.atoms[0]}][2];",
        *functions("term_of_reference", scan, terms),
    ]
    comment = (
        f"{_instance(one)}: {state.value} with the keys of the tile, and what sums under the "
        "one before are worth under it"
    )
    return _text(lines, comment, declared)


@leaf("weigh", "threads", Scan, ("k",), needs=("scan",))
def _(plan: KernelPlan, one: Leaf, scan: Scan) -> Text:
    terms = scan.weigh
    reference = scan.reference
    beyond = ["0.0f"] * len(terms.results)
    value_of = {name.removesuffix("_kept"): called(name) for name in terms.results}
    for state in scan.summed:
        at = next(
            n for n, name in enumerate(terms.results) if name.removesuffix("_kept") == state.term
        )
        # What is multiplied is 0 outside; where it is folded, too, the one that adds nothing.
        beyond[at] = identities(state.monoid)[0]

    def use(element: int) -> list[str]:
        row, _ = plan.atom.c.of_thread[element]
        return [
            combined(s.monoid, [f"part_{s.value}[{row}][n % {_TURNS}]"], [value_of[s.term]])
            for s in scan.summed
        ]

    parts, ends = [], []
    for s in scan.summed:
        (nothing,) = identities(s.monoid)
        parts.append(f"float part_{s.value}[2][{_TURNS}] = {_nothing(nothing)};")
        scaled = (
            f"{s.register}[m][row] * correction[m][row]" if s.rescaled else f"{s.register}[m][row]"
        )
        ends += [
            f"  float sum_{s.value} = k == 0 ? {nothing} : {scaled};",
            *(
                f"  {combined(s.monoid, [f'sum_{s.value}'], [f'part_{s.value}[row][{t}]'])}"
                for t in range(_TURNS)
            ),
            f"  {s.register}[m][row] = sum_{s.value};",
        ]
    head = made_sums(plan, f"{scan.scores}[m]") if reference is None else []
    if reference is not None:
        (nothing,) = identities(reference.monoid)
        held = (f"{reference.register}[m][{row}]" for row in range(2))
        both = ", ".join(f"{name} == {nothing} ? 0.0f : {name}" for name in held)
        head.append(f"const float reference[2] = {{{both}}};")
    lines = [
        *_tile(plan, scan),
        *_over_rows(
            plan,
            scan,
            *by_row(terms),
            *stored_by_row(scan.returned),
            *head,
            *parts,
            *_elements(
                plan, scan, terms, scan.called("terms_of_score"), beyond, use, scan.returned
            ),
            *([_UNROLL, "for (int row = 0; row < 2; ++row) {", *ends, "}"] if ends else []),
        ),
    ]
    declared = [f"float {s.register}[{plan.tiles.atoms[0]}][2];" for s in scan.summed]
    declared += functions(scan.called("terms_of_score"), scan, terms)
    under = f" under {reference.value}" if reference is not None else ""
    stored = ", and results" if scan.returned else ""
    comment = f"{_instance(one)}: what is multiplied{under}, and states of rows{stored}"
    return _text(lines, comment, declared)


@leaf("rescale", "threads", Scan, ("k",), needs=("scan",))
def _(plan: KernelPlan, one: Leaf, scan: Scan) -> Text:
    columns = ", ".join(
        f"sum[m][n][{element}] *= correction[m][{row}]"
        for element, (row, _) in enumerate(plan.atom.c.of_thread)
    )
    lines = [
        _UNROLL,
        f"for (int m = 0; m < {plan.tiles.atoms[0]}; ++m) {{",
        *(f"  {line}" for line in made_sums(plan, "sum[m]")),
        "  // A warp whose rows all keep their reference has nothing to do.",
        "  const bool same = correction[m][0] == 1.0f && correction[m][1] == 1.0f;",
        "  if (!__all_sync(0xffffffffu, same)) {",
        _UNROLL,
        f"    for (int n = 0; n < {plan.tiles.warp[1] // plan.atom.n}; ++n) {columns};",
        "  }",
        "}",
    ]
    return _text(lines, f"{_instance(one)}: sums for the reference of this tile")


@leaf("convert", "threads", Scan, needs=("scan",))
def _(plan: KernelPlan, one: Leaf, scan: Scan) -> Text:
    found, steps = carried(plan.atom), scan.columns // plan.atom.k
    rows, behind = plan.tiles.atoms[0], "next" if scan.layer else "second"
    kind = plan.match.operand(VALUES).tensor.dtype
    each, count = plan.atom.k // plan.atom.n if steps > 1 else 0, len(found.registers)
    step = "s" if each == 1 else f"s * {each}"
    body = []
    for register, held in enumerate(found.registers):
        own = f"{scan.weights}[m][s][{register}]"
        numbers = [f"{scan.scores}[m][{plus(step, group)}][{element}]" for group, element in held]
        if len(held) > 1:
            body.append(f"  {own} = pack_{kind}({', '.join(numbers)});")
        elif plan.atom.pieces > 1:
            rest = f"{scan.weights}[m][s][{count + register}]"
            body.append(f"  {own} = __float_as_uint({numbers[0]});")
            body.append(f"  split_to_tf32({own}, {rest});")
        else:
            body.append(f"  {own} = round_to_tf32(__float_as_uint({numbers[0]}));")
    lines = [
        _UNROLL,
        f"for (int m = 0; m < {plan.tiles.atoms[0]}; ++m)",
        _UNROLL,
        f"  for (int s = 0; s < {steps}; ++s) {{",
        *(f"  {line}" for line in body),
        "  }",
    ]
    comment = (
        f"{_instance(one)}: {scan.scores} -> the {behind} product's operand, proved to be in the "
        "registers of the same thread"
    )
    words = count * plan.atom.pieces
    return _text(lines, comment, [f"unsigned {scan.weights}[{rows}][{steps}][{words}];"])


@leaf("complete", "threads", Scan, needs=("scan",))
def _(plan: KernelPlan, one: Leaf, scan: Scan) -> Text:
    lines = [_UNROLL, f"for (int m = 0; m < {plan.tiles.atoms[0]}; ++m) {{", _UNROLL]
    lines.append("  for (int row = 0; row < 2; ++row) {")
    for state in scan.summed:
        register = f"{state.register}[m][row]"
        met = exchanged(state.monoid, [register], plan.atom.c.same_rows)
        lines += [f"    {line}" for line in met]
    lines += ["  }", "}"]
    return _text(
        lines if scan.summed else [], f"{_instance(one)}: states of threads -> states of rows"
    )


@leaf("store_rows_of_states", "threads", RowStore, ("m",), needs=("scan",))
def _(plan: KernelPlan, one: Leaf, work: RowStore) -> Text:
    text = pairs_text(plan, work.epilogue, dict(work.states))
    does = "terms of rows" if work.epilogue.suffix else "results"
    comment = f"{_instance(one)}: sums and states -> {does}, two adjacent ones at a time"
    of_sums = any(name == "sum" for _, name in work.epilogue.sums)
    made = "".join(f"  {line}\n" for line in made_sums(plan, "sum[m]") if of_sums)
    return Text(made + text, comment, held_declared(plan, work.epilogue))
