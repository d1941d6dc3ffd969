"""Runs a machine launch on a real GPU, through the driver's own compiler for the same PTX.

What the GPU returned can be recorded in small files, and compared later where there is no GPU.
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from polygen.machine import Launch, Report, Surface, TensorMap, Texture, run
from polygen.machine.arguments import memory_of
from polygen.machine.parse import parse, type_bytes
from polygen.machine.run import arrays_of

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
    "tf32": 11,
}  # CU_TENSOR_MAP_DATA_TYPE_*
MAP_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}

Allowed = Sequence[Any] | None  # per array of a launch: see `run_within`
ANY_NAN = "any NaN"  # all bits agree, but for which NaN it is


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
    steps, reach = [], array.shape[-1] * array.itemsize
    for extent, step in zip(reversed(array.shape[:-1]), reversed(array.strides[:-1]), strict=True):
        # One index alone has no next one; the driver still wants a step that could lead to it.
        steps.append(step if extent > 1 else -(-reach // 16) * 16)
        reach += (extent - 1) * steps[-1]
    strides = (ctypes.c_uint64 * rank)(*steps)
    apart = one.every or (1,) * rank
    spanned = [side * each for side, each in zip(one.box, apart, strict=True)]
    box = (ctypes.c_uint32 * rank)(*reversed(spanned))
    every = (ctypes.c_uint32 * rank)(*reversed(apart))
    driver = ctypes.CDLL("libcuda.so.1")
    kind = MAP_TYPES[one.kind or array.dtype.name]
    status = driver.cuTensorMapEncodeTiled(
        ctypes.c_void_p(address), kind, rank, ctypes.c_void_p(pointer),
        dims, strides, box, every, 0, MAP_SWIZZLES[one.swizzle], 0, int(one.nan_fill),
    )  # fmt: skip
    assert status == 0, f"cuTensorMapEncodeTiled: {status}"
    return np.frombuffer(ctypes.string_at(address, 128), "V128")


class _Image:
    """A texture or surface object, with the array behind it."""

    LAYERED, SURFACE, CUBE, GATHER = 1, 2, 4, 8  # cudaArray*
    ADDRESSING: ClassVar = {"wrap": 0, "clamp": 1, "mirror": 2, "border": 3}  # cudaAddressMode*

    def __init__(self, cupy: Any, image: Texture | Surface, ptx: str) -> None:
        texture, runtime = cupy.cuda.texture, cupy.cuda.runtime
        array, channels = np.ascontiguousarray(image.array), image.channels
        bits = [8 * array.itemsize] * channels + [0] * (4 - channels)
        kinds = {"i": 0, "u": 1, "f": 2}  # cudaChannelFormatKind*
        channel = texture.ChannelFormatDescriptor(*bits, kinds[array.dtype.kind])
        shape = array.shape[:-1] if channels > 1 else array.shape
        self.rows = (*shape[:-1], shape[-1] * channels)
        self.array, self.linear = array, len(shape) == 1 and re.search(r"tex\.1d\.\S+\.s32\s", ptx)
        if self.linear:
            self.memory = cupy.asarray(array)
            held = texture.ResourceDescriptor(
                runtime.cudaResourceTypeLinear, arr=self.memory, chDesc=channel,
                sizeInBytes=array.nbytes,
            )  # fmt: skip
        else:
            cube = isinstance(image, Texture) and image.cube
            flags = self.LAYERED * image.layered + self.CUBE * cube
            flags += self.SURFACE * isinstance(image, Surface) + self.GATHER * ("tld4" in ptx)
            sides = list(shape[::-1])
            self.memory = texture.CUDAarray(channel, *sides, *[0] * (3 - len(sides)), flags)
            self.memory.copy_from(array.reshape(self.rows))
            held = texture.ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=self.memory)
        if isinstance(image, Surface):
            self.object = texture.SurfaceObject(held)
            return
        self.object = texture.TextureObject(held, texture.TextureDescriptor(
            (self.ADDRESSING[image.addressing],) * 3, image.filter == "linear",
            int(image.as_floats), normalizedCoords=int(image.normalised),
        ))  # fmt: skip

    @property
    def handle(self) -> np.uint64:
        return np.uint64(self.object.ptr)

    def after(self) -> np.ndarray:
        """The array as the launch has left it."""
        if self.linear:
            return self.memory.get()
        found = np.zeros(self.rows, self.array.dtype)
        self.memory.copy_to(found)
        return found.reshape(self.array.shape)


def _checked(name: str, *arguments: Any) -> None:
    status = getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments)
    assert status == 0, f"{name}: {status}"


class _Words(ctypes.Structure):
    """A struct of the driver: named words of 8 bytes, or pairs of 4."""

    def __init__(self, **words: int) -> None:
        super().__init__()
        for name, value in words.items():
            setattr(self, name, value)


class _ArrayDescriptor(_Words):
    """``CUDA_ARRAY3D_DESCRIPTOR``."""

    _fields_: ClassVar = [
        *[(name, ctypes.c_size_t) for name in ("width", "height", "depth")],
        *[(name, ctypes.c_uint) for name in ("format", "channels", "flags")],
    ]


_END = ("x", "y", "z", "lod", "kind", "host", "device", "array", "reserved", "pitch", "height")


class _Copy(_Words):
    """``CUDA_MEMCPY3D``."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in (*(f"{side}_{part}" for side in ("src", "dst") for part in _END),
                     "width", "height", "depth")
    ]  # fmt: skip


class _Lines:
    """A texture of layers of one axis, which CuPy's classes cannot make."""

    FORMATS: ClassVar = {
        "uint8": 1, "uint16": 2, "uint32": 3, "int8": 8, "int16": 9, "int32": 10, "float16": 16,
        "float32": 32,
    }  # fmt: skip
    HOST, ARRAY = 1, 3  # CU_MEMORYTYPE_*

    def __init__(self, image: Texture) -> None:
        self.array = np.ascontiguousarray(image.array)
        layers, width = self.array.shape[:2]
        form = self.FORMATS[self.array.dtype.name]
        made = _ArrayDescriptor(
            width=width, depth=layers, format=form, channels=image.channels, flags=_Image.LAYERED
        )
        self.memory = ctypes.c_void_p()
        _checked("cuArray3DCreate_v2", ctypes.byref(self.memory), ctypes.byref(made))
        row = self.array.nbytes // layers
        self.span = {"width": row, "height": 1, "depth": layers}
        host = self._host("src", self.array)
        there = {"dst_kind": self.ARRAY, "dst_array": self.memory.value}
        _checked("cuMemcpy3D_v2", ctypes.byref(_Copy(**host, **there, **self.span)))
        resource = (ctypes.c_uint64 * 18)(0, self.memory.value)  # an array
        sampler = (ctypes.c_uint32 * 32)(
            *[_Image.ADDRESSING[image.addressing]] * 3, image.filter == "linear",
            (not image.as_floats) + 2 * image.normalised,
        )  # fmt: skip
        self.object = ctypes.c_uint64()
        _checked("cuTexObjectCreate", ctypes.byref(self.object), resource, sampler, None)

    def _host(self, side: str, array: np.ndarray) -> dict[str, int]:
        pitch = array.nbytes // array.shape[0]
        names = {"kind": self.HOST, "host": array.ctypes.data, "pitch": pitch, "height": 1}
        return {f"{side}_{name}": value for name, value in names.items()}

    @property
    def handle(self) -> np.uint64:
        return np.uint64(self.object.value)

    def after(self) -> np.ndarray:
        """The array as the launch has left it."""
        found = np.zeros_like(self.array)
        host = self._host("dst", found)
        there = {"src_kind": self.ARRAY, "src_array": self.memory.value}
        _checked("cuMemcpy3D_v2", ctypes.byref(_Copy(**host, **there, **self.span)))
        return found


def _placed(cupy: Any, image: Texture | Surface, ptx: str) -> _Image | _Lines:
    axes = image.array.ndim - (image.channels > 1) - image.layered
    if image.layered and axes == 1 and isinstance(image, Texture):
        return _Lines(image)
    return _Image(cupy, image, ptx)


def run_on_gpu(cupy: Any, ptx: str, launch: Launch) -> tuple[np.ndarray, ...]:
    """Launch on the current GPU; the arrays after the run, as `Report.arrays` has them."""
    kernels = parse(ptx).kernels
    kernel = kernels[launch.entry] if launch.entry else next(iter(kernels.values()))
    module = cupy.cuda.function.Module()
    module.load(ptx.encode() + b"\0")
    function = module.get_function(kernel.name)
    cupy.cuda.driver.funcSetAttribute(function.ptr, MAX_DYNAMIC_SHARED, launch.shared_bytes)
    held: dict[int, tuple[Any, np.ndarray]] = {}
    images: dict[int, _Image | _Lines] = {}
    arguments, order = [], []
    for parameter, value in zip(kernel.parameters, launch.arguments, strict=True):
        if isinstance(value, Texture | Surface):
            images[len(order)] = _placed(cupy, value, ptx)
            arguments.append(images[len(order)].handle)
            order.append(0)
            continue
        array = value.memory if isinstance(value, TensorMap) else value
        if isinstance(array, np.ndarray):
            if id(array) not in held:
                raw = _image(array)
                memory = cupy.cuda.alloc(raw.nbytes)
                memory.copy_from_host(ctypes.c_void_p(raw.ctypes.data), raw.nbytes)
                held[id(array)] = memory, array
            pointer = held[id(array)][0].ptr
            order.append(id(array))
            is_map = isinstance(value, TensorMap)
            arguments.append(
                _encode(value, pointer + value.start) if is_map else np.uint64(pointer)
            )
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
    for place, key in enumerate(order):
        if place in images:
            result.append(images[place].after())
            continue
        memory, array = held[key]
        raw = np.zeros(_image(array).nbytes, np.uint8)
        memory.copy_to_host(ctypes.c_void_p(raw.ctypes.data), raw.nbytes)
        view = np.ndarray(array.shape, array.dtype, raw.data, 0, array.strides)
        result.append(view.copy())
    return tuple(result)


def identical(mine: np.ndarray, real: np.ndarray) -> bool:
    """Whether two arrays hold the same bits."""
    return mine.dtype == real.dtype and mine.shape == real.shape and _bits(mine) == _bits(real)


def _bits(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def run_within(ptx: str, launch: Launch, allowed: Allowed, **options: Any) -> Report:
    """`polygen.machine.run` for data whose sums are not exact.

    A test that calls it compares the machine with float64 itself; on a GPU, and with a recording of
    one, the machine's arrays may differ from the GPU's by twice what each may be off by.

    Args:
        ptx: as for `run`.
        launch: as for `run`.
        allowed: per array of the launch, what its elements may be off by (an array of the same
            shape or a number), where NaN agrees with any NaN; None where all bits must agree;
            `ANY_NAN` where all but those of NaN must.
        options: as for `run`.
    """
    del allowed
    return run(ptx, launch, **options)


def difference(mine: np.ndarray, real: np.ndarray, allowed: Any) -> str:
    """Where two arrays differ by more than allowed, in words; "" when they do not."""
    if mine.dtype != real.dtype or mine.shape != real.shape:
        return f"{mine.dtype} {mine.shape} here, {real.dtype} {real.shape} on the GPU"
    width = f"u{mine.itemsize}"
    here, there = (np.ascontiguousarray(one).view(width).ravel() for one in (mine, real))
    if allowed is None or isinstance(allowed, str):
        wrong = here != there
        if allowed == ANY_NAN:
            wrong &= ~(np.isnan(mine) & np.isnan(real)).ravel()
    else:
        a, b = (one.astype(np.float64).ravel() for one in (mine, real))
        with np.errstate(invalid="ignore"):
            near = np.abs(a - b) <= 2 * np.broadcast_to(allowed, mine.shape).ravel()
        wrong = ~((a == b) | (np.isnan(a) & np.isnan(b)) | near)
    if not wrong.any():
        return ""
    shown = [
        f"element {at}: {mine.ravel()[at]} ({here[at]:#x}) here, "
        f"{real.ravel()[at]} ({there[at]:#x}) on the GPU"
        for at in np.flatnonzero(wrong)[:8]
    ]
    return f"{wrong.sum()} of {wrong.size} elements differ; " + "; ".join(shown)


def twin(cupy: Any, notes: list[Note], wrong: list[str]) -> Any:
    """A stand-in for `polygen.machine.run` that also runs on the GPU and compares every array.

    Args:
        cupy: the module.
        notes: gets one entry per launch that was compared, for `Recording`.
        wrong: gets one line per array that differs: a test goes on, so that all its launches are
            recorded.

    Returns:
        A function that takes the arguments of `run`, or of `run_within`.
    """

    def both(ptx: str, launch: Launch, allowed: Allowed = None, **options: Any) -> Report:
        report = run(ptx, launch, **options)
        if report.ok:
            real = run_on_gpu(cupy, ptx, launch)
            limits = allowed or (None,) * len(real)
            exact = [
                mine if one is None else None
                for mine, one in zip(report.arrays, limits, strict=True)
            ]
            notes.append(Note(digest(launch), real, given(launch), tuple(exact)))
            for number, (mine, theirs, limit) in enumerate(
                zip(report.arrays, real, limits, strict=True)
            ):
                differs = difference(mine, theirs, limit)
                if differs:
                    wrong.append(f"launch {len(notes)}, array {number}: {differs}")
        return report

    return both


# --- recordings ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Note:
    """What the GPU returned for one launch; of arrays equal to `known` ones a digest will do."""

    digest: str
    arrays: tuple[np.ndarray, ...]
    before: tuple[np.ndarray, ...]
    known: tuple[np.ndarray | None, ...] = ()


def exact(arrays: Sequence[np.ndarray], limits: Sequence[Any]) -> tuple[np.ndarray | None, ...]:
    """The arrays whose bits all have to agree; None for the others."""
    pairs = zip(arrays, limits, strict=True)
    return tuple(one if limit is None or isinstance(limit, str) else None for one, limit in pairs)


def given(launch: Launch) -> tuple[np.ndarray, ...]:
    """The arrays of a launch before it, as `Report.arrays` has them after it."""
    return tuple(array.copy() for array in arrays_of(launch))


def digest(launch: Launch) -> str:
    """A name for the launch and its inputs: a test that changed does not meet an old recording."""
    text = hashlib.sha256(repr((launch.grid, launch.block, launch.shared_bytes)).encode())
    for one in launch.arguments:
        if isinstance(one, TensorMap):
            text.update(repr((one.box, one.swizzle, one.nan_fill)).encode())
            text.update(one.kind.encode())
            text.update(repr(one.every).encode() if one.every else b"")
            if one.whole is not None:
                text.update(f"{one.start} {one.array.shape} {one.array.strides}".encode())
        if isinstance(one, Texture | Surface):
            rest = [getattr(one, field.name) for field in dataclasses.fields(one)[1:]]
            text.update(f"{type(one).__name__} {rest}".encode())
        array = memory_of(one)
        if isinstance(array, np.ndarray):
            text.update(f"{array.dtype} {array.shape} {array.strides}".encode())
            text.update(_bits(array))
        else:
            text.update(repr(array).encode())
    return text.hexdigest()[:16]


class Recording:
    """Files of what a GPU returned: one ``.npz`` per test function, each distinct output once.

    ``index`` holds JSON: for every case, its launches; for every launch its digest and, per array,
    the name of the entry with its bytes ("" when the kernel left the array as it was). The name is
    a digest of the bytes. Where the machine gave the same bits when it was recorded, and has to,
    there is a name without an entry.
    """

    def __init__(self) -> None:
        self.files: dict[str, dict[str, list[Note]]] = {}

    def add(self, file: str, case: str, notes: list[Note]) -> None:
        """Keep the launches of a case."""
        self.files.setdefault(file, {})[case] = notes

    def write(self, folder: Path, device: str) -> None:
        """Write all files; earlier ones of the same names are replaced."""
        folder.mkdir(parents=True, exist_ok=True)
        for file, cases in self.files.items():
            entries: dict[str, np.ndarray] = {}
            index: dict[str, list[Any]] = {}
            for case, notes in cases.items():
                index[case] = [[note.digest, self._names(note, entries)] for note in notes]
            text = json.dumps({"device": device, "cases": index}, indent=0)
            np.savez_compressed(
                folder / f"{file}.npz", allow_pickle=False, index=np.array(text), **entries
            )

    @staticmethod
    def _names(note: Note, entries: dict[str, np.ndarray]) -> list[str]:
        names = []
        known = note.known or (None,) * len(note.arrays)
        for after, before, mine in zip(note.arrays, note.before, known, strict=True):
            names.append("" if identical(after, before) else named(after))
            if names[-1] and (mine is None or not identical(after, mine)):
                entries[names[-1]] = np.frombuffer(_bits(after), np.uint8)
        return names


def named(array: np.ndarray) -> str:
    """The name of an array's bytes in a recording."""
    return "a" + hashlib.sha256(_bits(array)).hexdigest()[:16]


def replayed(path: Path, case: str) -> Any:
    """A stand-in for `polygen.machine.run` that compares with a recording, launch by launch.

    Returns:
        The function, and a list that holds the launches it has not met yet.
    """
    with np.load(path, allow_pickle=False) as stored:
        launches = list(json.loads(str(stored["index"]))["cases"].get(case, []))
        held = set(stored.files)
        entries = {name: stored[name] for _, names in launches for name in names if name in held}

    def compare(ptx: str, launch: Launch, allowed: Allowed = None, **options: Any) -> Report:
        report = run(ptx, launch, **options)
        if report.ok:
            assert launches, f"{path.name} has no recording of {case}: record again"
            wanted, names = launches.pop(0)
            assert wanted == digest(launch), f"{case} has changed: record again"
            limits = allowed or (None,) * len(names)
            for name, after, before, limit in zip(
                names, report.arrays, given(launch), limits, strict=True
            ):
                real = before
                if name and name not in entries:
                    alike = name == named(after)
                    assert alike, (
                        f"{case} differs from what the GPU returned, of which a digest is kept"
                    )
                    continue
                if name:
                    real = np.frombuffer(entries[name].tobytes(), after.dtype).reshape(after.shape)
                differs = difference(after, real, limit)
                assert not differs, f"{case} differs from what the GPU returned: {differs}"
        return report

    return compare, launches
