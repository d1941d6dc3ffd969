"""The order in which emitted loops call their instances, compared with that of their tree.

isl generates loops from a tree. Which instances they call `polygen.poly.read_loops` compares; here
follows that no two are called against the order of the tree's times.

1. The time of a call is that of its instance, with the call's arguments for the instance's
   coordinates: a vector of affine forms of the iterators around the call.
2. What stands one behind the other: at the first component in which the times differ, numbers that
   go up, as positions in sequences do; else ranges of iterators that do not meet, as the parts do
   into which isl cuts a loop.
3. A loop: the first component that is not the same for all calls and iterations is its iterator.
4. What that does not decide, isl does, over all pairs of instances of two calls.

Calls of one time may come in either order: the tree leaves that open, and `refine` takes nothing
from it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from polygen import isl, remembered
from polygen.errors import VerifyError
from polygen.poly.ast import Binary, Block, Call, Expr, For, If, LoopAst, Marked
from polygen.poly.loop_forms import (
    ZERO,
    Component,
    Form,
    added,
    components,
    evaluated,
    form_of,
    later,
    names_in,
    renamed,
    renamed_time,
    said_of,
    shown,
    text_of,
)

_PIECE = re.compile(r"(\w+)\[([^\]]*)\] -> \[((?:\([^:;]*\)(?:, )?)*)\]")


@dataclass(frozen=True, slots=True)
class _Around:
    """A loop around calls.

    Attributes:
        name: of its iterator, which no other loop has.
        bounds: of the iterator, as isl text.
        least: forms that it is not below.
        most: forms that it does not exceed.
    """

    name: str
    bounds: tuple[str, ...]
    least: tuple[Form, ...] = ()
    most: tuple[Form, ...] = ()


Loops = tuple[_Around, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Timed:
    """A call, when its instances run, and under which conditions it does.

    Attributes:
        name: of its statement.
        time: as forms of the iterators around it.
        loops: around it, from the outermost on.
        conditions: of branches on its way, as isl text.
        within: what these say of iterators.
    """

    name: str
    time: tuple[Form, ...]
    loops: Loops
    conditions: tuple[str, ...]
    within: Loops


def check_order(text: str, context: str, loops: LoopAst, where: str) -> None:
    """Check that calls come in the order of their tree.

    Args:
        text: of the tree.
        context: what is known of its parameters, as isl text.
        loops: that were made from it, which call its instances.
        where: whose loops they are.

    Raises:
        VerifyError: two calls come in the other order; with them.
    """
    _Order(_times(text), context, where).read(loops, _Scope({}, (), ()))


def _times(text: str) -> dict[str, tuple[tuple[str, ...], tuple[Component, ...]]]:
    """Leaf -> its coordinates, and its time in a tree."""
    _, timed = remembered.schedule_times(text)
    found = {}
    for piece in timed.partition("{")[2].rpartition("}")[0].split("; "):
        said = _PIECE.fullmatch(piece.strip())
        if said is None or said[1] in found:
            raise VerifyError(f"a time is not one form: {piece.strip()}", where="loops")
        names = tuple(one.strip() for one in said[2].split(",") if one.strip())
        found[said[1]] = names, components(said[3])
    return found


@dataclass(frozen=True, slots=True)
class _Scope:
    """What is around a node: forms of iterators by their names in the code, loops, conditions."""

    names: Mapping[str, Form]
    loops: Loops
    conditions: tuple[str, ...]
    within: Loops = ()


class _Order:
    def __init__(
        self,
        times: dict[str, tuple[tuple[str, ...], tuple[Component, ...]]],
        context: str,
        where: str,
    ) -> None:
        self.times, self.where = times, where
        self.prefix = context.partition("->")[0]
        self.known = remembered.read_set(context)
        self.count = 0
        self.asked: dict[str, bool] = {}

    def read(self, node: LoopAst, scope: _Scope) -> list[_Timed]:
        """The calls below a node, in order."""
        if isinstance(node, Call):
            return [self._call(node, scope)]
        if isinstance(node, Marked):
            return self.read(node.body, scope)
        if isinstance(node, Block):
            groups = [self.read(child, scope) for child in node.children]
            self._steps([g for g in groups if g], 0)
            return [one for group in groups for one in group]
        if isinstance(node, For):
            return self._loop(node, scope)
        assert isinstance(node, If)
        holds = text_of(node.condition, scope.names)
        own = tuple(
            _Around(name, (), *_bounds(node.condition, name, scope.names))
            for name in (one.name for one in scope.loops)
        )
        within = (*scope.within, *(one for one in own if one.least or one.most))
        then = _Scope(scope.names, scope.loops, (*scope.conditions, holds), within)
        found = self.read(node.then, then)
        if node.otherwise is not None:
            conditions = (*scope.conditions, f"not ({holds})")
            other = _Scope(scope.names, scope.loops, conditions, scope.within)
            found += self.read(node.otherwise, other)
        return found

    def _call(self, call: Call, scope: _Scope) -> _Timed:
        names, vector = self.times[call.statement]
        given = [form_of(one, scope.names) for one in call.arguments]
        env = dict(zip(names, given, strict=True))
        time = tuple(evaluated(one, env) for one in vector)
        return _Timed(call.statement, time, scope.loops, scope.conditions, scope.within)

    # ---- what stands one behind the other --------------------------------------------------------

    def _steps(self, groups: list[list[_Timed]], at: int) -> None:
        """Groups of calls, one behind the other, of which components before `at` are the same."""
        if len(groups) < 2:
            return
        for position in range(at, len(groups[0][0].time)):
            values = [{one.time[position] for one in group} for group in groups]
            if len(set().union(*values)) == 1:
                continue
            if not all(not atoms for each in values for _, atoms in each):
                self._pairs(groups, position)
                return
            numbers = [{number for number, _ in each} for each in values]
            if any(max(a) > min(b) for a, b in itertools.pairwise(numbers)):
                self._pairs(groups, position)
                return
            shared = [n for n in set().union(*numbers) if sum(n in each for each in numbers) > 1]
            for number in shared:
                same = [[o for o in g if o.time[position] == (number, ())] for g in groups]
                self._steps([g for g in same if g], position + 1)
            return

    def _pairs(self, groups: list[list[_Timed]], at: int) -> None:
        """The same where they are told apart by ranges of iterators."""
        each = [_alike(group, at) for group in groups]
        for n, before in enumerate(each):
            for behind in each[n + 1 :]:
                for (form, loops, within), firsts in before.items():
                    for (other, more, inside), thens in behind.items():
                        least = _distance(form, (*loops, *within), other, (*more, *inside))
                        if least > 0 or (least == 0 and _ordered(firsts, thens, at + 1)):
                            continue
                        meet = f"{said_of(form)} >= {said_of(other)}"
                        if not self._none(_both(loops, more), (), meet):
                            self._pair_by_pair(firsts, thens, at)

    def _pair_by_pair(self, firsts: list[_Timed], thens: list[_Timed], at: int) -> None:
        for first in firsts:
            for then in thens:
                conditions = (*first.conditions, *then.conditions)
                wrong = later(first.time[at:], then.time[at:])
                if not self._none(_both(first.loops, then.loops), conditions, wrong):
                    raise self._wrong(first, then)

    # ---- loops -----------------------------------------------------------------------------------

    def _loop(self, node: For, scope: _Scope) -> list[_Timed]:
        own = f"l{self.count}"
        self.count += 1
        names = {**scope.names, node.iterator: (0, ((own, 1),))}
        first = text_of(node.first, scope.names)
        bounds = [f"{own} >= {first}", text_of(node.condition, names)]
        if node.step > 1:
            bounds.append(f"({own} - ({first})) mod {node.step} = 0")
        inner = self.count
        least = tuple(form_of(one, scope.names) for one in _operands(node.first, "max"))
        _, most = _bounds(node.condition, own, names)
        loops = (*scope.loops, _Around(own, tuple(bounds), least, most))
        calls = self.read(node.body, _Scope(names, loops, scope.conditions, scope.within))
        inside = {f"l{n}" for n in range(inner, self.count)}
        if calls and not self._goes_up(calls, own, inside):
            for one in calls:
                for other in calls:
                    self._iterations(one, other, len(scope.loops))
        return calls

    def _goes_up(self, calls: list[_Timed], own: str, inside: set[str]) -> bool:
        """Whether the first component in which iterations differ is the iterator's, for all."""
        for position in range(len(calls[0].time)):
            forms = {_of_iterator(one, position, own) for one in calls}
            if len(forms) > 1:
                return False
            ((_, atoms),) = forms
            if own in dict(atoms):
                others = {name for atom, _ in atoms if atom != own for name in names_in(atom)}
                return dict(atoms)[own] > 0 and not others & {own, *inside}
            if {name for atom, _ in atoms for name in names_in(atom)} & {own, *inside}:
                return False
        return True  # the tree leaves the order open

    def _iterations(self, first: _Timed, then: _Timed, at: int) -> None:
        """Of two calls of a loop, the first in an iteration before the second's."""
        new_names = {one.name: f"{one.name}b" for one in then.loops[at:]}
        loops = tuple(
            _Around(new_names[one.name], tuple(renamed(said, new_names) for said in one.bounds))
            for one in then.loops[at:]
        )
        own = first.loops[at].name
        wrong = f"({own} < {own}b and {later(first.time, renamed_time(then.time, new_names))})"
        conditions = (*first.conditions, *(renamed(one, new_names) for one in then.conditions))
        if not self._none((*first.loops, *loops), conditions, wrong):
            raise self._wrong(first, then)

    # ---- isl -------------------------------------------------------------------------------------

    def _none(
        self,
        loops: Loops,
        conditions: tuple[str, ...],
        wrong: str,
    ) -> bool:
        """Whether no iterations meet some conditions."""
        holds = [said for one in loops for said in one.bounds]
        said = " and ".join(f"({one})" for one in (*holds, *conditions, wrong))
        names = ", ".join(one.name for one in loops)
        text = f"{self.prefix}-> {{ [{names}] : {said} }}"
        if text not in self.asked:
            self.asked[text] = isl.Set(text).intersect_params(self.known).is_empty()
        return self.asked[text]

    def _wrong(self, first: _Timed, then: _Timed) -> VerifyError:
        return VerifyError(
            f"{first.name} is called before {then.name}, which the tree has first",
            where=self.where,
            why=f"their times are ({shown(first.time)}) and ({shown(then.time)})",
        )


def _alike(group: list[_Timed], at: int) -> dict[tuple[Form, Loops, Loops], list[_Timed]]:
    """Calls by their component of a time, and by what around them it is about."""
    found: dict[tuple[Form, Loops, Loops], list[_Timed]] = {}
    for one in group:
        form, kept = one.time[at], []
        about = {name for atom, _ in form[1] for name in names_in(atom)}
        for loop in reversed(one.loops):
            if loop.name in about:
                kept.append(loop)
                about.update(*map(names_in, loop.bounds))
        within = tuple(loop for loop in one.within if loop.name in about)
        found.setdefault((form, tuple(reversed(kept)), within), []).append(one)
    return found


def _of_iterator(one: _Timed, position: int, own: str) -> Form:
    """A component of a call's time; the iterator, where a condition says that it is the same."""
    form = one.time[position]
    held = (loop for loop in one.within if loop.name == own)
    same = any(form in loop.least and form in loop.most for loop in held)
    return (0, ((own, 1),)) if same else form


def _both(first: Loops, then: Loops) -> Loops:
    """The loops around two calls; those that are around both, once."""
    return tuple(dict.fromkeys((*first, *then)))


def _distance(form: Form, loops: Loops, other: Form, more: Loops) -> int:
    """How much less than another a form is at least, as bounds of iterators say; -1: no idea."""
    ends = [_replaced(form, one.name, bound) for one in loops for bound in one.most]
    begins = [_replaced(other, one.name, bound) for one in more for bound in one.least]
    apart = (added(begin, end, -1) for end in (form, *ends) for begin in (other, *begins))
    return max((number for number, atoms in apart if not atoms), default=-1)


def _ordered(firsts: list[_Timed], thens: list[_Timed], at: int) -> bool:
    """Whether the rest of the first times is less than that of the others, as numbers say."""
    rests = {one.time[at:] for one in firsts}, {one.time[at:] for one in thens}
    for first, then in itertools.product(*rests):
        differ = next(
            (n for n, both in enumerate(zip(first, then, strict=True)) if both[0] != both[1]), -1
        )
        if differ >= 0 and (first[differ][1] or then[differ][1] or first[differ] > then[differ]):
            return False
    return True


def _replaced(form: Form, name: str, by: Form) -> Form:
    """A form with a bound for a name that has the factor 1."""
    times = dict(form[1]).get(name)
    return form if times != 1 else added(added(form, (0, ((name, 1),)), -1), by)


def _operands(node: Expr, op: str) -> Iterator[Expr]:
    """What an operation is about, in as many steps as it has."""
    if isinstance(node, Binary) and node.op == op:
        yield from _operands(node.left, op)
        yield from _operands(node.right, op)
    else:
        yield node


def _bounds(
    condition: Expr, name: str, names: Mapping[str, Form]
) -> tuple[tuple[Form, ...], tuple[Form, ...]]:
    """What an iterator is not below, and does not exceed, where a condition holds."""
    least: list[Form] = []
    most: list[Form] = []
    for one in _operands(condition, "&&"):
        if not isinstance(one, Binary) or one.op not in _SIGNS:
            continue
        sign, strict = _SIGNS[one.op]
        lefts = _operands(one.left, "max" if sign < 0 else "min") if sign else (one.left,)
        rights = _operands(one.right, "min" if sign < 0 else "max") if sign else (one.right,)
        for left, right in itertools.product(tuple(lefts), tuple(rights)):
            apart = added(form_of(left, names), form_of(right, names), -1)  # >= 0, or <= 0
            for way in (sign,) if sign else (1, -1):
                reach = added(added(ZERO, apart, way), (strict, ()), -1)  # >= 0
                times = dict(reach[1]).get(name)
                if times in (1, -1):
                    rest = added(reach, (0, ((name, times),)), -1)
                    (least if times == 1 else most).append(added(ZERO, rest, -times))
    return tuple(least), tuple(most)


_SIGNS = {"<": (-1, 1), "<=": (-1, 0), ">": (1, 1), ">=": (1, 0), "==": (0, 0)}
