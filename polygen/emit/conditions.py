"""What a launch's arguments must satisfy: the one list that Python's calls and the C launcher use.

1. `conditions` derives the list from the kernel: sizes and the grid that they make, rows of whole
   copies, steps between rows, addresses, memory of the outputs.
2. `holds` decides one condition for given arrays; the Python binding asks it.
3. `refusals` writes the same conditions as C: each becomes a test, the code that the launcher
   returns when the test finds something, and the sentence that both headers print.

Two conditions that are the same test of the same number, as K of x and of w, share a code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polygen.emit.names import c_name, c_size
from polygen.frontend.indices import named_in, size_value, times_in
from polygen.frontend.program import Dim, Program, Tensor
from polygen.frontend.shapes import LARGEST_SIZE
from polygen.hardware.device import common_facts
from polygen.lower.launch import Extents, Launch, stride_argument

FIRST_CODE = 20001  # behind all of cudaError_t, which ends at 10000


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition.

    Attributes:
        kind: "size": `multiple` times `dim`, which is at least 1, is at most `LARGEST_SIZE`;
            "cover": `dim` is at most `multiple`, the columns of tiles that cover rows; "grid": CUDA
            launches so many blocks; "work": persistent blocks can count the tiles of all matrices;
            "row": `dim`, along which `tensor` is contiguous, is a multiple of `multiple` elements;
            "forward": the step of `axis` is not negative; "distinct": the step of `axis` leads
            beyond what the faster axes reach; "step": the step of `axis` is a multiple of
            `multiple` elements; "address": that of `tensor` is a multiple of `multiple` bytes;
            "apart": `tensor` shares no memory with `other`. A step counts only if the extent `dim`
            of its axis is above 1.
        tensor: its array, where it is about one.
        axis: whose step it is about.
        dim: the extent that it is about.
        multiple: see above.
        other: see above.
    """

    kind: str
    tensor: str = ""
    axis: int = 0
    dim: Dim = 0
    multiple: int = 1
    other: str = ""

    @property
    def largest(self) -> int:
        """Of a size: the largest number that it may be."""
        return LARGEST_SIZE // self.multiple


@dataclass(frozen=True, slots=True)
class Arrays:
    """The arguments of one launch.

    Attributes:
        tensors: as declared, by name.
        sizes: of the symbolic dims.
        strides: elements per axis of each tensor; any along an axis of extent 1.
        addresses: of each tensor.
    """

    tensors: Mapping[str, Tensor]
    sizes: Mapping[str, int]
    strides: Mapping[str, Sequence[int]]
    addresses: Mapping[str, int]

    def extent(self, dim: Dim) -> int:
        """A size as a number."""
        found: int = size_value(dim, self.sizes)
        return found

    def reach(self, name: str, axes: Sequence[int]) -> int:
        """Elements from the first to behind the last along `axes` of a tensor."""
        dims, steps = self.tensors[name].dims, self.strides[name]
        extents = ((self.extent(dims[axis]), steps[axis]) for axis in axes)
        return 1 + sum((size - 1) * step for size, step in extents if size > 1)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A condition as the C launcher tests it."""

    test: str  # C; true when the arguments are refused
    code: int  # what the launcher returns then
    sentence: str  # what must hold


def conditions(
    program: Program,
    whole: Sequence[str] = (),
    launch: Launch | None = None,
    covered: Sequence[tuple[Dim, int]] = (),
) -> tuple[Condition, ...]:
    """All conditions of a kernel, in the order in which they are tested.

    Args:
        program: its tensors, with the alignments it was made for.
        whole: tensors that it copies in whole pieces, so that rows must not end inside one.
        launch: its launch; persistent blocks are never too many, the tiles they share may be.
        covered: dims that tiles cover, and how wide they are.
    """
    found = [Condition("size", dim=name, multiple=_most(program, name)) for name in program.sizes]
    for dim, wide in covered:
        if not isinstance(dim, int):
            found.append(Condition("cover", dim=dim, multiple=wide))
    if launch is not None and not launch.persistent:
        found.append(Condition("grid"))
    elif launch is not None and (launch.batches or launch.grouped or launch.further):
        # Of one matrix there are never too many: its elements would not fit any memory.
        found.append(Condition("work"))
    tensors = [t for t in (*program.inputs, *program.outputs) if t.dims]
    for tensor in tensors:
        contiguous = tensor.dims[tensor.order[-1]]
        step = tensor.alignment // tensor.dtype.bytes
        if tensor.name in whole and not (isinstance(contiguous, int) and contiguous % step == 0):
            found.append(Condition("row", tensor.name, tensor.order[-1], contiguous, step))
    for tensor in tensors:
        step = tensor.alignment // tensor.dtype.bytes
        direction = "distinct" if tensor in program.outputs else "forward"
        # The fastest first: those behind it add what it reaches, by then a sane number.
        for axis in reversed(tensor.order[:-1]):
            if tensor.dims[axis] != 1:
                found.append(Condition(direction, tensor.name, axis, tensor.dims[axis]))
                if step > 1:
                    found.append(Condition("step", tensor.name, axis, tensor.dims[axis], step))
    found += [Condition("address", t.name, multiple=t.alignment) for t in tensors]
    for at, tensor in enumerate(tensors):
        if tensor in program.outputs:
            found += [Condition("apart", tensor.name, other=t.name) for t in tensors[:at]]
    return tuple(found)


def holds(condition: Condition, launch: Launch, arrays: Arrays) -> bool:
    """Whether arguments satisfy a condition."""
    one, kind = condition, condition.kind
    if kind == "size":
        return 1 <= arrays.extent(one.dim) <= one.largest
    if kind == "cover":
        return arrays.extent(one.dim) <= one.multiple
    if kind == "grid":
        blocks = zip(launch.grid(arrays.sizes), most_blocks(), strict=True)
        counted = not launch.layers or launch.matrices(arrays.sizes) <= LARGEST_SIZE
        return counted and all(count <= most for count, most in blocks)
    if kind == "work":
        return launch.work(arrays.sizes) <= LARGEST_SIZE
    if kind == "row":
        return arrays.extent(one.dim) % one.multiple == 0
    if kind == "address":
        return arrays.addresses[one.tensor] % one.multiple == 0
    if kind == "apart":
        return not _overlap(arrays, one.tensor, one.other)
    if arrays.extent(one.dim) == 1:
        return True
    step = arrays.strides[one.tensor][one.axis]
    if kind == "forward":
        return step >= 0
    if kind == "distinct":
        return step >= arrays.reach(one.tensor, _faster(arrays.tensors[one.tensor], one.axis))
    return step % one.multiple == 0


def most_blocks() -> tuple[int, int, int]:
    """The blocks along x, y, z that CUDA launches at most."""
    facts = common_facts()
    return (facts["grid_x"], facts["grid_y"], facts["grid_z"])


def _overlap(arrays: Arrays, *names: str) -> bool:
    (start, end), (first, last) = (
        (address, address + arrays.reach(name, tensor.order) * tensor.dtype.bytes)
        for name in names
        for tensor, address in ((arrays.tensors[name], arrays.addresses[name]),)
    )
    return start < last and first < end


def _faster(tensor: Tensor, axis: int) -> tuple[int, ...]:
    return tensor.order[tensor.order.index(axis) + 1 :]


# --- as C -----------------------------------------------------------------------------------------
def refusals(
    conditions: Sequence[Condition], launch: Launch, tensors: Mapping[str, Tensor]
) -> tuple[Refusal, ...]:
    """The tests of a launcher, in order, each with its code."""
    found: dict[str, list[Condition]] = {}
    for one in conditions:
        found.setdefault(_test(one, launch, tensors), []).append(one)
    return tuple(
        Refusal(test, code, _sentence(alike, launch, tensors))
        for code, (test, alike) in enumerate(found.items(), FIRST_CODE)
    )


def _step(tensor: Tensor, axis: int) -> str:
    return c_name(stride_argument(tensor, axis))


def given_step(tensor: Tensor, axis: int) -> str:
    """The step that the kernel gets: 0 along an axis of extent 1, so that no stray one harms."""
    dim = tensor.dims[axis]
    if isinstance(dim, int):
        return _step(tensor, axis) if dim > 1 else "0"
    return f"({c_size(dim)} > 1 ? {_step(tensor, axis)} : 0)"


def _reach(tensor: Tensor, axes: Sequence[int]) -> str:
    """Elements from the first to behind the last along `axes`, as a 64-bit expression."""
    terms = []
    for axis in axes:
        if tensor.dims[axis] == 1:
            continue
        last = f"({c_size(tensor.dims[axis])} - 1LL)"
        inner = axis == tensor.order[-1]
        terms.append(last if inner else f"{last} * {_step(tensor, axis)}")
    return " + ".join([*terms, "1"])


def _most(program: Program, name: str) -> int:
    """The largest multiple of a size that statements run over, or that sums have as terms."""
    extents = (extent for statement in program.statements for _, extent in statement.domain)
    found = [times_in(extent) for extent in extents if name in named_in(extent)]
    for product in program.contractions:
        summed = [extent for it, extent in product.domain if it in product.summed]
        numbers = math.prod(extent for extent in summed if isinstance(extent, int))
        found += [numbers * times_in(one) for one in summed if name in named_in(one)]
    return max(found, default=1)


def _test(one: Condition, launch: Launch, tensors: Mapping[str, Tensor]) -> str:
    size = c_size(one.dim)
    if one.kind == "size":
        return f"{size} < 1 || {size} > {one.largest}"
    if one.kind == "cover":
        return f"{size} > {one.multiple}"
    if one.kind == "grid":
        x, y = _blocks(launch)
        most = most_blocks()
        # Batch dims one by one: where one product is too large, no later one is formed.
        z = [matrices(launch, count) for count in range(1, len(launch.batches) + 1)]
        limit = LARGEST_SIZE if launch.layers else most[2]
        limits = [(x, most[0]), (y, most[1]), *((product, limit) for product in z)]
        if launch.layers:
            limits.append((f"{x} * ({rounds(launch)})", most[0]))
        return _above(*limits)
    if one.kind == "work":
        counts = range(len(launch.batches) + 1)
        return _above(*((work_items(launch, count), LARGEST_SIZE) for count in counts))
    if one.kind == "row":
        return f"{size} % {one.multiple}"
    tensor = tensors[one.tensor]
    if one.kind == "address":
        return f"{_address(tensor)} % {one.multiple}"
    if one.kind == "apart":
        (start, end), (first, last) = (
            (_address(t), f"{_address(t)} + ({_reach(t, t.order)}) * {t.dtype.bytes}")
            for t in (tensor, tensors[one.other])
        )
        return f"{start} < {last} && {first} < {end}"
    step = _step(tensor, one.axis)
    test = {
        "forward": f"{step} < 0",
        "distinct": f"{step} < {_reach(tensor, _faster(tensor, one.axis))}",
        "step": f"{step} % {one.multiple}",
    }[one.kind]
    return f"{size} > 1 && {test}" if isinstance(one.dim, str) else test


def _address(tensor: Tensor) -> str:
    return f"(unsigned long long){c_name(tensor.name)}"


def _blocks(launch: Launch) -> tuple[str, str]:
    """The grid of a kernel with one block per tile, in 64 bits."""
    along, across = (
        f"({rounded_up(launch, side, tile)}) / {tile}"
        for side, tile in (("along", launch.tile_along), ("across", launch.tile_across))
    )
    return f"{across} * {launch.group}", f"({along} + {launch.group - 1}) / {launch.group}"


def rounded_up(launch: Launch, side: str, tile: int, kind: str = "LL") -> str:
    """What whole tiles along or across count, before it is divided; see `Launch.tiles`."""
    size = c_size(launch.along if side == "along" else launch.across)
    if launch.grouped == side:
        return f"{size} + {c_size(launch.groups)} * {tile - 1}LL"
    return f"{size} + {tile - 1}{kind}"


def _above(*limits: tuple[str, int]) -> str:
    return " || ".join(f"{value} > {most}" for value, most in limits)


def matrices(launch: Launch, count: int | None = None) -> str:
    """How many matrices the first `count` batch dims make, or all of them, in 64 bits."""
    return " * ".join(["1LL", *map(c_size, launch.batches[:count])])


def rounds(launch: Launch) -> str:
    """In how many rounds they are taken, in 64 bits."""
    return f"({matrices(launch)} + {launch.layers - 1}) / {launch.layers}"


def work_items(launch: Launch, count: int | None = None) -> str:
    """The clusters of tiles of those matrices, in 64 bits."""
    along, across = (
        f"({rounded_up(launch, side, tile)}) / {tile}"
        for side, tile in (
            ("along", launch.tile_along * launch.cluster[0]),
            ("across", launch.tile_across * launch.cluster[1]),
        )
    )
    first = " * ".join([along, f"({across})", *map(c_size, launch.batches[:count])])
    return " + ".join([first, *(_further_items(launch, one) for one in launch.further)])


def _further_items(launch: Launch, one: Extents) -> str:
    """The clusters of tiles of a section behind the first, in 64 bits."""
    sides = zip(
        (one.along, one.across),
        (launch.tile_along, launch.tile_across),
        launch.cluster,
        strict=True,
    )
    tiles = (
        f"(({c_size(extent)} + {tile * blocks - 1}LL) / {tile * blocks})"
        for extent, tile, blocks in sides
    )
    return " * ".join([*tiles, *map(c_size, one.batches)])


def _batches(launch: Launch) -> str:
    return " x ".join(map(str, launch.batches))


def _sentence(alike: Sequence[Condition], launch: Launch, tensors: Mapping[str, Tensor]) -> str:
    """What conditions with one test ask for."""
    one = alike[0]
    if one.kind == "size":
        return f"{one.dim} is 1 to {one.largest}"
    if one.kind == "cover":
        return f"{one.dim} is at most {one.multiple}: tiles cover rows"
    if one.kind == "grid":
        _, y, z = most_blocks()
        z = LARGEST_SIZE if launch.layers else z
        tiles = f"{launch.along} and {launch.across} make at most {y} groups of tiles"
        return f"{tiles}, {_batches(launch)} at most {z} matrices" if launch.batches else tiles
    if one.kind == "work" and launch.grouped:
        rows = launch.along if launch.grouped == "along" else launch.across
        return f"{rows} in {launch.groups} groups make at most {LARGEST_SIZE} tiles"
    if one.kind == "work" and launch.further:
        outputs = " and ".join(
            " x ".join(map(str, (*s.batches, s.along, s.across))) for s in launch.sections
        )
        return f"{outputs} make at most {LARGEST_SIZE} tiles together"
    if one.kind == "work":
        return (
            f"{launch.along} and {launch.across} of {_batches(launch)} matrices make at most "
            f"{LARGEST_SIZE} {'clusters of tiles' if launch.cluster != (1, 1) else 'tiles'}"
        )
    if one.kind == "row":
        rows = ", ".join(other.tensor for other in alike)
        return f"{one.dim} is a multiple of {one.multiple}: rows of {rows} are whole copies"
    if one.kind == "address":
        return f"the address of {one.tensor} is a multiple of {one.multiple}"
    if one.kind == "apart":
        return f"{one.tensor} shares no memory with {one.other}"
    unless = f" if {one.dim} > 1" if isinstance(one.dim, str) else ""
    tensor = tensors[one.tensor]
    step = stride_argument(tensor, one.axis)
    row = len(_faster(tensor, one.axis)) == 1
    what = {
        "forward": "is not negative",
        "distinct": f"leads beyond {'a row' if row else 'the faster axes'} of {one.tensor}",
        "step": f"is a multiple of {one.multiple}",
    }[one.kind]
    return f"{step} {what}{unless}"
