"""The operator surface that symbolic values share, and named dims as a function sees them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from polygen.errors import TraceError


def _computed(operator: str) -> Any:
    """An operator of a size: that of its number, which kernels compute with."""

    def of_number(self: Size, *others: Any) -> Any:
        return getattr(self.number(), operator)(*others)

    return of_number


class Size:
    """A dim with a name, as a function sees it in ``x.shape``.

    It prints as its name and equals its name. Kernels have its number, and compute with it as with
    a value of f32: ``x.T @ y / x.shape[0]``. What Python would need the number for is refused.

    Args:
        name: of the dim.
        number: makes the value.
    """

    __slots__ = ("name", "number")

    def __init__(self, name: str, number: Callable[[], Symbolic]) -> None:
        self.name, self.number = name, number

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return self.name == (other.name if isinstance(other, Size) else other)

    def __hash__(self) -> int:
        return hash(self.name)

    def refuse(self, *_: object) -> NoReturn:
        """Raise TraceError: the number is not known. Where it is given, the dim becomes it."""
        error = TraceError(
            f"the size {self.name} is used as a number that Python has",
            why="sizes are arguments of the kernel: the function is run once, for all of them",
            nearest=f'Fix it with static=("{self.name}",). Kernels compute +, -, *, /, ** and '
            "np.sqrt of a size, and pg.indices gives the places of elements",
        )
        error.unknown = (self.name,)
        raise error

    __add__, __radd__ = _computed("__add__"), _computed("__radd__")
    __sub__, __rsub__ = _computed("__sub__"), _computed("__rsub__")
    __mul__, __rmul__ = _computed("__mul__"), _computed("__rmul__")
    __truediv__, __rtruediv__ = _computed("__truediv__"), _computed("__rtruediv__")
    __pow__, __rpow__ = _computed("__pow__"), _computed("__rpow__")
    __neg__ = _computed("__neg__")
    __floordiv__ = __mod__ = __rfloordiv__ = __rmod__ = refuse
    __lt__ = __le__ = __gt__ = __ge__ = refuse
    __index__ = __int__ = __float__ = refuse

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **keywords: Any) -> Any:
        numbers = (one.number() if isinstance(one, Size) else one for one in args)
        return getattr(ufunc, method)(*numbers, **keywords)


class Symbolic:
    """Python operators in terms of one method, `apply(function, *args)`.

    The tracer's values and the terms with which `expand` runs a definition both derive from it, so
    that one definition serves tracing, code generation and NumPy.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # == is elementwise, as in NumPy

    @abstractmethod
    def apply(self, function: str, *args: Any) -> Any:
        """The value of `function` (a name of the table) at `args`."""

    def __add__(self, other: Any) -> Any:
        return self.apply("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return self.apply("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return self.apply("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self.apply("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return self.apply("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self.apply("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self.apply("div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self.apply("div", other, self)

    def __pow__(self, other: Any) -> Any:
        return self.apply("pow", self, other)

    def __rpow__(self, other: Any) -> Any:
        return self.apply("pow", other, self)

    def __neg__(self) -> Any:
        return self.apply("neg", self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self.apply("abs", self)

    def __round__(self, digits: Any = None) -> Any:
        """``round(v)``: to the nearest integers, halves to even, as NumPy's."""
        if digits is not None:
            raise TraceError(
                "round() with a number of digits",
                where="round",
                nearest="Write np.round(v * 100) * 0.01 for two of them",
            )
        return self.apply("round", self)

    def __lt__(self, other: Any) -> Any:
        return self.apply("lt", self, other)

    def __le__(self, other: Any) -> Any:
        return self.apply("le", self, other)

    def __gt__(self, other: Any) -> Any:
        return self.apply("gt", self, other)

    def __ge__(self, other: Any) -> Any:
        return self.apply("ge", self, other)

    def __eq__(self, other: Any) -> Any:
        return self.apply("eq", self, other)

    def __ne__(self, other: Any) -> Any:
        return self.apply("ne", self, other)


def first_symbolic(values: Iterable[Any]) -> Any:
    """The first of several values that is symbolic; None: none is."""
    return next((value for value in values if isinstance(value, Symbolic)), None)
