"""The table of leaves: what a statement of each (op, unit) becomes in CUDA.

A leaf is a lambda named like its statement, so that the loops are, line for line, the ones that isl
generated. It takes all iterators of its statement, and gives names to those that it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from polygen.emit.environment import environment
from polygen.emit.text_functions import UNKNOWN
from polygen.errors import UndecidedText, VerifyError
from polygen.lower.plan import KernelPlan, Leaf

INDENT = "  "


@dataclass(frozen=True, slots=True)
class Text:
    """One leaf in CUDA, at the margin.

    Attributes:
        body: lines of the lambda, one level deep; directives at the margin.
        comment: what it is for.
        declarations: lines in front of it, and of those that stand in front of it.
        inline: whether the body is one line beside its braces.
        parameters: where they are not its statement's iterators.
    """

    body: str
    comment: str = ""
    declarations: tuple[str, ...] = ()
    inline: bool = False
    parameters: str | None = None

    @property
    def code(self) -> str:
        """All that is run: declarations, and the body."""
        return "\n".join((*self.declarations, self.body))


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table.

    Attributes:
        iterators: sets of iterators of which a leaf reads the first that its statement has.
        needs: files of ``templates/instructions`` that its text calls.
        work: what its record has to be.
        text: writes it.
    """

    iterators: tuple[tuple[str, ...], ...]
    needs: tuple[str, ...]
    work: type
    text: Callable[[KernelPlan, Leaf], Text]


UNPROVED = "not proved"  # what the comment of a text says that cannot be followed
_TABLE: dict[tuple[str, str], Kind] = {}
_W = TypeVar("_W")
Proof = Callable[[KernelPlan, Leaf, _W, tuple[str, ...]], None]
_PROOFS: dict[tuple[str, str], tuple[tuple[str, ...], Proof[Any]]] = {}
_ALONE: set[tuple[str, str]] = set()  # whose records say what nothing else proves
Writer = Callable[[KernelPlan, Leaf, _W], Text]


def leaf(
    op: str, unit: str, work: type[_W], *iterators: tuple[str, ...], needs: tuple[str, ...] = ()
) -> Callable[[Writer[_W]], Writer[_W]]:
    """Registers the writer of a kind of leaf.

    Args:
        op: what is done.
        unit: what does it.
        work: the type of its record.
        iterators: sets of iterators of which its text reads one; none: it reads no iterator.
        needs: instructions that its text calls.
    """

    def register(writer: Writer[_W]) -> Writer[_W]:
        def text(plan: KernelPlan, one: Leaf) -> Text:
            assert isinstance(one.work, work)
            made = writer(plan, one, one.work)
            if (op, unit) in _PROOFS:
                return _checked(plan, one, made)
            return made

        _TABLE[op, unit] = Kind(iterators or ((),), needs, work, text)
        return writer

    return register


def proof(
    op: str, unit: str, work: type[_W], *ops: str, alone: bool = False
) -> Callable[[Proof[_W]], Proof[_W]]:
    """Registers what proves that a kind of leaf does what its statement says, of its text.

    Args:
        op: what is done.
        unit: what does it.
        work: the type of its record.
        ops: of leaves on the same record whose texts are run before, in this order.
        alone: whether nothing else proves where its record leads to: then a text that cannot be
            followed is refused.
    """

    def register(check: Proof[_W]) -> Proof[_W]:
        _PROOFS[op, unit] = (ops, check)
        _ALONE.update([(op, unit)] if alone else [])
        return check

    return register


def before(plan: KernelPlan, one: Leaf) -> tuple[str, ...]:
    """The texts that are run before a leaf's where it is proved: of its launch, and its blocks."""
    found = []
    every = (plan.leaves, *(of.leaves for of in (*plan.groups, *plan.copies)))
    own = next((leaves for leaves in every if one in leaves), plan.leaves)
    for op in _PROOFS[one.op, one.unit][0]:
        others = (other for other in own if other.op == op and other.work == one.work)
        found += [kind_of(other).text(plan, other).code for other in others]
    return tuple(found)


def proved(one: Leaf) -> bool:
    """Whether the text of a leaf is proved where it is written."""
    return (one.op, one.unit) in _PROOFS


def _checked(plan: KernelPlan, one: Leaf, made: Text) -> Text:
    """The text, proved; what nothing is known of says so."""
    try:
        prove(plan, one, (*before(plan, one), made.code))
    except UndecidedText as error:
        if (one.op, one.unit) in _ALONE:
            raise
        return replace(made, comment=f"{made.comment} ({UNPROVED}: {error.what})".lstrip())
    return made


def prove(plan: KernelPlan, one: Leaf, texts: tuple[str, ...]) -> None:
    """Prove that texts do what the statement of a leaf says.

    Args:
        plan: the kernel.
        one: the leaf.
        texts: `before` it, and its own.

    Raises:
        VerifyError: with what is otherwise.
        UndecidedText: what they do cannot be followed.
    """
    where = f"{plan.entry}: the text of {one.statement}"
    try:
        _PROOFS[one.op, one.unit][1](plan, one, one.work, texts)
    except VerifyError as error:
        why = f"at {error.where}" if error.where else ""
        raise type(error)(error.what, where=where, why=why) from None
    except UNKNOWN as error:
        raise UndecidedText(f"what this does is not known: {error}", where=where) from None


def kinds() -> dict[tuple[str, str], Kind]:
    """The table."""
    return dict(_TABLE)


def kind_of(one: Leaf) -> Kind:
    """The row of a leaf.

    Raises:
        VerifyError: there is none, or its statement lacks an iterator that the text reads.
    """
    kind = _TABLE.get((one.op, one.unit))
    if kind is None or not isinstance(one.work, kind.work):
        raise VerifyError(
            f"{one.statement}: no leaf does {one.op} by {one.unit} on a {type(one.work).__name__}",
            where="emit",
            nearest=f"Known: {', '.join(f'{op} by {unit}' for op, unit in _TABLE)}",
        )
    _read_iterators(one, kind)
    return kind


def _read_iterators(one: Leaf, kind: Kind) -> tuple[str, ...]:
    for wanted in kind.iterators:
        if set(wanted) <= set(one.loops):
            return wanted
    raise VerifyError(
        f"{one.statement} has the iterators {', '.join(one.loops) or 'none'}, "
        f"{one.op} by {one.unit} reads {' or '.join(', '.join(w) for w in kind.iterators)}",
        where="emit",
    )


def render(plan: KernelPlan, one: Leaf, depth: int) -> list[str]:
    """The lines of a leaf; counters that go up behind it do so at its end.

    Raises:
        VerifyError: the table has no such leaf.
    """
    return written(one, kind_of(one).text(plan, one), depth)


def written(one: Leaf, text: Text, depth: int) -> list[str]:
    """The lines of a leaf whose text is given.

    Raises:
        VerifyError: the table has no such leaf.
    """
    kind = kind_of(one)
    pad = INDENT * depth
    read = _read_iterators(one, kind)
    iterators = ", ".join(f"int {name}" if name in read else "int" for name in one.loops)
    parameters = iterators if text.parameters is None else text.parameters
    head = f"auto {one.statement} = [&]({parameters}) __attribute__((always_inline)) {{"
    lines = [f"{pad}// {text.comment}"] if text.comment else []
    lines += [pad + line for line in text.declarations]
    up = [f"{counter}.advance();" for counter in one.advances]
    if text.inline:
        lines.append(f"{pad}{head} {' '.join([text.body, *up])} }};")
    else:
        body = [*text.body.splitlines(), *(INDENT + line for line in up)]
        lines += [pad + head, *(_deeper(line, pad) for line in body), pad + "};"]
    return lines


def _deeper(line: str, pad: str) -> str:
    return line if line.startswith("#") else pad + line


def block(*lines: str) -> str:
    """Lines as the body of a leaf."""
    return "\n".join(INDENT + line for line in lines)


def filled(template: str, record: dict[str, Any]) -> str:
    """A file of ``templates/leaf`` as the body of a leaf."""
    return environment().get_template(f"leaf/{template}.cu.j2").render(record)
