"""What a user hands to `fuse`: a callable, of which name, parameters and text are wanted.

1. A ``def``, a ``lambda``, a partial, a method and an object with ``__call__`` all do; a partial
   goes by the name of what it applies, an object by that of its class.
2. Parameters are the ones a call gives by position. Keywords with a default stay at it.
3. The text is the expression that is returned, on one line, without comments.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from operator import index
from typing import Any

from polygen.errors import (
    ArgumentError,
    PolygenError,
    SignatureError,
    TraceError,
    echo,
    in_digits,
    without_addresses,
)
from polygen.frontend.shapes import LARGEST_SIZE

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_LONGEST_NAME = 200  # file names end at 255


def name_of(function: Callable[..., Any], name: object = None) -> str:
    """What a kernel of the function is called.

    Args:
        function: what was given.
        name: asked for; None: the function's own, or ``fused`` if that is no identifier.

    Raises:
        TraceError: `name` is not an identifier.
    """
    if name is not None:
        return checked_name(name, "name")
    while isinstance(function, functools.partial):
        function = function.func
    own = str(getattr(function, "__name__", type(function).__name__))
    return own if own.isidentifier() else "fused"


def checked_name(name: object, where: str) -> str:
    """A name as given, once it can be that of a kernel and of its files.

    Raises:
        TraceError: it cannot.
    """
    if isinstance(name, str) and name.isascii() and name.isidentifier():
        if len(name) <= _LONGEST_NAME:
            return name
        raise TraceError(
            f"a name of {len(name)} characters",
            where=where,
            why="files are called after it",
            nearest=f"At most {_LONGEST_NAME}",
        )
    raise TraceError(
        f"{echo(name)} is not a name",
        where=where,
        nearest="Letters, digits and _, not starting with a digit",
    )


def sizes_of(sizes: object) -> dict[str, Any]:
    """Sizes by name, with NumPy's integers as Python's; what is no number is left for its check.

    Raises:
        SignatureError: they are not by name.
    """
    if sizes is None:
        return {}
    if not isinstance(sizes, Mapping):
        raise SignatureError(
            f"{echo(sizes)} has no sizes by name", where="sizes", nearest='Write {"M": 4096}'
        )
    return {name: _whole(value) for name, value in sizes.items()}


def without_numbers(sizes: Mapping[str, Any], numbers: Mapping[str, int]) -> dict[str, Any]:
    """Sizes but for those that a kernel has as numbers.

    Args:
        sizes: by name.
        numbers: sizes that became constants when it was compiled.

    Raises:
        PolygenError: one is another number.
    """
    for name, value in sizes.items():
        if numbers.get(name, value) != value:
            raise PolygenError(
                f"{name} is {numbers[name]} in this kernel, not {value}",
                where="sizes",
                why="it became a constant when the kernel was compiled",
                nearest=f"Compile one for {name} = {value}",
            )
    return {name: value for name, value in sizes.items() if name not in numbers}


def outputs_of(out: Any) -> tuple[Any, ...]:
    """Arrays for outputs, of which one may be given as it is; none for None."""
    if out is None:
        return ()
    return tuple(out) if isinstance(out, (tuple, list)) else (out,)


def _whole(size: Any) -> Any:
    try:
        return size if isinstance(size, bool) else index(size)
    except TypeError:
        return size


def require_size(name: str, value: Any) -> None:
    """Refuse a size that is no whole number, not positive, or more than a kernel counts.

    Args:
        name: of the dim, or of the pitch.
        value: what was given for it.

    Raises:
        PolygenError: with the nearest that is one.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise PolygenError(
            f"{name} = {echo(value)}",
            where="sizes",
            why="sizes are whole numbers",
            nearest=f"Write {name} = 4096",
        )
    if value < 1:
        raise PolygenError(
            f"{name} = {in_digits(value)}",
            where="sizes",
            why="sizes are at least 1",
            nearest=f"Use {name} = 1",
        )
    if value > LARGEST_SIZE:
        raise PolygenError(
            f"{name} = {in_digits(value)}",
            where="sizes",
            why="a kernel counts in 32 bits",
            nearest=f"Use {name} = {LARGEST_SIZE}, or less",
        )


def require_number(operand: object, name: str) -> None:
    """Refuse an operand without a shape that is no number either.

    Raises:
        ArgumentError: with its type.
    """
    if not isinstance(operand, Real):
        raise ArgumentError(
            f"{_article(type(operand).__name__)} is neither an array nor a number",
            where=name,
            nearest=f"Pass cupy.asarray({name})",
        )


def several(given: object) -> tuple[Any, ...]:
    """What is given one by one, or by itself."""
    alone = isinstance(given, str) or not isinstance(given, Iterable)
    return (given,) if alone else tuple(given)  # type: ignore[arg-type]


def names_of(names: object, where: str) -> tuple[str, ...]:
    """Names of dims: one, or several.

    Raises:
        SignatureError: something is no name.
    """
    found = several(names)
    for name in found:
        if not isinstance(name, str):
            raise SignatureError(
                f"{echo(name)} is not the name of a dim", where=where, nearest='Write ("M", "K")'
            )
    return found


def parameters_of(function: object) -> tuple[str, ...]:
    """The parameters that a call gives by position, in order.

    Raises:
        TraceError: it is not a function of arrays: not callable, a class, or with parameters that
            cannot be given one by one.
    """
    if isinstance(function, type) or not callable(function):
        kind = "a class" if isinstance(function, type) else f"{_article(type(function).__name__)}"
        raise TraceError(
            f"{kind} is not a function of arrays",
            where="fuse",
            nearest="Give a function, as in pg.fuse(lambda x, w: pg.relu(x @ w.T))",
        )
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as reason:
        raise TraceError(
            "the parameters of the function are not known",
            where="fuse",
            why="a partial gives it what it does not take"
            if isinstance(function, functools.partial)
            else without_addresses(str(reason)),
            nearest="Wrap it, as in pg.fuse(lambda x, w: np.matmul(x, w))",
        ) from None
    optional = inspect.Parameter.VAR_KEYWORD
    wanted = [p for p in found if p.default is p.empty and p.kind != optional]
    several = [p.name for p in wanted if p.kind not in _BY_POSITION]
    if several:
        raise TraceError(
            f"parameter {several[0]} is not one array by position",
            where="fuse",
            why="a kernel has a fixed list of arguments, which calls give in order",
            nearest="Name them one by one, or give it its value with functools.partial",
        )
    return tuple(parameter.name for parameter in found if parameter.kind in _BY_POSITION)


def source_of(function: Callable[..., Any], name: str) -> str:
    """What the function returns, for people: its last return expression if the text is at hand.

    Args:
        function: what was given.
        name: what the kernel is called, for functions without a text.
    """
    given = getattr(function, "expression", None)
    if given is not None:
        return str(given)
    returned = _returned(function)
    if returned is None:
        return f"{name}({', '.join(parameters_of(function))})"
    parts = returned.elts if isinstance(returned, ast.Tuple) else [returned]
    return ", ".join(map(ast.unparse, parts))


def _returned(function: Callable[..., Any]) -> ast.expr | None:
    """The expression that a function returns; None: there is no text, or not one expression."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):  # SyntaxError: a lambda amid a longer statement
        return None
    own = getattr(function, "__name__", "")
    if own == "<lambda>":
        lambdas = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
        return lambdas[0].body if len(lambdas) == 1 else None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == own:
            returns = [part for part in node.body if isinstance(part, ast.Return)]
            return returns[-1].value if returns else None
    return None


def _article(word: str) -> str:
    return f"an {word}" if word[0].lower() in "aeiou" else f"a {word}"
