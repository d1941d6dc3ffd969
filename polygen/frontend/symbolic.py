"""The operator surface that symbolic values share, and named dims as a function sees them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, NoReturn

from polygen.errors import TraceError


class Size:
    """A dim with a name, as a function sees it in ``x.shape``: it has no number yet.

    It prints as its name and equals its name; whatever would need the number is refused.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return self.name == (other.name if isinstance(other, Size) else other)

    def __hash__(self) -> int:
        return hash(self.name)

    def refuse(self, *_: object) -> NoReturn:
        """Raise TraceError: the number is not known."""
        raise TraceError(
            f"the size {self.name} is used as a number",
            why="sizes are arguments of the kernel: the function is run once, for all of them",
            nearest=f'Pass the number as an argument (f32), or fix it with static=("{self.name}",)',
        )

    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = refuse
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = refuse
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = refuse
    __index__ = __int__ = __float__ = refuse


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
