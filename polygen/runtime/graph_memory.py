"""Memory that belongs to a graph while a stream captures it, and goes when the graph does.

1. Memory that the driver gives in stream order would become two nodes of the graph, which every
   replay runs: microseconds, and kernels that no longer begin while the one before ends. So memory
   is taken beside the capture, and the graph is told to hold on to it: it retains a user object.
   On an H200 a graph that has one takes 1.3 us longer to replay (13.2 for 11.8).
2. Whoever destroys the last graph that has the object, or copies and instances of it, has CUDA call
   a function, from a thread that may not call CUDA. That function is `sem_post` of the C library;
   memory whose semaphore was posted is given back when a graph asks for some again.
3. Calls that are captured on one stream run one behind the other, as they do without a graph: one
   has the memory of the other again, if that is enough.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from polygen.errors import LaunchError, ToolchainMissing

_RELAXED = 2  # cuda.h: CU_STREAM_CAPTURE_MODE_RELAXED: allocations are no part of a capture
_UNSYNCHRONISED = 1  # CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, the only one there is
_MOVE = 1  # CU_GRAPH_USER_OBJECT_MOVE: the graph has the only reference
_SEMAPHORE_BYTES = 64  # more than a `sem_t` has


@dataclass(frozen=True, slots=True)
class Capture:
    """What a stream captures.

    Attributes:
        number: of the capture, which no other of the process has.
        graph: ``CUgraph``.
    """

    number: int
    graph: int


@dataclass(frozen=True, slots=True)
class Calls:
    """What is asked of CUDA and of the C library.

    Attributes:
        capture: stream -> what it captures.
        take: bytes -> address, no part of a capture.
        give: address: give memory back.
        retain: graph -> what says whether the graph is gone.
    """

    capture: Callable[[int], Capture]
    take: Callable[[int], int]
    give: Callable[[int], object]
    retain: Callable[[int], Callable[[], bool]]


@dataclass(slots=True)
class _Room:
    """Some memory of a graph: where it is, how much, of which capture and stream."""

    address: int
    count: int
    owner: tuple[int, int]
    gone: Callable[[], bool]


@dataclass(slots=True)
class GraphMemory:
    """The memory of all graphs that were captured and are still there.

    Attributes:
        calls: what is asked.
        rooms: memory that graphs have.
    """

    calls: Calls
    rooms: list[_Room] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reserve(self, count: int, stream: int) -> int:
        """Memory of the graph that a stream captures.

        Args:
            count: bytes.
            stream: ``CUstream``, which captures a graph.

        Returns:
            The address, a multiple of a line of the cache. What is captured on the stream later
            may get the same.

        Raises:
            ToolchainMissing: there is no driver, or one that does not know user objects.
            LaunchError: the driver refuses, as where there is no memory.
        """
        with self._lock:
            self._give_back()
            capture = self.calls.capture(stream)
            owner = capture.number, stream
            for room in self.rooms:
                if room.owner == owner and room.count >= count:
                    return room.address
            address = self.calls.take(count)
            try:
                gone = self.calls.retain(capture.graph)
            except BaseException:
                self.calls.give(address)
                raise
            self.rooms.append(_Room(address, count, owner, gone))
            return address

    def _give_back(self) -> None:
        """What graphs had that are gone."""
        kept = []
        for room in self.rooms:
            if room.gone():
                self.calls.give(room.address)
            else:
                kept.append(room)
        self.rooms = kept


# --- by the driver -------------------------------------------------------------------------------
def _checked(code: int, what: str) -> None:
    if code:
        raise LaunchError(
            f"the driver refuses {what} (CUresult {code})",
            where="the workspace of a kernel, while a graph is captured",
            nearest="Free memory before the capture, or align weights once: kernel.plan(w=w)",
        )


@functools.cache
def _library() -> Any:
    """The CUDA driver.

    Raises:
        ToolchainMissing: there is none, or it is older than user objects of graphs.
    """
    try:
        library = ctypes.CDLL("libcuda.so.1")
        address, number = ctypes.c_void_p, ctypes.c_uint
        for name, types in (
            ("cuStreamGetCaptureInfo_v2", (address,) * 6),
            ("cuThreadExchangeStreamCaptureMode", (address,)),
            ("cuMemAlloc_v2", (address, ctypes.c_size_t)),
            ("cuMemFree_v2", (ctypes.c_uint64,)),
            ("cuUserObjectCreate", (address, address, address, number, number)),
            ("cuUserObjectRelease", (address, number)),
            ("cuGraphRetainUserObject", (address, address, number, number)),
        ):
            function = getattr(library, name)
            function.argtypes, function.restype = types, ctypes.c_int
    except (OSError, AttributeError) as reason:
        raise ToolchainMissing(
            "the CUDA driver keeps no memory for graphs",
            why=str(reason),
            nearest="Update the driver to CUDA 12.0 or newer, or call without capturing a graph",
        ) from reason
    return library


def _capture(stream: int) -> Capture:
    status, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
    code = _library().cuStreamGetCaptureInfo_v2(
        stream, ctypes.addressof(status), ctypes.addressof(number), ctypes.addressof(graph), None,
        None,
    )  # fmt: skip
    _checked(code, "to say what is captured")
    return Capture(number.value, graph.value or 0)


@contextlib.contextmanager
def beside_captures() -> Iterator[None]:
    """What this thread asks for is no part of a capture, and does not break one."""
    mode, library = ctypes.c_int(_RELAXED), _library()
    library.cuThreadExchangeStreamCaptureMode(ctypes.addressof(mode))
    try:
        yield
    finally:
        library.cuThreadExchangeStreamCaptureMode(ctypes.addressof(mode))


def _take(count: int) -> int:
    address = ctypes.c_uint64()
    with beside_captures():
        code = _library().cuMemAlloc_v2(ctypes.addressof(address), count)
    _checked(code, f"{count} bytes")
    return address.value


def _give(address: int) -> None:
    with beside_captures():
        _library().cuMemFree_v2(address)


def _retain(graph: int) -> Callable[[], bool]:
    made, library, semaphore = ctypes.c_void_p(), _library(), Semaphore()
    code = library.cuUserObjectCreate(
        ctypes.addressof(made), semaphore.address, semaphore.post, 1, _UNSYNCHRONISED
    )
    _checked(code, "a user object")
    code = library.cuGraphRetainUserObject(graph, made, 1, _MOVE)
    if code:  # its memory goes with the reference, as it would with the graph
        library.cuUserObjectRelease(made, 1)
    _checked(code, "a user object of the graph")
    return semaphore.posted


class Semaphore:
    """One of the C library, which anybody may post who knows its address, at any time.

    Its memory is never given back: who posts it may do so when Python has ended.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.calloc.restype = ctypes.c_void_p
        self._library.calloc.argtypes = (ctypes.c_size_t, ctypes.c_size_t)
        self.address: int = self._library.calloc(1, _SEMAPHORE_BYTES)
        self._library.sem_init(ctypes.c_void_p(self.address), 0, 0)
        self._was = False

    @property
    def post(self) -> int:
        """The address of the function that posts it, of its address."""
        return ctypes.cast(self._library.sem_post, ctypes.c_void_p).value or 0

    def posted(self) -> bool:
        """Whether it was posted."""
        self._was = self._was or not self._library.sem_trywait(ctypes.c_void_p(self.address))
        return self._was


graph_memory = GraphMemory(Calls(_capture, _take, _give, _retain))
