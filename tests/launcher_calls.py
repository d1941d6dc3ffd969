"""A launcher's arguments at and around the borders of what it takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from host_launcher import Described, HostLauncher, interpreted

from polygen.emit.conditions import Arrays, Condition, holds, refusals
from polygen.emit.names import c_name
from polygen.emit.source import KernelSource
from polygen.errors import ArgumentError
from polygen.frontend.program import Program
from polygen.frontend.shapes import LARGEST_SIZE
from polygen.lower.build import arguments
from polygen.lower.launch import stride_argument
from polygen.runtime.arrays import ArrayView
from polygen.runtime.binding import Binding, bind, check_overlap

BASE = 48  # elements of every dim: rows of whole copies for every type
STEPS = (-64, -1, 0, 1, 40, 46, 47, 48, 49, 50, 52, 56, 63, 65, 66, 68, 72, 2**31 - 1)
FAR = 1 << 40  # bytes between arrays


@dataclass
class Call:
    """Arguments by their names in C."""

    program: Program
    source: KernelSource

    def __post_init__(self) -> None:
        program = self.program
        self.tensors = {t.name: t for t in (*program.inputs, *program.outputs) if t.dims}
        self.values = {name: BASE for name in program.sizes}
        for place, tensor in enumerate(self.tensors.values(), 1):
            self.values[tensor.name] = place * FAR
            reach = 1
            for axis in reversed(tensor.order):
                step = 1
                if axis != tensor.order[-1]:
                    step = self.values[stride_argument(tensor, axis)] = -(-reach // 16) * 16 + 16
                dim = tensor.dims[axis]
                reach += ((dim if isinstance(dim, int) else BASE) - 1) * step

        source = self.source
        tests = {
            refusal.test: refusal.code
            for refusal in refusals(source.conditions, source.launch, self.tensors)
        }
        self.tested: dict[int, list[Condition]] = {code: [] for code in tests.values()}
        for one in source.conditions:
            (refusal,) = refusals([one], source.launch, self.tensors)
            self.tested[tests[refusal.test]].append(one)

    def arrays(self, values: dict[str, int]) -> Arrays:
        """As the conditions see them."""
        program = self.program
        strides = {
            t.name: [
                1 if axis == t.order[-1] else values[stride_argument(t, axis)]
                for axis in range(len(t.dims))
            ]
            for t in self.tensors.values()
        }
        sizes = {name: values[name] for name in program.sizes}
        return Arrays(self.tensors, sizes, strides, {name: values[name] for name in self.tensors})

    def expected(self, values: dict[str, int]) -> int:
        """The code of the first condition that does not hold."""
        arrays = self.arrays(values)
        for code, alike in self.tested.items():
            if not all(holds(one, self.source.launch, arrays) for one in alike):
                return code
        return 0

    def bound(self, values: dict[str, int]) -> Binding | None:
        """What a call from Python with such arrays launches; None: not this very kernel."""
        source, arrays = self.source, self.arrays(values)
        tensors = list(self.tensors.values())
        outputs = len(self.program.outputs)
        views = [
            ArrayView(
                values[t.name],
                tuple(arrays.extent(d) for d in t.dims),
                tuple(arrays.strides[t.name]),
                t.dtype,
                0,
                "cupy",
            )
            for t in tensors
        ]
        pointers = [view.pointer for view in views]
        try:
            binding = bind(source, tensors[:-outputs], tensors[-outputs:], views)
            check_overlap(binding, tensors, pointers)
        except ArgumentError:
            return None
        bits = zip(pointers, binding.stride_bits, binding.masks, strict=True)
        fits = not any((pointer | stride) & mask for pointer, stride, mask in bits)
        return binding if fits else None

    def around(self) -> Iterator[dict[str, int]]:
        """Arguments at and just outside the borders of the class, one or two moved at a time."""
        base = self.values
        yield base
        program = self.program
        edges = (-1, 0, 1, 2, 40, 44, 46, 47, 49, 50, 52, 56, 165, LARGEST_SIZE, LARGEST_SIZE + 1)
        for name in program.sizes:
            yield from ({**base, name: size} for size in edges)
        strides = [a.name for a in arguments(program) if a.kind == "stride"]
        for name in strides:
            near = {base[name] + moved for moved in (-64, -16, -15, -8, -4, -2, -1, 1, 2, 4, 8)}
            for step in sorted({*STEPS, *near}):
                yield {**base, name: step}
                yield {**base, name: step, **{size: 1 for size in program.sizes}}
        # The reported one: 165 columns in rows of 168, which strides alone do not tell.
        for size in program.sizes:
            yield {**base, size: 165, **{name: 168 for name in strides}}
        for name, tensor in self.tensors.items():
            yield from ({**base, name: base[name] + moved} for moved in (1, 2, 4, 8, 16, 24))
            if tensor in program.outputs:
                arrays = self.arrays(base)
                for other, second in self.tensors.items():
                    span = arrays.reach(other, second.order) * second.dtype.bytes
                    own = arrays.reach(name, tensor.order) * tensor.dtype.bytes
                    for moved in (
                        0,
                        16,
                        span - 16,
                        -(-span // 16) * 16,
                        16 - own,
                        -(own // 16 * 16) - 16,
                    ):
                        yield {**base, name: base[other] + moved}


def codes_of(call: Call, some: Iterable[dict[str, int]]) -> set[int]:
    """What the launcher's tests return, read as Python, which calls from Python agree with."""
    codes = set()
    for values in some:
        code = interpreted(call.source, {c_name(name): value for name, value in values.items()})
        assert code == call.expected(values), values
        assert (code == 0) == (call.bound(values) is not None), values
        codes.add(code)
    return codes


def compare_compiled(call: Call, some: Iterable[dict[str, int]], launcher: HostLauncher) -> None:
    """The compiled launcher refuses, and else launches, as a call from Python."""
    source, tensors = call.source, list(call.tensors.values())
    strides = {a.name: a for a in source.arguments if a.kind == "stride"}
    maps = sum(a.kind == "map" for a in source.arguments)
    for values in some:
        wanted, before = call.expected(values), launcher.number("maps")
        assert launcher(values) == wanted, values
        assert launcher.check(values) == wanted, values
        assert launcher.number("maps") == before + (0 if wanted else maps)
        if wanted:
            continue
        arrays = call.arrays(values)
        blocks = source.launch.grid(dict(arrays.sizes), 132)
        assert launcher.grid() == blocks == launcher.header_grid(arrays.sizes, 132)
        given = []
        for argument in source.arguments:
            if argument.kind == "size":
                given.append(values[argument.dim])
            elif argument.name in strides:
                alone = arrays.extent(call.tensors[argument.tensor].dims[argument.axis]) == 1
                given.append(0 if alone else values[argument.name])
        assert launcher.passed() == given
        binding = call.bound(values)
        assert binding is not None
        for found, (at, layout) in zip(launcher.described(maps), binding.maps, strict=True):
            assert found == Described(
                values[tensors[at].name] + layout.start,
                layout.sizes,
                layout.strides,
                layout.box,
                layout.swizzle,
            )
