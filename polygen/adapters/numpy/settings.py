"""What a program may be told about how it runs: `polygen_options`, and `POLYGEN_TF32`."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from polygen import knobs
from polygen.errors import ArgumentError, echo

_TAKE = ("predicted", "legal", "never")


@dataclass(frozen=True, slots=True)
class Settings:
    """How recorded operations run.

    Attributes:
        tf32: products of float32 may multiply 10 mantissa bits, so that kernels can have them.
        take: which groups of operations around a product become kernels: those "predicted" to
            win, all that are "legal" (to check results), or none, "never".
        threshold: how many times as long a group has to take apart to be predicted to win.
        backend: where arrays are; None: CuPy where there is a GPU, NumPy elsewhere.
    """

    tf32: bool = False
    take: str = "predicted"
    threshold: float = 1.03
    backend: Any = None


_settings: contextvars.ContextVar[Settings | None] = contextvars.ContextVar(
    "polygen_numpy", default=None
)


stated = _settings.get  # the settings in force; None: nobody has asked for them yet


def current() -> Settings:
    """The settings in force: the innermost `polygen_options`, else the environment's."""
    found = _settings.get()
    if found is None:
        found = Settings(tf32=knobs.current().tf32)
        _settings.set(found)
    return found


@contextlib.contextmanager
def polygen_options(**changes: Any) -> Iterator[Settings]:
    """Other settings inside a ``with`` block, for what runs there.

    Args:
        **changes: fields of `Settings`.

    Yields:
        The settings in force inside the block.

    Raises:
        ArgumentError: no such field, or not a value of it.
    """
    _check(changes)
    token = _settings.set(replace(current(), **changes))
    try:
        yield current()
    finally:
        _settings.reset(token)


def _check(changes: dict[str, Any]) -> None:
    known = [field.name for field in fields(Settings)]
    for name, value in changes.items():
        legal = {
            "tf32": isinstance(value, bool),
            "take": value in _TAKE if isinstance(value, str) else False,
            "threshold": isinstance(value, int | float) and not isinstance(value, bool),
            "backend": value is None or hasattr(value, "module"),
        }
        if name not in legal:
            raise ArgumentError(
                f"no option is called {name}",
                where="polygen_options",
                nearest=f"Known: {', '.join(known)}",
            )
        if not legal[name]:
            nearest = {
                "tf32": "True or False",
                "take": f"Legal: {', '.join(_TAKE)}",
                "threshold": "A number such as 1.05",
                "backend": "A Backend of polygen.adapters.numpy.backends, or None",
            }
            raise ArgumentError(
                f"{name} = {echo(value)}", where="polygen_options", nearest=nearest[name]
            )
