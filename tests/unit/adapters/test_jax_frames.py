"""Call frames of XLA, made as XLA makes them: what a handler reads there, and what it launches."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from matrix import roles

import polygen as pg
from polygen.generated import content
from polygen.schedule.load import dumps
from polygen.schedule.model import Launches

pytest.importorskip("jax")
frames = pytest.importorskip("polygen.adapters.jax.frames")
running = pytest.importorskip("polygen.adapters.jax.running")

BF16 = np.dtype(ml_dtypes.bfloat16)
CODES = {name: code for code, name in frames.TYPES.items()}
STREAM, DEVICE = 77, 0
ASKED = frames.Call.stream, frames.Call.device


@dataclass
class Frame:
    """A call frame over NumPy arrays, with what it points to."""

    arguments: list[Any]
    results: list[Any]
    texts: dict[str, bytes]
    numbers: dict[str, tuple[float, ...]] = field(default_factory=dict)
    stage: int = 3
    held: list[Any] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        class Whole(ctypes.Structure):
            _fields_ = (
                ("frame", frames._Frame), ("results", frames._List),
                ("attributes", frames._Attributes),
            )  # fmt: skip

        frame = frames._Frame(
            ctypes.sizeof(frames._Frame), None, ctypes.pointer(self._api()), 0x5150, self.stage,
            self._arrays(self.arguments),
        )  # fmt: skip
        self.whole = Whole(frame, self._arrays(self.results), self._attributes())

    def pointer(self) -> Any:
        """What XLA gives a handler."""
        return ctypes.cast(ctypes.pointer(self.whole), ctypes.POINTER(frames._Frame))

    def _keep(self, value: Any) -> int:
        self.held.append(value)
        return ctypes.addressof(value)

    def _pointers(self, addresses: list[int]) -> Any:
        found = (ctypes.c_void_p * len(addresses))(*addresses)
        self.held.append(found)
        return ctypes.cast(found, ctypes.POINTER(ctypes.c_void_p))

    def _kinds(self, kinds: list[int]) -> Any:
        found = (ctypes.c_int * len(kinds))(*kinds)
        self.held.append(found)
        return ctypes.cast(found, ctypes.POINTER(ctypes.c_int))

    def _arrays(self, arrays: list[Any]) -> Any:
        made = []
        for array in arrays:
            dims = (ctypes.c_int64 * array.ndim)(*array.shape)
            self.held.append(dims)
            buffer = frames._Buffer(
                ctypes.sizeof(frames._Buffer), None, CODES[str(array.dtype)], array.ctypes.data,
                array.ndim, ctypes.cast(dims, ctypes.POINTER(ctypes.c_int64)),
            )  # fmt: skip
            made.append(self._keep(buffer))
        kinds = self._kinds([1] * len(made))
        return frames._List(
            ctypes.sizeof(frames._List), None, len(made), kinds, self._pointers(made)
        )

    def _span(self, text: bytes) -> int:
        held = ctypes.create_string_buffer(text, len(text))
        self.held.append(held)
        return self._keep(frames._Span(ctypes.addressof(held), len(text)))

    def _attributes(self) -> Any:
        names, kinds, values = [], [], []
        for name, text in self.texts.items():
            names.append(self._span(name.encode()))
            kinds.append(frames._STRING)
            values.append(self._span(text))
        for name, numbers in self.numbers.items():
            found = (ctypes.c_float * len(numbers))(*numbers)
            names.append(self._span(name.encode()))
            kinds.append(frames._ARRAY)
            values.append(self._keep(frames._Array(11, len(numbers), self._keep(found))))
        return frames._Attributes(
            ctypes.sizeof(frames._Attributes), None, len(names), self._kinds(kinds),
            self._pointers(names), self._pointers(values),
        )  # fmt: skip

    def _api(self) -> Any:
        def answer(value: int) -> Any:
            def ask(address: int) -> None:
                asked = frames._Asked.from_address(address)
                assert asked.context == 0x5150
                asked.answer = value

            return frames._QUESTION(ask)

        def fail(address: int) -> int:
            self.errors.append(frames._Failure.from_address(address).message.decode())
            return 0xE4404

        functions = {
            frames._STREAM_GET: answer(STREAM), frames._DEVICE_GET: answer(DEVICE),
            frames._ERROR_CREATE: frames._QUESTION(fail),
        }  # fmt: skip
        self.held += functions.values()
        made = frames._Api(ctypes.sizeof(frames._Api))
        for place, function in functions.items():
            made.functions[place] = ctypes.cast(function, ctypes.c_void_p).value
        return made


def buffer(shape, dtype, multiple=128):
    """An array that begins at a multiple of some bytes, as XLA's do."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = np.zeros(count + multiple, np.uint8)
    start = -room.ctypes.data % multiple
    return room[start : start + count].view(dtype).reshape(shape)


def test_a_workspace_is_a_result_like_others():
    x, y, room = buffer((3, 5), BF16), buffer((3,), np.int32), buffer((96,), np.uint8)
    given = Frame([x], [y, room], {"program": b"text"}, {"scalars": (0.5, 2.0)})
    seen = []
    handle = frames.handler(lambda call: seen.append((call, call.stream(), call.device())))
    assert handle(given.pointer()) is None and not given.errors
    ((call, stream, device),) = seen
    assert (stream, device) == (STREAM, DEVICE)
    assert call.arguments == (frames.Array(x.ctypes.data, (3, 5), "bfloat16"),)
    assert call.results == (
        frames.Array(y.ctypes.data, (3,), "int32"), frames.Array(room.ctypes.data, (96,), "uint8"),
    )  # fmt: skip
    assert call.texts == {"program": b"text"} and call.numbers == {"scalars": (0.5, 2.0)}


def test_other_stages_do_nothing_and_failures_are_errors_of_the_call():
    def fail(_):
        raise ValueError("it went wrong")

    assert frames.handler(fail)(Frame([], [], {}, stage=1).pointer()) is None
    given = Frame([], [], {})
    assert frames.handler(fail)(given.pointer()) == 0xE4404
    assert given.errors == ["ValueError: it went wrong"]


@pytest.fixture
def gpu(monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("cupy")
    from jax_on_a_stand_in import played

    with played(monkeypatch, "sm_90a") as made:
        for name, method in zip(("stream", "device"), ASKED, strict=True):
            monkeypatch.setattr(frames.Call, name, method)
        yield made


def numbers(*shapes):
    generator = np.random.default_rng(9)
    found = [buffer(shape, BF16) for shape in shapes]
    for array in found:
        array[...] = generator.integers(-2, 3, array.shape)
    return found


def test_operands_are_copied_into_xla_s_memory(gpu, monkeypatch, tmp_path):
    """Rows of 131 elements; copies begin at lines, and so does the memory that XLA gives."""
    path = tmp_path / "copies.toml"
    path.write_text(dumps(replace(roles(through="lines"), launch=Launches(realign=True))))
    monkeypatch.setenv("POLYGEN_SCHEDULE", str(path))
    program = pg.fuse(lambda x, w: x @ w.T, name="product").program("bf16[M,K]", "bf16[N,K]")
    (x, w), text = numbers((67, 131), (45, 131)), content(program)
    needed = running.workspace(text, (x.shape, w.shape))
    assert needed == (67 + 45) * 384
    y, room = buffer((67, 45), BF16), buffer((needed,), np.uint8)
    given = Frame([x, w], [y, room], {"program": text.encode()})
    assert frames.handler(running._on_gpu)(given.pointer()) is None, given.errors
    assert gpu.entries == ["pg_product_realign", "pg_product"]
    assert np.array_equal(y, (x.astype(np.float32) @ w.astype(np.float32).T).astype(BF16))
    copies = room.view(BF16).reshape(67 + 45, 192)
    assert np.array_equal(copies[:67, :131], x) and np.array_equal(copies[67:, :131], w)


@pytest.mark.parametrize(
    ("room", "what"),
    [
        (None, "XLA gives the call 0 bytes of workspace, and its kernel takes {needed}"),
        (-4, "XLA gives the call {less} bytes of workspace, and its kernel takes {needed}"),
        (0, ""),
        (64, ""),
    ],
    ids=["none", "small", "as long", "longer"],
)
def test_a_workspace_has_to_be_as_long_as_the_kernel_takes(room, what, gpu):
    program = pg.fuse(lambda x, w: (x @ w.T).sum(axis=1), name="rows").program(
        "bf16[M,K]", "bf16[N,K]"
    )
    (x, w), text = numbers((70, 32), (90, 32)), content(program)
    needed = running.workspace(text, (x.shape, w.shape))
    rooms = [] if room is None else [buffer((needed + room,), np.uint8)]
    y = buffer((70,), np.float32)
    given = Frame([x, w], [y, *rooms], {"program": text.encode()})
    failed = frames.handler(running._on_gpu)(given.pointer())
    if what:
        (message,) = given.errors
        assert failed and what.format(needed=needed, less=needed - 4) in message
        assert "POLYGEN_ARCH=sm_90a" in message and not gpu.entries
        return
    assert failed is None, given.errors
    assert gpu.rooms == [(rooms[0].ctypes.data, needed)]
    assert np.array_equal(y, (x.astype(np.float32) @ w.astype(np.float32).T).sum(1))


def test_a_kernel_without_folds_takes_no_workspace(gpu):
    program = pg.fuse(lambda x, w, a: a * (x @ w.T), name="scaled").program(
        "bf16[M,K]", "bf16[N,K]", "f32"
    )
    (x, w), text = numbers((70, 32), (96, 32)), content(program)
    assert running.workspace(text, (x.shape, w.shape)) == 0
    y = buffer((70, 96), BF16)
    given = Frame([x, w], [y], {"program": text.encode()}, {"scalars": (2.0,)})
    assert frames.handler(running._on_gpu)(given.pointer()) is None, given.errors
    assert np.array_equal(y, (2 * (x.astype(np.float32) @ w.astype(np.float32).T)).astype(BF16))
