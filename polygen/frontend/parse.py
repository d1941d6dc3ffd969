"""Expressions given as text: ``gelu(x @ w.T + b)`` to a callable.

The text is parsed to Python's syntax tree, and each node of a short whitelist becomes a closure
over the arguments; nothing is ever evaluated as Python. Every mistake is found here, before any
argument is seen.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from polygen.errors import DTypeError, ExpressionError
from polygen.frontend.dtypes import ALWAYS_STORED
from polygen.frontend.dtypes import dtype as to_dtype
from polygen.frontend.folding import METHODS
from polygen.frontend.names import INDEX_HINT, closest, is_numpy
from polygen.frontend.written import (
    BINARY,
    COMPARE,
    CONSTANTS,
    FOLDED,
    FUNCTIONS,
    INSTEAD,
    JOINED,
    KNOWN,
    LITERALS,
    MODULES,
    UNARY,
    as_function,
    suggestion,
)

Values = Mapping[str, Any]
Evaluate = Callable[[Values], Any]

_METHODS = (*METHODS, "var", "std", "trace", "diagonal")
_LONGEST = 4096  # characters
_DEEPEST = 250  # levels; each takes up to four of the thousand calls that Python's stack holds


def parse_expression(text: str, names: Sequence[str]) -> Callable[..., Any]:
    """Makes a function of `names` from an expression.

    Args:
        text: operators, comparisons, ``.T``, ``.mT``, ``.swapaxes(0, 1)``, ``.transpose(0, 2, 1)``,
            ``.astype("f16")``, ``[:, None]``, ``[..., ::2]``, ``einsum("bmk,kn->bmn", x, w)``,
            functions of the vocabulary (bare or under ``np.`` or ``pg.``), numbers, and commas
            between several outputs.
        names: the arguments, in call order.

    Returns:
        A function that takes traced values or arrays, one per name, by position.

    Raises:
        ExpressionError: a TraceError that shows the place in the text: unknown name or function,
            syntax that expressions do not have, or arguments that do not fit a function.
    """
    body = text.strip()
    reader = _Reader(body, tuple(names))
    if len(body) > _LONGEST:
        reader.fail_at(
            _LONGEST,
            f"the expression has {len(body)} characters, more than {_LONGEST}",
            nearest="Write it as a function in a file: FILE.py:FUNCTION",
        )
    if "\n" in body:
        reader.fail_at(body.index("\n"), "the expression has more than one line")
    try:
        tree = ast.parse(body, mode="eval").body
        reader.check_depth(tree)
        evaluate = reader.read(tree)
    except SyntaxError as error:
        end = max(len(body) - 1, 0)  # where Python says nothing useful: the text ends too early
        column = (error.offset or 0) - 1 if error.lineno == 1 else end
        reader.fail_at(column if 0 <= column <= end else end, error.msg or "invalid syntax")
    except (RecursionError, MemoryError):  # Python's own parser, or a caller deep in its own stack
        reader.fail_too_deep(0)
    except ValueError as error:
        reader.fail_at(0, f"the expression cannot be parsed: {error}")

    def expression(*arguments: Any) -> Any:
        return evaluate(dict(zip(names, arguments, strict=True)))

    expression.__doc__ = body
    kind = inspect.Parameter.POSITIONAL_ONLY
    expression.expression = text.strip()  # type: ignore[attr-defined]
    expression.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind) for name in names]
    )
    return expression


class _Reader:
    """Turns syntax nodes into closures; knows the text for its messages."""

    def __init__(self, text: str, names: tuple[str, ...]) -> None:
        self.text, self.names = text, names

    def fail_at(self, column: int, what: str, why: str = "", nearest: str = "") -> NoReturn:
        raise ExpressionError(what, self.text, column, why=why, nearest=nearest) from None

    def fail(self, node: ast.AST, what: str, why: str = "", nearest: str = "") -> NoReturn:
        self.fail_at(self._column(node), what, why, nearest)

    def _column(self, node: ast.AST) -> int:
        offset = getattr(node, "col_offset", 0)  # counts UTF-8 bytes
        return len(self.text.encode()[:offset].decode(errors="ignore"))

    def fail_too_deep(self, column: int) -> NoReturn:
        self.fail_at(
            column,
            f"the expression nests more than {_DEEPEST} levels deep",
            nearest="Write it as a function in a file, a step a line: FILE.py:FUNCTION",
        )

    def check_depth(self, root: ast.expr) -> None:
        """Refuse what would exhaust Python's stack; a long chain nests too, at its left."""
        level: list[ast.AST] = [root]
        for _ in range(_DEEPEST):
            level = [
                child
                for node in level
                for child in ast.iter_child_nodes(node)
                if isinstance(child, (ast.expr, ast.keyword))
            ]
            if not level:
                return
        self.fail_too_deep(self._column(level[0]))

    def read(self, node: ast.expr) -> Evaluate:
        """The closure of one node."""
        handler = getattr(self, f"_{type(node).__name__.lower()}", None)
        if handler is None:
            self._unknown(node, node)
        result: Evaluate = handler(node)
        return result

    def _unknown(self, kind: ast.AST, node: ast.AST) -> NoReturn:
        """Refuse an operator or a node, with the same thing said in the vocabulary."""
        name, form = INSTEAD.get(type(kind), (type(kind).__name__, ""))
        self.fail(
            node,
            f"{name} is not part of expressions",
            nearest=suggestion(form, node) if form else "Use array operations",
        )

    def _constant(self, node: ast.Constant) -> Evaluate:
        if isinstance(node.value, bool) or not isinstance(node.value, (int, float)):
            self.fail(
                node, f"{node.value!r} is not a number here", nearest="Use an argument or a number"
            )
        try:
            value = float(node.value)  # so that no power of integers grows without bound
        except OverflowError:
            value = math.inf
        if math.isinf(value):  # Python reads 1e400 as an infinity
            self.fail(node, "the number is too large", nearest="Use 3.4028235e+38, or np.inf")
        return lambda _: value

    def _name(self, node: ast.Name) -> Evaluate:
        name = node.id
        if name not in self.names:
            near = difflib.get_close_matches(name, self.names, n=3, cutoff=0.5)
            known = " or ".join(near) if near else ""
            reason = f"{name} is a function" if name in FUNCTIONS else ""
            known = f"pg.{name}" if name in CONSTANTS else known
            self.fail(
                node,
                f"unknown name {name!r}",
                reason,
                f"Did you mean {known}?" if known else f"Arguments are {', '.join(self.names)}",
            )
        return lambda values: values[name]

    def _guarded(self, node: ast.AST, function: Callable[..., Any], *args: Evaluate) -> Evaluate:
        """Applies a function; arithmetic on constants may fail."""

        def evaluate(values: Values) -> Any:
            try:
                result = function(*(arg(values) for arg in args))
            except (ArithmeticError, TypeError, AttributeError) as error:
                self.fail(node, f"cannot compute this: {error}")
            if isinstance(result, complex):
                self.fail(node, "the result is complex")
            return result

        return evaluate

    def _binop(self, node: ast.BinOp) -> Evaluate:
        function = BINARY.get(type(node.op))
        if function is None:
            self._unknown(node.op, node)
        return self._guarded(node, function, self.read(node.left), self.read(node.right))

    def _boolop(self, node: ast.BoolOp) -> Evaluate:
        self._unknown(node.op, node)

    def _unaryop(self, node: ast.UnaryOp) -> Evaluate:
        function = UNARY.get(type(node.op))
        if function is None:
            self._unknown(node.op, node)
        return self._guarded(node, function, self.read(node.operand))

    def _compare(self, node: ast.Compare) -> Evaluate:
        if len(node.ops) > 1:
            sides = [node.left, *node.comparators]
            first, second = (
                ast.Compare(sides[at], [node.ops[at]], [sides[at + 1]]) for at in (0, 1)
            )
            both = ast.BoolOp(ast.And(), [first, second])
            nearest = suggestion(INSTEAD[ast.And][1], both)
            self.fail(node, "a chained comparison", nearest=nearest)
        function = COMPARE.get(type(node.ops[0]))
        if function is None:
            self._unknown(node.ops[0], node)
        return self._guarded(node, function, self.read(node.left), self.read(node.comparators[0]))

    def _tuple(self, node: ast.Tuple | ast.List) -> Evaluate:
        items = [self.read(item) for item in node.elts]
        return lambda values: tuple(item(values) for item in items)

    def _attribute(self, node: ast.Attribute) -> Evaluate:
        if self._is_module(node.value):
            value = CONSTANTS.get(node.attr)
            if value is None:
                self.fail(
                    node,
                    f"unknown constant {node.attr!r}",
                    nearest=f"Known: {', '.join(CONSTANTS)}",
                )
            return lambda _: value
        if node.attr not in ("T", "mT"):
            self.fail(node, f"unknown attribute .{node.attr}", nearest=KNOWN)
        return self._guarded(node, operator.attrgetter(node.attr), self.read(node.value))

    def _is_module(self, node: ast.expr) -> bool:
        """Whether a name stands for NumPy or polygen; an argument of that name comes first."""
        return isinstance(node, ast.Name) and node.id in MODULES and node.id not in self.names

    def _subscript(self, node: ast.Subscript) -> Evaluate:
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        named = [item for item in items if isinstance(item, ast.Name) and item.id in self.names]
        fixed = {item: self._index(item) for item in items if item not in named}

        def take(value: Any, *rows: Any) -> Any:  # of the values that indices() gives, one
            found = fixed | dict(zip(named, rows, strict=True))
            index = tuple(found[item] for item in items)
            several = isinstance(value, (tuple, list)) and len(index) == 1
            return value[index[0] if several else index]

        return self._guarded(node, take, self.read(node.value), *map(self.read, named))

    def _index(self, item: ast.expr) -> Any:
        """One item of a subscript: a slice or place that is constant, a new axis, or ``...``."""
        if isinstance(item, ast.Attribute) and item.attr == "newaxis":
            return None
        if isinstance(item, ast.Slice):
            parts = (item.lower, item.upper, item.step)
            bounds = [None if part is None else self._literal(part) for part in parts]
            if all(bound is None or type(bound) is int for bound in bounds):
                return slice(*bounds)
        else:
            found = self._literal(item)
            if type(found) is int or found is None or found is Ellipsis:
                return found
        self.fail(
            item,
            "an index that is no constant",
            nearest=INDEX_HINT,
        )

    def _literal(self, node: ast.expr) -> Any:
        """The value of a number, a text or a tuple of them; NotImplemented for anything else."""
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError):
            return NotImplemented

    def _call(self, node: ast.Call) -> Evaluate:
        called = node.func
        if isinstance(called, ast.Attribute):
            if self._is_module(called.value):
                return self._function(called.attr, node)
            if called.attr == "astype":
                return self._astype(called.value, node)
            if called.attr in _METHODS:
                reduced = ast.Call(called, [called.value, *node.args], node.keywords)
                return self._function(called.attr, ast.copy_location(reduced, node))
            if called.attr in ("swapaxes", "transpose"):
                return self._permuted(called.attr, called.value, node)
            if isinstance(called.value, ast.Attribute) and self._is_module(called.value.value):
                return self._of_a_part(called, node)
            self.fail(called, f"unknown method .{called.attr}", nearest=as_function(called, node))
        if not isinstance(called, ast.Name):
            self.fail(called, "this cannot be called", nearest="Call a function by its name")
        return self._function(called.id, node)

    def _of_a_part(self, called: ast.Attribute, node: ast.Call) -> Evaluate:
        """A function of a module in a module, as ``np.linalg.norm``; most of them are refused."""
        name = ast.unparse(called)
        if name.partition(".")[2] in FUNCTIONS and name.split(".")[0] in ("np", "numpy"):
            return self._function(name.partition(".")[2], node)
        if name.split(".")[0] in ("pg", "polygen"):
            nearest = "Write it in a function, and give that: FILE.py:FUNCTION"
            self.fail(called, f"expressions have no `{name}`", nearest=nearest)
        self.fail(called, f"polygen has no `{name}`", nearest=closest(called.attr))

    def _function(self, name: str, node: ast.Call) -> Evaluate:
        function = FUNCTIONS.get(name)
        if function is None:
            what = f"polygen has no `{name}`" if is_numpy(name) else f"unknown function {name!r}"
            self.fail(node, what, nearest=closest(name))
        args: list[Evaluate] = []
        for arg in node.args:  # a comprehension would take one more call a level
            args.append(self._argument(name, arg))
        keywords: dict[str, Any] = {}
        arrays: dict[str, Evaluate] = {}
        folds = name in FOLDED or name.startswith("linalg.")
        for keyword in node.keywords:
            found = self._literal(keyword.value) if folds else NotImplemented
            if keyword.arg is not None and folds and found is NotImplemented:
                arrays[keyword.arg] = self.read(keyword.value)  # as weights are, or an infinity
                continue
            if keyword.arg is None or not (folds or self._is_constant(keyword.value)):
                self.fail(keyword.value, "a keyword's value must be a number or a string")
            keywords[keyword.arg] = ast.literal_eval(keyword.value)
        try:
            inspect.signature(function).bind(*args, **keywords, **arrays)
        except TypeError as error:
            self.fail(node, f"{name}: {error}")

        def call(*given: Any) -> Any:
            more = dict(zip(arrays, given[len(args) :], strict=True))
            return function(*given[: len(args)], **keywords, **more)

        return self._guarded(node, call, *args, *arrays.values())

    def _argument(self, name: str, node: ast.expr) -> Evaluate:
        """An argument of a function, some of which take subscripts or axes beside arrays."""
        if name in JOINED and isinstance(node, (ast.List, ast.Tuple)):
            return self._tuple(node)
        found = self._literal(node) if name in LITERALS else NotImplemented
        return self.read(node) if found is NotImplemented else lambda _: found

    def _permuted(self, method: str, value: ast.expr, node: ast.Call) -> Evaluate:
        axes = [self._literal(arg) for arg in node.args]
        if NotImplemented in axes or node.keywords:
            self.fail(node, f".{method} takes axes as numbers", nearest=KNOWN)
        return self._guarded(node, lambda array: getattr(array, method)(*axes), self.read(value))

    def _is_constant(self, node: ast.expr) -> bool:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            node = node.operand
        value = node.value if isinstance(node, ast.Constant) else None
        return isinstance(value, (int, float, str)) and not isinstance(value, bool)

    def _astype(self, value: ast.expr, node: ast.Call) -> Evaluate:
        given = node.args[0] if len(node.args) == 1 and not node.keywords else None
        if isinstance(given, ast.Attribute) and isinstance(given.value, ast.Name):
            spec = given.attr  # np.float16
        elif isinstance(given, ast.Constant) and isinstance(given.value, str):
            spec = given.value
        else:
            self.fail(node, ".astype takes one dtype", nearest='As in .astype("f16")')
        try:
            dtype = to_dtype(spec, ALWAYS_STORED).name
        except DTypeError as error:
            self.fail(given, error.what, nearest=error.nearest)
        return self._guarded(node, lambda array: array.astype(dtype), self.read(value))
