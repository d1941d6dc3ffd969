"""What is computed of one score, as functions in front of a leaf.

There are up to three of a kind: with the mask that the program has; where it lets everything
through; and where all scores of a warp's tile are so small that the tangents of them are short
polynomials (`polygen.emit.exponentials`). What is computed of a score depends on that score alone.
"""

from __future__ import annotations

from polygen.emit.ctext import pointwise
from polygen.emit.exponentials import (
    become_exponents,
    by_powers_of_two,
    tangent_of,
    with_factors_met,
    with_scaled_tangents,
    with_short_tangents,
    within_limits,
)
from polygen.emit.functions import literal
from polygen.emit.names import c_name
from polygen.lower.plan import KernelPlan
from polygen.lower.scan_work import Scan, Terms
from polygen.poly.pointwise import Compute

_SCORE = "score"


def called(name: str) -> str:
    """What a result is called where it is computed."""
    return f"{name}_out"


def unmasked(function: str) -> str:
    """The function where no key of a tile is masked."""
    return f"{function}_unmasked"


def within(function: str) -> str:
    """The function where all scores are small."""
    return f"{function}_within"


def _statements(scan: Scan, terms: Terms, *, masked: bool) -> tuple[Compute, ...]:
    """The statements on one score as they are written."""
    found = terms.statements if masked or not terms.unmasked else terms.unmasked
    if not scan.fast:
        return found
    found = with_factors_met(by_powers_of_two(found), terms.results)
    if scan.short or len(scan.all_scores) > 1:  # short forms are for what is made of one score
        return found
    if scan.advance is None:
        found = with_short_tangents(found, _given(terms), terms.results, added=False)
        return with_scaled_tangents(found)
    if terms is scan.advance and _become_exponents(scan.weigh):
        found = with_short_tangents(found, _given(terms), terms.results)
    return found


def _given(terms: Terms) -> str:
    """The value that the score is."""
    return next(name for name, parameter in terms.given if parameter == _SCORE)


def _become_exponents(terms: Terms) -> bool:
    """Whether a score is read by exponentials alone."""
    return become_exponents(terms.statements, _given(terms), terms.results)


def near(scan: Scan, terms: Terms) -> str:
    """Up to which size of scores there is a function for small ones, in C; "": there is none."""
    if len(scan.all_scores) > 1:
        return ""
    scale = tangent_of(_statements(scan, terms, masked=False), _given(terms))
    return f"0.5f / fabsf({literal(scale)})" if scale is not None else ""


def terms_lines(
    scan: Scan, terms: Terms, *, masked: bool = True, small: bool = False
) -> tuple[list[str], tuple[str, ...]]:
    """The statements on one score, and the helper files they need.

    Args:
        scan: whose they are.
        terms: what is computed.
        masked: whether keys may be masked.
        small: whether all scores are small.
    """
    names = dict(terms.given) | {name: name for name, _ in terms.coordinates}
    names |= {r.name: c_name(r.tensor.name) if r.kind == "scalar" else r.name for r in terms.reads}
    outputs = {name: called(name) for name in terms.results}
    statements = _statements(scan, terms, masked=masked)
    statements = within_limits(statements) if small else statements
    return pointwise(statements, names, outputs, scan.fast, short=scan.short)


def functions(name: str, scan: Scan, terms: Terms) -> list[str]:
    """The functions of one score, declared in front of its leaf."""
    parameters = [f"float {name}" for _, name in terms.given]
    parameters += [f"float {read.name}" for read in terms.reads if read.kind != "scalar"]
    parameters += [f"float {name}" for name, _ in terms.coordinates]
    parameters += [f"float& {called(name)}" for name in terms.results]
    open_ = unmasked(name) if terms.unmasked else name
    kinds = {name: (True, False)} | ({open_: (False, False)} if terms.unmasked else {})
    kinds |= {within(open_): (False, True)} if near(scan, terms) else {}
    found = []
    for own, (masked, small) in kinds.items():
        lines, _ = terms_lines(scan, terms, masked=masked, small=small)
        found += [
            f"auto {own} = [&]({', '.join(parameters)}) __attribute__((always_inline)) {{",
            *(f"  {line}" for line in lines),
            "};",
        ]
    return found


def largest_size(plan: KernelPlan, scan: Scan) -> list[str]:
    """The largest size of a thread's scores: of each element of a group first, so that they wait
    less for each other.
    """
    count = len(plan.atom.c.of_thread)
    held = (f"{scan.scores}[m][n][{n}]" for n in range(count))
    each = (f"  sizes[{n}] = fmaxf(sizes[{n}], fabsf({one}));" for n, one in enumerate(held))
    largest = "sizes[0]"
    for n in range(1, count):
        largest = f"fmaxf({largest}, sizes[{n}])"
    return [
        f"float sizes[{count}] = {{}};",
        "#pragma unroll",
        f"for (int n = 0; n < {scan.columns // plan.atom.n}; ++n) {{",
        *each,
        "}",
        f"const float largest = {largest};",
    ]
