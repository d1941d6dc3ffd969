"""Memory of graphs: who has the same, when it is given back, and how the driver is told."""

from __future__ import annotations

import ctypes

import pytest

from polygen.errors import LaunchError, ToolchainMissing
from polygen.runtime import graph_memory as module
from polygen.runtime.graph_memory import Calls, Capture, GraphMemory, Semaphore


class Cuda:
    """Stands in for the driver: memory, captures by stream, graphs that are still there."""

    def __init__(self) -> None:
        self.taken: dict[int, int] = {}
        self.captures = {7: Capture(1, 0x100), 8: Capture(1, 0x100)}
        self.graphs = {0x100, 0x200}
        self.retains = True

    def take(self, count):
        address = 0x1000 * (1 + max((at // 0x1000 for at in self.taken), default=0))
        self.taken[address] = count
        return address

    def retain(self, graph):
        if not self.retains:
            raise LaunchError("no object")
        return lambda: graph not in self.graphs

    @property
    def memory(self) -> GraphMemory:
        return GraphMemory(Calls(self.captures.__getitem__, self.take, self.taken.pop, self.retain))


def test_calls_on_one_stream_of_a_capture_share_memory():
    cuda = Cuda()
    memory = cuda.memory
    first = memory.reserve(1000, 7)
    assert memory.reserve(1000, 7) == first and memory.reserve(10, 7) == first
    assert cuda.taken == {first: 1000}


def test_what_may_run_at_once_shares_none():
    cuda = Cuda()
    memory = cuda.memory
    places = {memory.reserve(1000, 7), memory.reserve(1000, 8)}  # streams of one capture
    cuda.captures[7] = Capture(2, 0x200)  # the next one, on the same stream
    places.add(memory.reserve(1000, 7))
    assert len(places) == 3 and cuda.taken == dict.fromkeys(places, 1000)


def test_more_is_other_memory():
    cuda = Cuda()
    memory = cuda.memory
    small, large = memory.reserve(1000, 7), memory.reserve(2000, 7)
    assert cuda.taken == {small: 1000, large: 2000} and memory.reserve(1500, 7) == large


def test_memory_goes_when_the_graph_is_gone():
    cuda = Cuda()
    memory = cuda.memory
    memory.reserve(1000, 7), memory.reserve(1000, 8)
    cuda.captures[7] = Capture(2, 0x200)
    memory.reserve(500, 7)
    assert sorted(cuda.taken.values()) == [500, 1000, 1000]
    cuda.graphs.remove(0x100)
    memory.reserve(500, 7)
    assert list(cuda.taken.values()) == [500] and len(memory.rooms) == 1


def test_what_no_graph_holds_is_given_back_at_once():
    cuda = Cuda()
    memory, cuda.retains = cuda.memory, False
    with pytest.raises(LaunchError):
        memory.reserve(1000, 7)
    assert not cuda.taken and not memory.rooms


def test_a_semaphore_is_posted_by_its_address_alone():
    one, other = Semaphore(), Semaphore()
    assert not one.posted()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(one.post)(one.address)
    assert one.posted() and one.posted() and not other.posted()


class Library:
    """Stands in for `libcuda`: remembers what is called, each with a result of its own."""

    def __init__(self, **results: int) -> None:
        self.called: list[tuple[object, ...]] = []
        self._results = results

    def __getattr__(self, name):
        def call(*values):
            self.called.append((name, *values))
            if name == "cuStreamGetCaptureInfo_v2":
                ctypes.c_int.from_address(values[1]).value = 1
                ctypes.c_uint64.from_address(values[2]).value = 5
                ctypes.c_void_p.from_address(values[3]).value = 0x300
            if name == "cuMemAlloc_v2":
                ctypes.c_uint64.from_address(values[0]).value = 0x7000
            if name == "cuUserObjectCreate":
                ctypes.c_void_p.from_address(values[0]).value = 0x40
            return self._results.get(name, 0)

        return call


@pytest.fixture
def library(monkeypatch):
    def give(**results):
        made = Library(**results)
        monkeypatch.setattr(module, "_library", lambda: made)
        return made

    return give


def test_the_driver_s_memory_is_taken_beside_the_capture(library):
    made = library()
    memory = GraphMemory(module.graph_memory.calls)
    assert memory.reserve(4096, 9) == 0x7000
    names = [call[0] for call in made.called]
    assert names == [
        "cuStreamGetCaptureInfo_v2",
        "cuThreadExchangeStreamCaptureMode",
        "cuMemAlloc_v2",
        "cuThreadExchangeStreamCaptureMode",
        "cuUserObjectCreate",
        "cuGraphRetainUserObject",
    ]
    (*_, create, retain) = made.called
    semaphore, post, references, flags = create[2:]
    assert (references, flags) == (1, 1)
    assert (retain[1], retain[2].value, *retain[3:]) == (0x300, 0x40, 1, 1)
    assert memory.rooms[0].owner == (5, 9) and not memory.rooms[0].gone()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(post)(semaphore)  # as CUDA does
    library()
    assert memory.rooms[0].gone()


@pytest.mark.parametrize(
    ("call", "what", "frees"),
    [
        ("cuStreamGetCaptureInfo_v2", "to say what is captured", False),
        ("cuMemAlloc_v2", "4096 bytes", False),
        ("cuUserObjectCreate", "a user object", True),
        ("cuGraphRetainUserObject", "a user object of the graph", True),
    ],
)
def test_what_the_driver_refuses_is_said(library, call, what, frees):
    made = library(**{call: 2})
    memory = GraphMemory(module.graph_memory.calls)
    with pytest.raises(LaunchError, match=rf"refuses {what} \(CUresult 2\)") as error:
        memory.reserve(4096, 9)
    assert "kernel.plan(w=w)" in str(error.value) and not memory.rooms
    assert (("cuMemFree_v2", 0x7000) in made.called) == frees


def test_without_a_driver_a_capture_says_so(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    module._library.cache_clear()
    with pytest.raises(ToolchainMissing, match="keeps no memory for graphs"):
        module._library()
