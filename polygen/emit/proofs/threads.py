"""The threads that run a leaf, and what they know by name: of a block that is not the first.

Sizes are such that tiles end inside of the block's, so that what lies outside is met; strides and
addresses are numbers that nothing else is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from polygen.emit.c_text import read_value
from polygen.emit.element_types import name_of
from polygen.emit.leaves import size_name
from polygen.emit.names import c_name
from polygen.emit.run_text import Called, Handler, State, load
from polygen.emit.text_functions import FUNCTIONS
from polygen.emit.text_values import Part, Pointer, as_float, held, mixed, number_of, token
from polygen.errors import VerifyError
from polygen.frontend.forms import Form
from polygen.frontend.program import Affine, Dim, Tensor
from polygen.lower.accesses import ROWS_BEFORE
from polygen.lower.launch import stride_argument
from polygen.lower.plan import KernelPlan, Place
from polygen.poly.elements import Along, Element

SHARED = 1 << 20  # where shared memory begins
APART = 1 << 18  # from one's to another's, of copies of a block: more than one has, and aligned
_FIRST_ARRAY, _ARRAY = 1 << 46, 1 << 44
_START = 3  # elements in front of an array's first, so that it begins anywhere
# Of what does not matter; and from the end of a row to the next, so that rows begin anywhere.
_SIZE, _BETWEEN = 509, 8
IN_FRONT = 7001  # rows, of a group's
Integers = np.ndarray[Any, Any]


def of_place(plan: KernelPlan, name: str) -> tuple[dict[str, Any], int]:
    """What the threads of a place call themselves, all of them at once; and how many they are."""
    place = next((one for one in plan.places if one.name == name), plan.places[0])
    if not name:
        place = whole_place(plan)
    warp_size, count = plan.device.warp_size, place.warps * plan.device.warp_size
    thread = place.first_warp * warp_size + np.arange(count)
    warp = thread // warp_size
    names: dict[str, Any] = {"thread": thread, "lane": thread % warp_size, "warp": warp}
    warps_m, warps_n = plan.tiles.warps
    names |= {"w_m": warp // warps_n, "w_n": warp % warps_n}
    if plan.atom.scope == "warpgroup":
        group, warps = thread // plan.device.group_threads, plan.device.warpgroup_warps
        names |= {
            "group": group,
            "turn": group,
            "quarter": warp % warps * (plan.atom.m // warps),
            "w_m": group if warps_m > 1 else 0,
            "w_n": group if warps_n > 1 else 0,
        }
    for counter, slots in place.counters:
        names |= {f"{counter}.slot": min(1, slots - 1), f"{counter}.parity": 0}
    return names, count


def times(names: Mapping[str, Any], count: int) -> dict[str, Any]:
    """The same names for so many copies of the threads."""
    return {
        name: np.tile(value, count) if isinstance(value, np.ndarray) else value
        for name, value in names.items()
    }


def whole_place(plan: KernelPlan) -> Place:
    """The place that has the first warp."""
    return next(one for one in plan.places if one.first_warp == 0)


def of_kernel(plan: KernelPlan, ends: Mapping[str, int]) -> dict[str, Any]:
    """Arguments, and which tile the block has.

    Args:
        plan: the kernel.
        ends: sizes by their names; others are all the same.
    """
    names: dict[str, Any] = {"shared": SHARED, "b_m": 1, "b_n": 2, "rank": 0}
    for at, (dim, extent) in enumerate((*plan.batches, *plan.match.sums)):
        names[dim] = min(1 + at, extent - 1) if isinstance(extent, int) else 1 + at
    names |= {c_name(one): ends.get(one, _SIZE) for one in plan.program.sizes}
    arguments = [one for one in plan.arguments if one.kind not in ("size", "stride", "tensor")]
    for number, one in enumerate(arguments):
        names[c_name(one.name)] = token(one.name) + number
    lay_out(names, plan.program.tensors.values(), _FIRST_ARRAY)
    return names


def lay_out(names: dict[str, Any], tensors: Iterable[Tensor], first: int) -> None:
    """Where arrays lie, from an address on: so that an address says which element it is of."""
    for number, tensor in enumerate(one for one in tensors if one.dims):
        names[c_name(tensor.name)] = first + number * _ARRAY + _START
        step = 1
        for axis in reversed(tensor.order):
            if step > 1:
                names[c_name(stride_argument(tensor, axis))] = step
            step *= size(names, tensor.dims[axis]) + _BETWEEN


def address(
    names: Mapping[str, Any], tensor: Tensor, index: tuple[Along, ...], at: Mapping[str, Any]
) -> Any:
    """Where the program's access is, of names that `of_kernel` knows.

    Args:
        names: of arguments.
        tensor: the array.
        index: of its axes.
        at: where dims are: "m", "n", "k", ...
    """
    found = names[c_name(tensor.name)]
    for axis, one in enumerate(index):
        step, place = 1, coordinate(names, one, at)
        if axis != tensor.contiguous_axis:
            step = names[c_name(stride_argument(tensor, axis))]
        if one.rows:
            place = row_of(names[c_name(one.rows)], place, size(names, one.extent))
        found = found + step * place
    return found


def place_in(
    names: Mapping[str, Any], tensor: Tensor, index: Sequence[Any], at: Mapping[str, Any]
) -> Any:
    """Where an array has an element, by indices as statements have them.

    Args:
        names: of arguments.
        tensor: the array.
        index: of its axes; numbers may be arrays, of one for each thread.
        at: where iterators are.
    """
    found = names[c_name(tensor.name)]
    for axis, one in enumerate(index):
        inner = axis == tensor.contiguous_axis
        step = 1 if inner else names[c_name(stride_argument(tensor, axis))]
        found = found + step * _number(one, at)
    return found


def _number(index: Any, at: Mapping[str, Any]) -> Any:
    """What an index is."""
    if isinstance(index, str):
        return at[index]
    if isinstance(index, Affine):
        return at[index.iterator] // index.per * index.scale + index.offset
    return index.at(at) if isinstance(index, Form) else index


def coordinate(names: Mapping[str, Any], along: Along, at: Mapping[str, Any]) -> Any:
    """The number of an index, of dims that are at their places, or where the block is."""
    dims = {one.dim: at[one.dim] if one.dim in at else names[one.dim] for one in along.terms}
    found = along.at(dims)
    return found + along.scale * names[ROWS_BEFORE] if along.group else found


def row_of(vector: Any, place: Any, extent: Any) -> Any:
    """The row that an element of a vector names."""
    return (mixed("row_at", vector, place) & 0xFFFF) % extent


def size(names: Mapping[str, Any], extent: Dim) -> int:
    """A size, of names that `of_kernel` knows."""
    return int(evaluated(size_name(extent), names))


def evaluated(text: str, names: Mapping[str, Any], threads: int = 1) -> Any:
    """What an expression is."""
    return load(state := State(dict(names), FUNCTIONS, threads), read_value(text)(state))


class Arrays:
    """Global memory that is read: what its elements are, which are read, and which may be."""

    def __init__(self, plan: KernelPlan, names: Mapping[str, Any], *more: Tensor) -> None:
        """All arrays of a kernel, and others."""
        every = [one for one in (*plan.program.tensors.values(), *more) if one.dims]
        self.names, self.tensors = names, {names[c_name(one.name)]: one for one in every}
        self._sizes: dict[Dim, int] = {}

    def size(self, extent: Dim) -> int:
        """A size, of the arguments."""
        if extent not in self._sizes:
            self._sizes[extent] = size(self.names, extent)
        return self._sizes[extent]

    def of(self, place: Any, who: Any = True) -> tuple[int, Tensor]:
        """The array of the addresses that some threads have, with where it begins."""
        first = int(np.min(place if who is True else np.broadcast_to(place, who.shape)[who]))
        first = first // _ARRAY * _ARRAY + _START
        if first not in self.tensors:
            raise VerifyError("this is the address of no array")
        return first, self.tensors[first]

    def stored(self, place: Any) -> Any:
        """The bits of an element."""
        return _stored(self.of(place)[1], place)

    @staticmethod
    def stored_in(tensor: Tensor, place: Any) -> Any:
        """The bits of elements of an array."""
        return _stored(tensor, place)

    def read(self, called: Called, count: int = 1, inside: Any = True) -> list[Any]:
        """Elements side by side, from an address on, which is a function's last argument.

        Args:
            called: the function.
            count: of elements.
            inside: which of the threads that call it read.

        Raises:
            VerifyError: one of them is outside of the array.
        """
        given, who = called.arguments[-1], called.state.who() & inside
        first, tensor = self.of(given.value, who)
        pointer = given.pointer
        if isinstance(pointer, Pointer) and pointer.stepped not in (0, tensor.dtype.bytes):
            raise VerifyError(f"{tensor} is stepped through by {pointer.stepped} bytes")
        return [self.element(given.value + at, who, first, tensor) for at in range(count)]

    def element(self, place: Any, who: Any, first: int, tensor: Tensor) -> Any:
        """An element that some threads read.

        Raises:
            VerifyError: it is outside of the array.
        """
        index, outside = self._index(tensor, place - first), np.zeros((), bool)
        for axis, number in index.items():
            outside = outside | (number >= self.size(tensor.dims[axis])) | (number < 0)
        if (outside & who).any():
            thread = int(np.flatnonzero(outside & who)[0])
            of = (str(np.broadcast_to(one, who.shape)[thread]) for _, one in sorted(index.items()))
            raise VerifyError(
                f"thread {thread} reads [{', '.join(of)}], which is outside of {tensor}"
            )
        return _stored(tensor, place)

    def _index(self, tensor: Tensor, rest: Any) -> dict[int, Any]:
        """Which element of an array it is, by axis."""
        found = {}
        for axis in tensor.order:
            step = 1
            if axis != tensor.order[-1]:
                step = self.names[c_name(stride_argument(tensor, axis))]
            found[axis], rest = np.divmod(rest, step)
        return found

    def words(self, called: Called, size: int, inside: Any = True) -> list[Any]:
        """Bytes from an address on, as words."""
        each = self.of(called.arguments[-1].value, called.state.who() & inside)[1].dtype.bytes
        found = self.read(called, max(1, size // each), inside)
        return words_of(found, each)

    def _load(self, called: Called) -> Any:
        width = called.arguments[0].width
        if not width:
            _, tensor = self.of(called.arguments[0].value, called.state.who())
            return held(tensor.dtype, self.read(called)[0])
        words = self.words(called, width)
        if called.arguments[0].pointer.real:
            words = [as_float(one) for one in words]
        return words[0] if len(words) == 1 else Part(dict(zip("xyzw", words, strict=False)))

    def _one(self, called: Called) -> Any:
        size, (_, tensor) = (
            int(called.template[0]),
            self.of(called.arguments[0].value, called.state.who()),
        )
        if size != tensor.dtype.bytes:
            raise VerifyError(f"{size} bytes of {tensor} are read as one element")
        return self.words(called, size)[0]

    def _run(self, called: Called) -> None:
        size, width = map(int, called.template)
        if width > size or size % width:
            raise VerifyError(f"{size} bytes are read by {width}")
        self._require_whole(called, size)
        called.arguments[0].fill(self.words(called, size))

    def _require_whole(self, called: Called, size: int, inside: Any = True) -> None:
        who = called.state.who() & inside
        if who.any():
            _, tensor = self.of(called.arguments[-1].value, who)
            if size % tensor.dtype.bytes:
                raise VerifyError(f"{size} bytes of {tensor} are read, which are no whole elements")

    def _inside(self, called: Called) -> None:
        (size,), inside = map(int, called.template), called.of_all(1).astype(bool)
        if size not in (1, 2, 4, 8):
            raise VerifyError(f"{size} bytes are read at once")
        self._require_whole(called, size, inside)
        words = self.words(called, size, inside) if inside.any() else [0] * -(-size // 4)
        called.arguments[0].fill([np.where(inside, word, 0) for word in words])

    def handlers(self) -> dict[str, Handler]:
        """What functions do that read global memory."""
        return {
            "row_at": lambda called: row_of(*called.values),
            "stored_row": lambda called: row_of(*called.values),
            "__ldg": self._load,
            "read_one": self._one,
            "read_run": self._run,
            "read_inside": self._inside,
        }

    def number(self, names: Mapping[str, Any], of: Element, at: Mapping[str, Any]) -> Any:
        """The number that is an element of an array, where dims are at their places."""
        if not of.tensor.dims:
            return names[c_name(of.tensor.name)]
        stored = self.stored(address(names, of.tensor, of.index, at))
        return number_of(name_of(of.tensor.dtype), stored)


def _stored(tensor: Tensor, place: Any) -> Any:
    """The bits of an array's element at an address."""
    return mixed("stored", place) & (1 << min(8 * tensor.dtype.bytes, 62)) - 1


def words_of(elements: Sequence[Any], size: int) -> list[Any]:
    """Stored elements of so many bytes, side by side, as words."""
    if size > 4:
        return [one >> at & 0xFFFFFFFF for one in elements for at in range(0, 8 * size, 32)]
    per = 4 // size
    return [
        sum(one << 8 * size * at for at, one in enumerate(elements[first : first + per]))
        for first in range(0, len(elements), per)
    ]
