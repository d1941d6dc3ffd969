"""Arrays that are views of larger ones, on the GPU: results, and what lies between rows.

Texts for other targets are compiled for the card that is there.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from older_targets import as_for
from padded_arrays import (
    ALIGNED,
    OTHERS,
    REPEATED,
    Given,
    Way,
    given,
    mixed,
    room_of,
    small_sizes,
)
from padded_samples import EACH, SAMPLES

from polygen.errors import ArgumentError, PolygenError
from polygen.hardware.device import device
from polygen.kernel import Kernel
from polygen.runtime.arrays import numpy_dtype
from polygen.runtime.environment import current_arch

pytestmark = pytest.mark.gpu


def kernel_of(name: str, arch: str) -> Kernel:
    """The kernel of a sample, for the card that is there."""
    here = str(current_arch())
    if arch == "sm_90a" and not device(here).has("wgmma"):
        pytest.skip("needs warpgroup instructions")
    kernel = SAMPLES[name].kernel(arch)
    return kernel if here == arch else as_for(here, kernel)


def call(kernel: Kernel, made: Given) -> str:
    """What is wrong with a call; "" if nothing is."""
    import cupy

    program = kernel.program
    moved: list[tuple[Any, np.ndarray, np.ndarray]] = []  # there, before, results

    def put(tensor: Any, view: Any) -> Any:
        if not tensor.dims and not isinstance(view, np.ndarray):
            return view
        room = room_of(view)
        there = cupy.asarray(room)
        start = view.ctypes.data - room.ctypes.data
        moved.append((there, room, view))
        return cupy.ndarray(
            view.shape, numpy_dtype(tensor.dtype), there.data + start, strides=view.strides
        )

    operands = [put(t, one) for t, one in zip(program.operands, made.operands, strict=True)]
    outs = [put(t, one) for t, one in zip(program.outputs, made.out, strict=bool(made.out))]
    if outs:
        kernel(*operands, out=outs[0] if len(outs) == 1 else tuple(outs))
    else:
        kernel(*operands)
    stored = dict(program.in_place)
    written = [*range(len(moved) - len(outs), len(moved))]
    if stored:
        arrays = [at for at, one in enumerate(made.operands) if isinstance(one, np.ndarray)]
        written = [arrays.index(stored[t.name]) for t in program.outputs]
    results, found = [], []
    for number, (there, room, view) in enumerate(moved):
        after = there.get()
        now = np.ndarray(
            view.shape, view.dtype, after, view.ctypes.data - room.ctypes.data, view.strides
        )
        if number in written:
            results.append((written.index(number), now.copy()))
            now[...] = view  # and all else is as it was
        if not np.array_equal(after, room):
            first = int(np.flatnonzero(after != room)[0])
            found.append(f"array {number}: byte {first} of {len(room)} outside of it was written")
    ordered = [one for _, one in sorted(results, key=lambda pair: pair[0])]
    return "\n".join([*found, *made.wrong(program, ordered)])


def trouble(kernel: Kernel, sizes: dict[str, int], ways: Mapping[str, Way] | Way) -> str:
    """As `call`, on arrays that lie so; "" where a schedule that was asked for cannot take them."""
    made = given(kernel, sizes, ways)
    try:
        return call(kernel, made)
    except ArgumentError as error:
        # Tensor maps may not repeat rows: the driver says so.
        return "" if ways is REPEATED and "does not encode" in str(error) else str(error)
    except PolygenError as error:
        plan = kernel.passes.plan  # of a chain operands come in boxes alone, of sections alike
        may = kernel._asked != "auto" or plan.chained is not None or bool(plan.sections)
        return "" if may else str(error)


@pytest.mark.parametrize(("name", "arch"), EACH)
def test_programs_of_every_kind(name: str, arch: str) -> None:
    kernel = kernel_of(name, arch)
    sizes = small_sizes(kernel.program, **SAMPLES[name].trial)
    seed = zlib.crc32(f"{name} {arch}".encode())
    wrong = {
        way.name: text
        for way in (*ALIGNED, OTHERS[seed % len(OTHERS)], REPEATED)
        if (text := trouble(kernel, sizes, way))
    }
    wrong |= {
        f"mixed {turn}": text
        for turn in range(2)
        if (text := trouble(kernel, sizes, mixed(kernel.program, seed + turn)))
    }
    assert not wrong, wrong


@pytest.mark.parametrize("sizes", [{"M": 300, "N": 517, "K": 1003}, {"M": 1, "N": 4099, "K": 4093}])
@pytest.mark.parametrize("name", ["layers", "one row", "few rows", "weights of 8 bits"])
def test_larger_sizes(name: str, sizes: dict[str, int]) -> None:
    kernel = kernel_of(name, SAMPLES[name].archs[0])
    sizes = {dim: size for dim, size in sizes.items() if dim in kernel.program.sizes}
    for way in (*ALIGNED, *OTHERS):
        assert trouble(kernel, sizes, way) == "", way.name
