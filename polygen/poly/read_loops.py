"""Loops that are emitted, read back: they call the instances of their tree, each once.

isl generates loops from a tree, and their nodes become values (`polygen.poly.ast`). Here every call
of these becomes a relation again, from the loops around it to its instance, under the conditions on
its way; of all calls of a statement together it is injective and onto what the tree has, for every
value of the parameters. A leaf that is dropped, a loop that ends one early, a condition that is
turned round: all that leaves a different set is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from polygen import isl, remembered
from polygen.errors import VerifyError
from polygen.poly.ast import Block, Call, Const, Expr, For, If, LoopAst, Marked, Var
from polygen.poly.loop_order import check_order
from polygen.poly.place_trees import PlaceTree

_ANY = "any_leaf"
_WORDS = {"&&": "and", "||": "or", "==": "="}


@lru_cache(maxsize=64)
def check_loops(tree: PlaceTree, loops: LoopAst) -> None:
    """Check the loops of a place.

    Raises:
        VerifyError: an instance is not called, is called twice, or is none, with it; or two calls
            come in the wrong order.
    """
    prefix = tree.context.partition("->")[0] + "-> "
    known = remembered.read_set(tree.context)
    calls = _relations(tuple(_calls(loops, _Around())))
    wanted = _instances(tree.text)
    where = f"loops of the {tree.place.name}"
    for name in sorted({*calls, *wanted}):
        if name not in wanted or name not in calls:
            claim = "is called" if name in calls else "is not called"
            raise VerifyError(f"{name} {claim}", where=where)
        # Statements that stand in the same loops differ by their names alone.
        nameless = wanted[name].set_tuple_name(_ANY)
        wrong = _wrong(f"{prefix}{{ {'; '.join(calls[name])} }}", nameless, known)
        if wrong is not None:
            claim, rest = wrong
            which = name if rest is None else isl.sample_point(rest.set_tuple_name(name))
            raise VerifyError(f"{which} {claim}", where=where)
    check_order(tree.text, tree.context, loops, where)


def check_variable(loops: LoopAst, name: str, loop: str, sets: str) -> None:
    """Check that a variable is read where it is what it is in an iteration of a loop.

    Args:
        loops: of a place.
        name: of the variable.
        loop: in whose iterations it is another number.
        sets: what is called to set it.

    Raises:
        VerifyError: it is read outside of the loop, or before it is set there.
    """
    if isinstance(loops, For) and loops.iterator == loop:
        around, own = (loops.first, loops.condition), loops.body
        children = own.children if isinstance(own, Block) else (own,)
        call = children[0]
        set_ = isinstance(call, Call) and (call.statement, call.arguments) == (sets, (Var(loop),))
        if set_ and not any(_reads(one, name) for one in around):
            return
    elif isinstance(loops, Block):
        for child in loops.children:
            check_variable(child, name, loop, sets)
        return
    elif isinstance(loops, Marked):
        check_variable(loops.body, name, loop, sets)
        return
    if _reads(loops, name):
        raise VerifyError(f"{name} is read where no {sets}({loop}) has set it", where="loops")


def _reads(node: LoopAst | Expr | None, name: str) -> bool:
    """Whether anything below a node reads a variable."""
    below: tuple[LoopAst | Expr | None, ...]
    if isinstance(node, Var):
        return node.name == name
    if node is None or isinstance(node, Const):
        return False
    if isinstance(node, Call):
        below = node.arguments
    elif isinstance(node, For):
        below = (node.first, node.condition, node.body)
    elif isinstance(node, If):
        below = (node.condition, node.then, node.otherwise)
    elif isinstance(node, Marked):
        below = (node.body,)
    elif isinstance(node, Block):
        below = node.children
    else:
        below = (node.left, node.right)
    return any(_reads(one, name) for one in below)


@lru_cache(maxsize=64)
def _wrong(said: str, wanted: isl.Set, known: isl.Set) -> tuple[str, isl.Set | None] | None:
    """What is wrong with the calls of a statement, and of which instances if it is about some.

    Args:
        said: the calls, as isl text.
        wanted: the instances of the tree.
        known: what holds for the parameters.
    """
    made, whole = isl.Map(said).intersect_params(known), wanted.intersect_params(known)
    called = made.range()
    for claim, rest in (
        ("is not called", whole.subtract(called)),
        ("is called, and is none of the tree's", called.subtract(whole)),
    ):
        if not rest.is_empty():
            return claim, rest
    return None if made.is_injective() else ("is called twice", None)


def _relations(calls: tuple[tuple[Call, _Around], ...]) -> dict[str, list[str]]:
    """Of each statement its calls, from their numbers and iterators to instances, as isl text."""
    found: dict[str, list[str]] = {}
    deepest = max((len(around.iterators) for _, around in calls), default=0)
    for call, around in calls:
        each = found.setdefault(call.statement, [])
        own = (str(len(each)), *around.iterators, *["0"] * (deepest - len(around.iterators)))
        to = f"{_ANY}[{', '.join(map(around.said, call.arguments))}]"
        holds = " and ".join(f"({one})" for one in around.conditions) or "1 = 1"
        each.append(f"[{', '.join(own)}] -> {to} : {holds}")
    return found


def _instances(text: str) -> dict[str, isl.Set]:
    """The instances of every leaf of a tree."""
    each = remembered.read_schedule(text).get_domain().get_set_list()
    found = (each.get_at(position) for position in range(each.n_set()))
    return {str(one.get_tuple_name()): one for one in found}


@dataclass(frozen=True, slots=True)
class _Around:
    """What is around a node.

    Attributes:
        names: of iterators in the code -> in the relation, where each loop has one of its own.
        iterators: of the loops, from the outermost on.
        conditions: under which it is reached, as isl text.
    """

    names: tuple[tuple[str, str], ...] = ()
    iterators: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()

    def said(self, expression: Expr) -> str:
        """An expression as isl text."""
        if isinstance(expression, Const):
            return str(expression.value)
        if isinstance(expression, Var):
            return dict(self.names).get(expression.name, expression.name)
        left, right = self.said(expression.left), self.said(expression.right)
        if expression.op in ("min", "max"):
            return f"{expression.op}({left}, {right})"
        if expression.op == "/":
            return f"floor(({left})/{right})"
        if expression.op == "%":
            return f"(({left}) mod {right})"
        return f"({left} {_WORDS.get(expression.op, expression.op)} {right})"

    def where(self, *conditions: str) -> _Around:
        """The same under more conditions."""
        return replace(self, conditions=(*self.conditions, *conditions))

    def inside(self, loop: For) -> _Around:
        """Around the body of a loop."""
        own = f"i{len(self.iterators)}"
        names, iterators = (*self.names, (loop.iterator, own)), (*self.iterators, own)
        inner = replace(self, names=names, iterators=iterators)
        first = self.said(loop.first)
        steps = [f"({own} - {first}) mod {loop.step} = 0"] if loop.step > 1 else []
        return inner.where(f"{own} >= {first}", inner.said(loop.condition), *steps)


def _calls(node: LoopAst, around: _Around) -> Iterator[tuple[Call, _Around]]:
    """The calls below a node, each with what is around it."""
    if isinstance(node, Call):
        yield node, around
    elif isinstance(node, Marked):
        yield from _calls(node.body, around)
    elif isinstance(node, For):
        yield from _calls(node.body, around.inside(node))
    elif isinstance(node, If):
        condition = around.said(node.condition)
        yield from _calls(node.then, around.where(condition))
        if node.otherwise is not None:
            yield from _calls(node.otherwise, around.where(f"not {condition}"))
    else:
        assert isinstance(node, Block)
        for child in node.children:
            yield from _calls(child, around)
