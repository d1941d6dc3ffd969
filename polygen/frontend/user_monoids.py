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
3. What it means is `combine` itself, over the elements two by two. An odd one is left for later:
   nothing is combined with the identity. In f32 it is done in several orders, which
   say how much a result depends on them.
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
_SAMPLES, _SEED = 256, 0
_SIZES = (1.0, 1.0, 30.0, 1e4)  # of values
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
    plain = isinstance(name, str) and name.isascii() and name.isidentifier()
    if not plain or keyword.iskeyword(name):
        raise TraceError(
            f"a monoid called {echo(name)}", nearest='Use letters and digits, as "top_two"'
        )
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

    def meaning(array: Array, axes: tuple[int, ...], order: int = 0) -> Array:
        return in_some_order(found, array, axes, order)

    found = Monoid(key, own, neutral, joined, last, meaning, in_order=meaning)
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
        self._steps = _in_order(results)
        numbers: dict[Node, str] = {one: f"#{at}" for at, one in enumerate(inputs)}
        told = []
        for one in self._steps:
            if isinstance(one, ScalarNode):
                numbers[one] = repr(one.value)
            elif isinstance(one, ApplyNode):
                args = ",".join(numbers[arg] for arg in one.args)
                told.append(f"{one.function}({args})")
                numbers[one] = f"%{len(told)}"
        self.text = ";".join((*told, *(numbers[one] for one in results)))

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        made: dict[Node, Any] = dict(zip(self._inputs, values, strict=True))
        for one in self._steps:
            if isinstance(one, ScalarNode):
                made[one] = one.value
            elif isinstance(one, ApplyNode):
                made[one] = POINTWISE[one.function](*(made[arg] for arg in one.args))
        return tuple(made[one] for one in self._results)


def _in_order(roots: Sequence[Node]) -> tuple[Node, ...]:
    """What values are computed of, each once, behind what it is computed of itself."""
    found: dict[Node, None] = {}
    stack = [(one, False) for one in reversed(roots)]
    while stack:
        node, done = stack.pop()
        if done or not isinstance(node, ApplyNode):
            found.setdefault(node)
        elif node not in found:
            stack.append((node, True))
            stack += [(one, False) for one in reversed(node.args)]
    return tuple(found)


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
    for node in _in_order([root]):
        cast = isinstance(node, ApplyNode) and node.function == "cast"
        if cast or not isinstance(node, ApplyNode | InputNode | ScalarNode):
            raise TraceError(
                "a component is no pointwise function of numbers",
                where=where,
                nearest="Use operators and functions such as np.maximum, np.exp and pg.where",
            )


def by_users(name: str) -> UnsupportedProgram:
    """Why a library that has no such fold does not compute one."""
    return UnsupportedProgram(
        f"the fold {name} outside of a kernel",
        why="gradients and other devices take the library's own folds, and it has no such",
        nearest="Fold by pg.sum, pg.max and the like, or call the kernel alone",
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


def in_some_order(of: Monoid, array: Array, axes: tuple[int, ...], order: int = 0) -> Array:
    """A fold of elements two by two.

    Args:
        of: a monoid.
        array: what is folded; f32 in f32, anything else in f64.
        axes: along which.
        order: 0: neighbours; else a number that says which order.
    """
    real = np.float32 if array.dtype == np.float32 else np.float64
    kept = [at for at in range(array.ndim) if at not in axes]
    shape = [array.shape[at] for at in kept]
    value = array.transpose(*kept, *axes).reshape(*shape, -1).astype(real)
    count = value.shape[-1]
    place = np.broadcast_to(np.arange(count, dtype=real), value.shape)
    known = {VALUE: value, INDEX: place}
    which = np.random.default_rng(order).permutation(count) if order else np.arange(count)
    parts = [
        known[one][..., which] if isinstance(one, str) else np.full(value.shape, one, real)
        for one in of.terms
    ]
    with np.errstate(all="ignore"):
        while parts[0].shape[-1] > 1:
            even = parts[0].shape[-1] // 2 * 2
            sides = [one[..., half:even:2] for half in range(2) for one in parts]
            made = (np.broadcast_to(one, sides[0].shape) for one in of.combine(*sides))
            left = [one[..., even:] for one in parts]
            parts = [np.concatenate(both, axis=-1) for both in zip(made, left, strict=True)]
        return np.asarray(of.finish(*(one[..., 0] for one in parts)))


def _require_laws(of: Monoid, where: str) -> None:
    """Refuse what is no monoid on some numbers.

    Raises:
        TraceError: with the numbers, and what comes of them.
    """
    generator = np.random.default_rng(_SEED)

    def some() -> tuple[Array, ...]:
        """Tuples that elements contribute, small and large ones, and what is combined of two."""
        own = []
        for _ in range(2):
            value = np.round(generator.normal(size=_SAMPLES), 3)
            value = value * generator.choice(_SIZES, _SAMPLES)
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
            ("the identity combined with it", _sides(of.combine(*nothing, *a)), a, (a,)),
            (
                "the identity combined with itself",
                _sides(of.combine(*nothing, *nothing)),
                _sides(nothing),
                (nothing,),
            ),
            ("in the other order", both, _sides(of.combine(*b, *a)), (a, b)),
            (
                "in another order of three",
                _sides(of.combine(*both, *c)),
                _sides(of.combine(*a, *_sides(of.combine(*b, *c)))),
                (a, b, c),
            ),
        )
        for what, found, wanted, given in cases:
            every = np.abs([*found, *wanted, *(one for side in given for one in side)])
            size = np.where(np.isfinite(every), every, 0).max(axis=0)
            for left, right in zip(found, wanted, strict=True):
                off = ~((left == right) | (np.isnan(left) & np.isnan(right)))
                off &= ~(np.abs(left - right) <= _ALIKE * np.maximum(size, 1.0))
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
