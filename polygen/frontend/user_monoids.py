"""Folds that users define: monoids like those of the table, entered under a name of their own.

    two = pg.monoid(
        "two_largest", terms=("value", -np.inf), identity=(-np.inf, -np.inf),
        combine=lambda a, b: (np.maximum(a[0], b[0]),
                              np.maximum(np.minimum(a[0], b[0]), np.maximum(a[1], b[1]))),
        finish=lambda first, second: first - second)
    margin = pg.fuse(lambda x, w: pg.fold(x @ w.T, two, axis=1))

1. `combine` and `finish` are traced, as functions of numbers: what is kept is what they compute, so
   that code generation, NumPy and the name, which has a digest of it, have one meaning.
2. That it is a monoid is the side condition of every kernel that folds by parts. It is tried on
   numbers: an identity that changes something, or an order that does, is refused with them. Sums
   that differ by rounding alone are equal.
3. What it means is `combine` itself, over the elements two by two.
"""

from __future__ import annotations

import hashlib
import keyword
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from polygen.errors import TraceError, UnsupportedProgram, echo, told
from polygen.frontend.dtypes import F32
from polygen.frontend.folding import axes_of
from polygen.frontend.functions import PUBLIC as POINTWISE
from polygen.frontend.monoids import INDEX, MONOIDS, VALUE, Monoid
from polygen.frontend.nodes import ApplyNode, InputNode, Node, ScalarNode
from polygen.frontend.program import Tensor
from polygen.frontend.trace import Trace
from polygen.frontend.traced import Traced

Array = np.ndarray[Any, Any]

_MOST, _DIGITS = 8, 8  # components; of a digest
_SAMPLES, _SEED = 64, 0
_ALIKE = 1e-9  # of numbers that differ by the order of their sums


def monoid(
    name: str,
    *,
    terms: Sequence[str | float],
    identity: Sequence[float],
    combine: Callable[[tuple[Any, ...], tuple[Any, ...]], Sequence[Any]],
    finish: Callable[..., Any] | None = None,
) -> Monoid:
    """A fold of one's own, for `pg.fold`: a tuple of numbers for each element, combined in parts.

    Args:
        name: a Python name, for messages and generated code.
        terms: per component what an element contributes: "value", "index" (along the one axis that
            is folded, as f32) or a number.
        identity: per component, of nothing: combined with a tuple it leaves that as it is.
        combine: two tuples to one, by the functions that kernels compute (`np.maximum`, `pg.where`,
            operators). Associative and commutative: kernels combine parts in an order of theirs.
        finish: all components to the result; None: the first one.

    Returns:
        What `pg.fold` takes.

    Raises:
        TraceError: no monoid, with numbers for which it is none; or what kernels do not compute.
    """
    where = f"monoid {name}"
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise TraceError(f"a monoid called {echo(name)}", nearest='Use a Python name, as "top_two"')
    count = len(tuple(identity))
    if not 1 <= count <= _MOST or len(tuple(terms)) != count:
        raise TraceError(
            f"{len(tuple(terms))} terms and {count} components of the identity",
            where=where,
            nearest=f"Give one of each for every component, of which there are 1 to {_MOST}",
        )
    own = tuple(_term(one, where) for one in terms)
    if VALUE not in own:
        raise TraceError("no component is made of values", where=where, nearest='Say "value" once')
    neutral = tuple(_number(one, where) for one in identity)
    joined = _traced(lambda *both: combine(both[:count], both[count:]), 2 * count, count, where)
    ended = _traced(lambda *all_: (finish(*all_),) if finish else (all_[0],), count, 1, where)
    text = repr((own, neutral, joined.text, ended.text))
    key = f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]}"

    def last(*components: Any) -> Any:
        return ended(*components)[0]

    found = Monoid(key, own, neutral, joined, last, _by_pairs(key), typed=True)
    _require_laws(found, where)
    MONOIDS[key] = found
    return found


def fold(value: Any, monoid: Monoid, axis: Any = None, keepdims: bool = False) -> Any:
    """A value reduced along axes by a monoid of one's own, as ``np.sum`` reduces it by addition.

    Args:
        value: a traced value, or an array.
        monoid: of `pg.monoid`.
        axis: a number, a tuple of them, or None for all axes.
        keepdims: leave axes of size 1 where axes are folded.

    Raises:
        ShapeError: the value has no such axis.
        TraceError: no monoid; or an index along several axes is asked for.
    """
    if not isinstance(monoid, Monoid):
        raise TraceError(f"fold by {echo(monoid)}", nearest="Define it by pg.monoid(…)")
    if isinstance(value, Traced):
        return value.fold(monoid.name, axis, keepdims)
    array = np.asarray(value)
    node = InputNode(Tensor("value", F32, array.shape, tuple(range(array.ndim))))
    axes = axes_of(monoid.name, node, axis)
    found = np.asarray(monoid.reference(array.view(np.ndarray), axes))
    found = np.expand_dims(found, axes) if keepdims else found
    return found.view(type(value)) if isinstance(value, np.ndarray) else found


class _Traced:
    """A function of numbers as what it computes, on whatever the vocabulary takes."""

    def __init__(self, inputs: Sequence[Node], results: Sequence[Node]) -> None:
        self._inputs, self._results = tuple(inputs), tuple(results)
        numbers: dict[Node, str] = {one: f"#{at}" for at, one in enumerate(inputs)}
        self.text = " ".join(self._told(one, numbers) for one in results)

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        made: dict[Node, Any] = dict(zip(self._inputs, values, strict=True))

        def of(node: Node) -> Any:
            if node not in made:
                if isinstance(node, ScalarNode):
                    made[node] = node.value
                else:
                    assert isinstance(node, ApplyNode)
                    made[node] = POINTWISE[node.function](*map(of, node.args))
            return made[node]

        return tuple(map(of, self._results))

    def _told(self, node: Node, known: dict[Node, str]) -> str:
        if node not in known:
            if isinstance(node, ScalarNode):
                return repr(node.value)
            assert isinstance(node, ApplyNode)
            inner = ",".join(self._told(one, known) for one in node.args)
            known[node] = f"{node.function}({inner})"
        return known[node]


def _traced(function: Callable[..., Sequence[Any]], takes: int, gives: int, where: str) -> _Traced:
    trace = Trace()
    nodes = [trace.input(Tensor(f"c{at}", F32, ())) for at in range(takes)]
    try:
        found = tuple(function(*(Traced(trace, one) for one in nodes)))
    except (TraceError, UnsupportedProgram):
        raise
    except Exception as error:
        raise TraceError(f"the function raises {told(error)}", where=where) from error
    if len(found) != gives:
        raise TraceError(
            f"{len(found)} components come of {gives}", where=where, nearest=f"Return {gives}"
        )
    results = [trace.lift(one.node if isinstance(one, Traced) else one, where) for one in found]
    for one in results:
        _require_pointwise(one, where)
    return _Traced(nodes, results)


def _require_pointwise(root: Node, where: str) -> None:
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, ApplyNode) and node.function != "cast":
            stack += node.args
        elif not isinstance(node, InputNode | ScalarNode):
            raise TraceError(
                "a component is no pointwise function of numbers",
                where=where,
                nearest="Use operators and functions such as np.maximum, np.exp and pg.where",
            )


def _term(one: Any, where: str) -> str | float:
    return one if one in (VALUE, INDEX) else _number(one, where)


def _number(one: Any, where: str) -> float:
    try:
        return float(one)
    except (TypeError, ValueError):
        raise TraceError(
            f"the component {echo(one)}", where=where, nearest='Use "value", "index" or a number'
        ) from None


def _by_pairs(key: str) -> Callable[[Array, tuple[int, ...]], Array]:
    """What it means of an array: neighbours combined, until one tuple is left."""

    def reference(array: Array, axes: tuple[int, ...]) -> Array:
        of = MONOIDS[key]
        kept = [at for at in range(array.ndim) if at not in axes]
        shape = [array.shape[at] for at in kept]
        real = np.float32 if array.dtype == np.float32 else np.float64  # as it is given
        value = array.transpose(*kept, *axes).reshape(*shape, -1).astype(real)
        place = np.arange(value.shape[-1], dtype=real)
        known = {VALUE: value, INDEX: np.broadcast_to(place, value.shape)}
        parts = [
            known[one] if isinstance(one, str) else np.full(value.shape, one, real)
            for one in of.terms
        ]
        nothing = [np.full((*shape, 1), one, real) for one in of.identity]
        with np.errstate(all="ignore"):
            while parts[0].shape[-1] > 1:
                if parts[0].shape[-1] % 2:
                    ends = zip(parts, nothing, strict=True)
                    parts = [np.concatenate(both, axis=-1) for both in ends]
                sides = [one[..., half::2] for half in range(2) for one in parts]
                made = of.combine(*sides)
                parts = [np.broadcast_to(one, sides[0].shape) for one in made]
            return np.asarray(of.finish(*(one[..., 0] for one in parts)))

    return reference


def _require_laws(of: Monoid, where: str) -> None:
    """Refuse what is no monoid on some numbers.

    Raises:
        TraceError: with the numbers, and what comes of them.
    """
    generator = np.random.default_rng(_SEED)

    def some() -> tuple[Array, ...]:
        """Tuples that elements contribute, and what is combined of two of them."""
        own = []
        for _ in range(2):
            value = np.round(generator.normal(size=_SAMPLES), 3)
            index = generator.integers(0, 1000, _SAMPLES).astype(float)
            known = {VALUE: value, INDEX: index}
            own.append([known[o] if isinstance(o, str) else np.full(_SAMPLES, o) for o in of.terms])
        both = _sides(of.combine(*own[0], *own[1]))
        half = np.arange(_SAMPLES) % 2 == 0
        return tuple(np.where(half, one, two) for one, two in zip(own[0], both, strict=True))

    with np.errstate(all="ignore"):
        a, b, c = some(), some(), some()
        nothing = [np.full(_SAMPLES, one) for one in of.identity]
        both = _sides(of.combine(*a, *b))
        cases = (
            ("combined with the identity", _sides(of.combine(*a, *nothing)), a, (a,)),
            ("the identity combined with", _sides(of.combine(*nothing, *a)), a, (a,)),
            ("in the other order", both, _sides(of.combine(*b, *a)), (a, b)),
            (
                "in another order of three",
                _sides(of.combine(*both, *c)),
                _sides(of.combine(*a, *_sides(of.combine(*b, *c)))),
                (a, b, c),
            ),
        )
        for what, found, wanted, given in cases:
            for left, right in zip(found, wanted, strict=True):
                off = ~((left == right) | (np.isnan(left) & np.isnan(right)))
                off &= ~np.isclose(left, right, rtol=_ALIKE, atol=_ALIKE)
                if off.any():
                    at = int(np.argmax(off))
                    told_of = " and ".join(_told(one, at) for one in given)
                    raise TraceError(
                        f"{told_of}, {what}: {_told(found, at)}, not {_told(wanted, at)}",
                        where=where,
                        why="parts are combined in any order, and with nothing",
                        nearest="Combine by what is associative and commutative, with its identity",
                    )


def _sides(values: Sequence[Any]) -> tuple[Array, ...]:
    return tuple(np.broadcast_to(np.asarray(one, np.float64), (_SAMPLES,)) for one in values)


def _told(values: Sequence[Array], at: int) -> str:
    return f"({', '.join(f'{float(one[at]):g}' for one in values)})"


PUBLIC: dict[str, Callable[..., Any]] = {"monoid": monoid, "fold": fold}
