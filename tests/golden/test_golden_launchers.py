"""Every launcher refuses what its alignment class excludes, and takes what Python takes.

The launchers are those of the golden files: their own text is compiled with the system's C++
compiler against stubs of CUDA, or, without one, its tests are read as Python.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from golden_cases import GOLDEN, ROOT
from host_launcher import COMPILER, HostLauncher, interpreted

from polygen.cli import load
from polygen.cli.arguments import parser
from polygen.emit.conditions import Arrays, holds, refusals
from polygen.emit.names import c_name
from polygen.errors import ArgumentError
from polygen.frontend.shapes import LARGEST_SIZE
from polygen.generated import Generated, decode, encode
from polygen.kernel import Kernel
from polygen.lower.build import arguments
from polygen.lower.launch import stride_argument
from polygen.runtime.arrays import ArrayView
from polygen.runtime.binding import bind, check_overlap

BASE = 48  # elements of every dim: rows of whole copies for every type
STEPS = (-64, -1, 0, 1, 40, 46, 47, 48, 49, 50, 52, 56, 63, 65, 66, 68, 72, 2**31 - 1)
FAR = 1 << 40  # bytes between arrays


@dataclass
class Call:
    """Arguments by their names in C."""

    kernel: Kernel

    def __post_init__(self) -> None:
        program = self.kernel.program
        self.tensors = {t.name: t for t in (*program.inputs, *program.outputs) if t.dims}
        self.values = {name: BASE for name in program.sizes}
        for place, tensor in enumerate(self.tensors.values(), 1):
            self.values[tensor.name] = place * FAR
            inner = tensor.dims[tensor.order[-1]]
            row = inner if isinstance(inner, int) else BASE
            for axis in tensor.order[:-1]:
                self.values[stride_argument(tensor, axis)] = -(-row // 16) * 16 + 16

    def arrays(self, values: dict[str, int]) -> Arrays:
        """As the conditions see them."""
        program = self.kernel.program
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
        source, arrays = self.kernel.passes.source, self.arrays(values)
        for refusal in refusals(source.conditions, source.launch, self.tensors):
            alike = [
                one
                for one in source.conditions
                if refusals([one], source.launch, self.tensors)[0].test == refusal.test
            ]
            if not all(holds(one, source.launch, arrays) for one in alike):
                return refusal.code
        return 0

    def python_takes(self, values: dict[str, int]) -> bool:
        """Whether a call from Python with such arrays would launch this very kernel."""
        source, arrays = self.kernel.passes.source, self.arrays(values)
        tensors = list(self.tensors.values())
        outputs = len(self.kernel.program.outputs)
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
            return False
        bits = zip(pointers, binding.stride_bits, binding.masks, strict=True)
        return not any((pointer | stride) & mask for pointer, stride, mask in bits)

    def around(self) -> Iterator[dict[str, int]]:
        """Arguments at and just outside the borders of the class, one or two moved at a time."""
        base = self.values
        yield base
        program = self.kernel.program
        edges = (-1, 0, 1, 2, 40, 44, 46, 47, 49, 50, 52, 56, 165, LARGEST_SIZE, LARGEST_SIZE + 1)
        for name in program.sizes:
            yield from ({**base, name: size} for size in edges)
        strides = [a.name for a in arguments(program) if a.kind == "stride"]
        for name in strides:
            for step in (
                -64,
                -1,
                0,
                1,
                40,
                46,
                47,
                48,
                49,
                50,
                52,
                56,
                63,
                65,
                66,
                68,
                72,
                2**31 - 1,
            ):
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


@pytest.fixture(scope="module", params=GOLDEN, ids=lambda case: case.name)
def call(request) -> Call:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        options = parser().parse_args(request.param.words)
        options.command = ""
        return Call(load.kernel(options))


def in_c(values: dict[str, int]) -> dict[str, int]:
    return {c_name(name): value for name, value in values.items()}


def test_the_launchers_tests_are_the_class(call):
    source, codes = call.kernel.passes.source, set()
    for values in call.around():
        code = interpreted(source, in_c(values))
        assert code == call.expected(values), values
        assert (code == 0) == call.python_takes(values), values
        codes.add(code)
    every = refusals(source.conditions, source.launch, call.tensors)
    reached = {r.code for r in every if " groups of tiles" not in r.sentence}
    assert reached <= codes, "each condition is broken by something"
    assert 0 in codes
    for refusal in every:
        assert f"//   {refusal.code}: {refusal.sentence}\n" in source.text, "the comment says so"
        assert f"//   {refusal.code}: {refusal.sentence}\n" in source.header


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
def test_the_compiled_launcher_refuses_what_is_outside_the_class(call, tmp_path):
    source = call.kernel.passes.source
    launcher = HostLauncher(source, call.kernel.program, tmp_path)
    strides = {a.name: a for a in source.arguments if a.kind == "stride"}
    for values in call.around():
        wanted = call.expected(values)
        assert launcher(values) == wanted, values
        assert launcher.check(values) == wanted, values
        if wanted:
            continue
        arrays = call.arrays(values)
        blocks = source.launch.grid(dict(arrays.sizes), 132)[:2]
        assert launcher.grid() == blocks == launcher.header_grid(arrays.sizes, 132)
        given = []
        for argument in source.arguments:
            if argument.kind == "size":
                given.append(values[argument.dim])
            elif argument.name in strides:
                alone = arrays.extent(call.tensors[argument.tensor].dims[argument.axis]) == 1
                given.append(0 if alone else values[argument.name])
        assert launcher.passed() == given
    assert launcher.number("maps") % max(1, sum(a.kind == "map" for a in source.arguments)) == 0


def test_rows_that_end_inside_a_copy_are_refused_by_name():
    from polygen.api import fuse

    made = fuse(lambda x, w: x @ w.T).compile("bf16[M,K]", "bf16[N,K]", arch="sm_80")
    source = made.passes.source
    values = {"M": 64, "N": 64, "K": 165, "x_stride0": 168, "w_stride0": 168, "y0_stride0": 64}
    values |= {"x": FAR, "w": 2 * FAR, "y0": 3 * FAR}
    code = interpreted(source, values)
    (refusal,) = (
        r
        for r in refusals(source.conditions, source.launch, made.program.tensors)
        if r.code == code
    )
    assert refusal.sentence == "K is a multiple of 8: rows of x, w are whole copies"
    assert interpreted(source, {**values, "K": 168}) == 0


def test_a_kernel_survives_as_json(call):
    made = call.kernel.passes.generated
    assert decode(Generated, json.loads(json.dumps(encode(made)))) == made
