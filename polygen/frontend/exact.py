"""Arrays on which the user's function runs as it is written: float64, with polygen's meanings.

Where NumPy's function asks an array's type, the type is that of polygen's values: numbers of arrays
of s32 are whole ones, and the largest number is that of f32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polygen.frontend.rounding import round_to

Array = np.ndarray[Any, Any]
_LARGEST = float(np.finfo(np.float32).max)
_LIMITS = {"posinf": _LARGEST, "neginf": -_LARGEST}
_LIMITS_AT = 4  # where np.nan_to_num takes them by position


class Exact(np.ndarray[Any, Any]):
    """A float64 array whose `astype` takes polygen's dtype names, rounds, and stays float64.

    Arrays of whole numbers name elements, although they are float64 here.
    """

    def astype(self, dtype: object, *_: Any, **__: Any) -> Exact:
        """The values that storing in `dtype` leaves, as float64 of the same shape."""
        return round_to(self.view(np.ndarray), dtype).view(Exact)

    def __getitem__(self, key: Any) -> Any:
        """As NumPy's."""
        return super().__getitem__(_whole(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        """As NumPy's."""
        super().__setitem__(_whole(key), value)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is np.take_along_axis:
            args = tuple(_as_index(v) if at == 1 and _counts(v) else v for at, v in enumerate(args))
            named = kwargs.get("indices")
            kwargs |= {"indices": _as_index(named)} if _counts(named) else {}
        if func is np.nan_to_num and len(args) < _LIMITS_AT:
            kwargs = _LIMITS | {k: v for k, v in kwargs.items() if v is not None}
        result = super().__array_function__(func, types, args, kwargs)
        array = isinstance(result, (np.ndarray, np.generic))  # a full sum is a NumPy scalar
        return np.asarray(result).view(Exact) if array else result

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return np.asarray(array).view(Exact)  # never a NumPy scalar, which would lose `astype`


def _whole(key: Any) -> Any:
    """A subscript with whole numbers in the place of their float64."""
    keys = key if isinstance(key, tuple) else (key,)
    found = tuple(_as_index(k) if _counts(k) else k for k in keys)
    return found if isinstance(key, tuple) else found[0]


def _counts(value: Any) -> bool:
    """Whether a value is an array of numbers that may stand for whole ones."""
    return isinstance(value, Exact) and value.dtype.kind == "f"


def _as_index(numbers: Any) -> Array:
    return np.asarray(numbers.view(np.ndarray).astype(np.int64))


def exact(array: Any) -> Exact:
    """An array of any dtype, ml_dtypes' included, as exact float64 values."""
    return np.asarray(array).astype(np.float64).view(Exact)
