"""Runs a machine launch on a real GPU, through the driver's own compiler for the same PTX."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from polygen.machine import Launch, Report, TensorMap, run
from polygen.machine.parse import parse, type_bytes

MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
MAP_TYPES = {
    "uint8": 0,
    "uint16": 1,
    "uint32": 2,
    "int32": 3,
    "uint64": 4,
    "int64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}  # CU_TENSOR_MAP_DATA_TYPE_*
MAP_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}


def _image(array: np.ndarray) -> np.ndarray:
    """The bytes an array spans, elements at their strides."""
    steps = zip(array.shape, array.strides, strict=True)
    span = array.itemsize + sum((n - 1) * step for n, step in steps)
    raw = np.zeros(span, np.uint8)
    np.ndarray(array.shape, array.dtype, raw.data, 0, array.strides)[...] = array
    return raw


def _encode(one: TensorMap, pointer: int) -> np.ndarray:
    """``cuTensorMapEncodeTiled``; the 128 bytes as an array of one element."""
    array, rank = one.array, one.array.ndim
    storage = (ctypes.c_uint64 * 32)()
    address = (ctypes.addressof(storage) + 63) // 64 * 64
    dims = (ctypes.c_uint64 * rank)(*reversed(array.shape))
    strides = (ctypes.c_uint64 * rank)(*reversed(array.strides[:-1]))
    box = (ctypes.c_uint32 * rank)(*reversed(one.box))
    ones = (ctypes.c_uint32 * rank)(*[1] * rank)
    driver = ctypes.CDLL("libcuda.so.1")
    status = driver.cuTensorMapEncodeTiled(
        ctypes.c_void_p(address), MAP_TYPES[array.dtype.name], rank, ctypes.c_void_p(pointer),
        dims, strides, box, ones, 0, MAP_SWIZZLES[one.swizzle], 0, int(one.nan_fill),
    )  # fmt: skip
    assert status == 0, f"cuTensorMapEncodeTiled: {status}"
    return np.frombuffer(ctypes.string_at(address, 128), "V128")


def run_on_gpu(cupy: Any, ptx: str, launch: Launch) -> tuple[np.ndarray, ...]:
    """Launch on the current GPU; the arrays after the run, as `Report.arrays` has them."""
    kernels = parse(ptx).kernels
    kernel = kernels[launch.entry] if launch.entry else next(iter(kernels.values()))
    module = cupy.cuda.function.Module()
    module.load(ptx.encode() + b"\0")
    function = module.get_function(kernel.name)
    cupy.cuda.driver.funcSetAttribute(function.ptr, MAX_DYNAMIC_SHARED, launch.shared_bytes)
    held: dict[int, tuple[Any, np.ndarray]] = {}
    arguments, order = [], []
    for parameter, value in zip(kernel.parameters, launch.arguments, strict=True):
        array = value.array if isinstance(value, TensorMap) else value
        if isinstance(array, np.ndarray):
            if id(array) not in held:
                raw = _image(array)
                memory = cupy.cuda.alloc(raw.nbytes)
                memory.copy_from_host(ctypes.c_void_p(raw.ctypes.data), raw.nbytes)
                held[id(array)] = memory, array
            pointer = held[id(array)][0].ptr
            order.append(id(array))
            is_map = isinstance(value, TensorMap)
            arguments.append(_encode(value, pointer) if is_map else np.uint64(pointer))
            continue
        size = parameter.size or type_bytes(parameter.kind)
        if isinstance(value, bytes):
            data = value
        elif isinstance(value, np.generic):
            data = value.tobytes()
        elif isinstance(value, float):
            data = np.array(value, f"f{size}").tobytes()
        else:
            data = (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        arguments.append(np.frombuffer(data, f"V{size}"))
    function(launch.grid, launch.block, arguments, shared_mem=launch.shared_bytes)
    cupy.cuda.runtime.deviceSynchronize()
    result = []
    for key in order:
        memory, array = held[key]
        raw = np.zeros(_image(array).nbytes, np.uint8)
        memory.copy_to_host(ctypes.c_void_p(raw.ctypes.data), raw.nbytes)
        view = np.ndarray(array.shape, array.dtype, raw.data, 0, array.strides)
        result.append(view.copy())
    return tuple(result)


def twin(cupy: Any) -> Any:
    """A stand-in for `polygen.machine.run` that also runs on the GPU and compares every array."""

    def both(ptx: str, launch: Launch, **options: Any) -> Report:
        report = run(ptx, launch, **options)
        if report.ok:
            for mine, real in zip(report.arrays, run_on_gpu(cupy, ptx, launch), strict=True):
                if mine.dtype.kind in "iub":
                    np.testing.assert_array_equal(mine, real)
                else:  # NaN equals NaN, minus zero equals zero
                    np.testing.assert_array_equal(mine.astype(np.float64), real.astype(np.float64))
        return report

    return both
