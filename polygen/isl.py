"""The only importer of islpy: one context, guarded callbacks, budgets, witnesses, canonical text.

Everything isl that polygen needs is re-exported under isl's own names, so that ``from polygen
import isl`` reads like islpy itself. On top of that this module holds what must be done the same
way everywhere: all objects live in one context (`DEFAULT_CONTEXT`; isl has no support for two),
global options are saved and restored, callbacks stay alive and keep their exceptions, proofs run
under an operation budget, and counting refuses sets it would count wrongly.
"""

from __future__ import annotations

import contextlib
import enum
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from islpy import DEFAULT_CONTEXT as DEFAULT_CONTEXT
from islpy import VERSION_TEXT as VERSION_TEXT
from islpy import Aff as Aff
from islpy import AstBuild as AstBuild
from islpy import AstExpr as AstExpr
from islpy import AstNode as AstNode
from islpy import BasicMap as BasicMap
from islpy import BasicSet as BasicSet
from islpy import Constraint as Constraint
from islpy import Context as Context
from islpy import Error as Error
from islpy import IdList as IdList
from islpy import LocalSpace as LocalSpace
from islpy import Map as Map
from islpy import MultiAff as MultiAff
from islpy import MultiPwAff as MultiPwAff
from islpy import MultiUnionPwAff as MultiUnionPwAff
from islpy import Point as Point
from islpy import Printer as Printer
from islpy import PwAff as PwAff
from islpy import PwMultiAff as PwMultiAff
from islpy import Schedule as Schedule
from islpy import ScheduleConstraints as ScheduleConstraints
from islpy import ScheduleNode as ScheduleNode
from islpy import Set as Set
from islpy import Space as Space
from islpy import UnionAccessInfo as UnionAccessInfo
from islpy import UnionFlow as UnionFlow
from islpy import UnionMap as UnionMap
from islpy import UnionPwAff as UnionPwAff
from islpy import UnionPwMultiAff as UnionPwMultiAff
from islpy import UnionSet as UnionSet
from islpy import Val as Val
from islpy import ast_expr_op_type as ast_expr_op_type
from islpy import ast_expr_type as ast_expr_type
from islpy import ast_loop_type as ast_loop_type
from islpy import ast_node_type as ast_node_type
from islpy import dim_type as dim_type
from islpy import schedule_node_type as schedule_node_type
from islpy import yaml_style as yaml_style

from polygen.errors import VerifyError

Result = TypeVar("Result")

# Proofs of one kernel take some 10^5 basic operations; a bit-shuffling coverage proof that explodes
# passes 2 * 10^7.
DEFAULT_BUDGET = 20_000_000


@contextlib.contextmanager
def operations_budget(limit: int = DEFAULT_BUDGET, what: str = "an isl proof") -> Iterator[None]:
    """Limit the isl operations done inside a ``with`` block.

    Budgets nest: an inner block counts on its own, the outer one starts again from zero after it.

    Args:
        limit: isl basic operations (about 10^7 per second).
        what: the thing being proved, for the message.

    Raises:
        VerifyError: the block needed more than `limit` operations.
    """
    context = DEFAULT_CONTEXT
    outer = context.get_max_operations()
    context.reset_operations()
    context.set_max_operations(limit)
    try:
        yield
    except Error as error:
        if "maximal number of operations exceeded" not in str(error):
            raise
        raise VerifyError(
            f"{what} needs more than {limit} isl operations",
            why="the relation is too irregular for isl; without a limit it may not finish",
            nearest="State the relation directly instead of composing it, or raise the budget",
        ) from error
    finally:
        context.set_max_operations(outer)
        context.reset_operations()


@contextlib.contextmanager
def scheduler_options(**options: int) -> Iterator[None]:
    """Set options of isl's context for a ``with`` block and restore the old values after it.

    Args:
        **options: a name of ``Context.set_NAME`` or ``Context.set_schedule_NAME`` and its value:
            ``outer_coincidence=1``, ``tile_scale_tile_loops=0``.

    Raises:
        VerifyError: isl has no such option.
    """
    context = DEFAULT_CONTEXT
    saved: list[tuple[str, int]] = []
    try:
        for option, value in options.items():
            full = option if hasattr(context, f"set_{option}") else f"schedule_{option}"
            if not hasattr(context, f"set_{full}"):
                raise VerifyError(f"isl has no option {option!r}", where="scheduler_options")
            saved.append((full, getattr(context, f"get_{full}")()))
            getattr(context, f"set_{full}")(value)
        yield
    finally:
        for full, value in reversed(saved):
            getattr(context, f"set_{full}")(value)


class CallbackGuard:
    """Keeps callback handles alive and re-raises what a callback raised.

    isl frees a callback whose handle Python drops (a crash at the next call), and turns an
    exception inside one into a message-less `Error`.
    """

    def __init__(self) -> None:
        self._handles: list[object] = []
        self._raised: BaseException | None = None

    def wrap(self, function: Callable[..., Result]) -> Callable[..., Result]:
        """`function`, remembering the exception it raises."""

        def guarded(*arguments: Any) -> Result:
            try:
                return function(*arguments)
            except BaseException as error:
                self._raised = error
                raise

        return guarded

    def add(self, pair: tuple[Result, object] | Any) -> Any:
        """Keep the handle of the ``(object, handle)`` pair that ``set_at_each_domain`` returns.

        Args:
            pair: the pair.

        Returns:
            The object.
        """
        built, handle = pair
        self._handles.append(handle)
        return built

    def run(self, function: Callable[[], Result]) -> Result:
        """Call `function`; an exception of a wrapped callback comes out as itself."""
        self._raised = None
        try:
            return function()
        except Error:
            if self._raised is not None:
                raise self._raised from None
            raise


def count(points_of: Set) -> int:
    """How many points a bounded set without parameters has.

    Raises:
        VerifyError: the set has parameters or is unbounded; isl would answer with a wrong number.
    """
    _check_countable(points_of)
    return int(points_of.count_val().to_python())


def _check_countable(points_of: Set) -> None:
    if points_of.dim(dim_type.param):
        names = (
            points_of.get_dim_name(dim_type.param, i) for i in range(points_of.dim(dim_type.param))
        )
        raise VerifyError(
            f"cannot count a set with parameters {', '.join(map(str, names))}",
            where=str(points_of),
            nearest="Fix the parameters first",
        )
    if not points_of.is_bounded():
        raise VerifyError("cannot count an unbounded set", where=str(points_of))


def points(relation: Map) -> list[tuple[int, ...]]:
    """All pairs of a bounded relation without parameters, sorted: input, then output coordinates.

    Meant for instruction-sized relations (a few thousand points); takes about 5 us a point.
    """
    wrapped = relation.wrap()
    _check_countable(wrapped)
    size, kind = wrapped.dim(dim_type.set), dim_type.set
    found: list[tuple[int, ...]] = []
    guard = CallbackGuard()

    def visit(point: Point) -> None:  # isl refuses numerators of more than 64 bits
        found.append(tuple([point.get_coordinate_val(kind, i).get_num_si() for i in range(size)]))

    guard.run(lambda: wrapped.foreach_point(guard.wrap(visit)))
    return sorted(found)


def kind(node: AstNode | AstExpr | ScheduleNode) -> str:
    """What a node or expression is: "for", "if", "mark", "band", "op", "id", ... (isl's names)."""
    found = cast(enum.Enum, node.get_type())  # islpy's stubs say int
    return found.name.rstrip("_")


def operator(expression: AstExpr) -> str:
    """The operator of an expression, by isl's name: "add", "pdiv_q", "le", ..."""
    return cast(enum.Enum, expression.get_op_type()).name


def to_yaml(tree: Schedule | ScheduleNode) -> str:
    """A schedule tree as block-style YAML; ``Schedule(text)`` reads it back.

    A node gives the tree it belongs to, with a note at the node's place.
    """
    printer = Printer.to_str(DEFAULT_CONTEXT).set_yaml_style(yaml_style.BLOCK)
    if isinstance(tree, Schedule):
        return printer.print_schedule(tree).get_str()
    return printer.print_schedule_node(tree).get_str()


def canonical(thing: Set | Map | UnionSet | UnionMap) -> str:
    """Text of a set or relation after coalescing: the form to compare, cache and show.

    isl has no canonical form; two equal relations may still differ in text, but two equal texts
    never differ in meaning.
    """
    return str(thing.coalesce())


@dataclass(frozen=True, slots=True)
class InstancePair:
    """One concrete pair of a relation between statement instances."""

    source: str  # "mma[0,0,0]"
    target: str  # "copy_a[3]"
    parameters: tuple[tuple[str, int], ...]  # (("K", 33),)

    def __str__(self) -> str:
        text = f"{self.source} -> {self.target}"
        sizes = ", ".join(f"{name} = {value}" for name, value in self.parameters)
        return f"{text} with {sizes}" if sizes else text


def beyond(relation: Map, allowed: Map) -> Map | None:
    """The pairs of a relation that are not allowed; None: there are none, which isl decides in half
    the time that it takes to say which.
    """
    return None if relation.is_subset(allowed) else relation.subtract(allowed)


def sample_pair(relation: UnionMap | Map) -> InstancePair | None:
    """One concrete pair of `relation`, with the smallest parameter values that admit one.

    Args:
        relation: a relation between statement instances, for example the dependences a schedule
        breaks.

    Returns:
        None when the relation is empty.
    """
    chosen = relation if isinstance(relation, Map) else _first_map(relation)
    if chosen is None or chosen.is_empty():
        return None
    parameters = _smallest_parameters(chosen)
    for position, (_, value) in enumerate(parameters):
        chosen = chosen.fix_val(dim_type.param, position, Val(value))
    pairs = chosen.wrap()
    point = _smallest_point(pairs)
    inputs = chosen.dim(dim_type.in_)

    def text(kind: dim_type, first: int, size: int) -> str:
        values = (point.get_coordinate_val(dim_type.set, first + i) for i in range(size))
        name = chosen.get_tuple_name(kind) if chosen.has_tuple_name(kind) else ""
        return f"{name}[{','.join(str(value.to_python()) for value in values)}]"

    return InstancePair(
        text(dim_type.in_, 0, inputs),
        text(dim_type.out, inputs, chosen.dim(dim_type.out)),
        parameters,
    )


def sample_point(instances: Set) -> str:
    """One instance of a set, with the smallest parameter values that admit one: ``fill[0,2] with
    ...``.
    """
    pair = sample_pair(instances.identity())
    return "nothing" if pair is None else str(pair).partition(" -> ")[2]


def _first_map(relation: UnionMap) -> Map | None:
    """The nonempty member whose text sorts first: the same witness on every run."""
    found: list[Map] = []
    guard = CallbackGuard()
    guard.run(lambda: relation.foreach_map(guard.wrap(found.append)))
    return min((member for member in found if not member.is_empty()), key=str, default=None)


def _smallest_parameters(relation: Map) -> tuple[tuple[str, int], ...]:
    number = relation.dim(dim_type.param)
    if not number:
        return ()
    names = [relation.get_dim_name(dim_type.param, i) for i in range(number)]
    sizes = relation.params().add_dims(dim_type.set, 0)
    sizes = sizes.move_dims(dim_type.set, 0, dim_type.param, 0, number)
    point = _smallest_point(sizes)
    values = (point.get_coordinate_val(dim_type.set, i).to_python() for i in range(number))
    return tuple((str(name), int(value)) for name, value in zip(names, values, strict=True))


def _smallest_point(candidates: Set) -> Point:
    try:
        return candidates.lexmin().sample_point()
    except Error:  # unbounded below: any point is a witness
        return candidates.sample_point()


def pieces(value: UnionSet | UnionMap) -> tuple[str, ...]:
    """A union's members, one text per space, sorted: for printing."""
    texts: list[str] = []
    guard = CallbackGuard()
    visit = guard.wrap(lambda member: texts.append(str(member.coalesce())))
    if isinstance(value, UnionSet):
        guard.run(lambda: value.foreach_set(visit))
    else:
        guard.run(lambda: value.foreach_map(visit))
    return tuple(sorted(text.partition("-> {")[2].strip(" }") or text for text in texts))


def from_c(text: str) -> str:
    """A formula of C as isl writes it, of names and numbers that are not negative."""
    text = re.sub(r"(\w+) % (\w+)", r"(\1 mod \2)", text)
    return re.sub(r"(\w+) / (\w+)", r"floor(\1/\2)", text)
