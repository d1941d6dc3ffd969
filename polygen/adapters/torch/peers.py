"""Tensors that go from rank to rank beside kernels: into a peer's memory, or as messages.

A *round* is what ranks exchange in one call: every rank pushes one tensor to every other one, and
reads one of each; then all may gather what each has made of it.

1. Where the engine has symmetric memory (`torch.distributed._symmetric_memory`: GPUs of one host
   that reach each other's memory), a tensor is copied into its place at the peer's. Copy engines do
   that, on streams of their own, and take no multiprocessor from kernels.
2. Signals, kernels of the engine on words of that memory, say: *free*, a peer has read what it was
   sent in the round before; *there*, something has arrived; *made* and *taken*, likewise for what
   is gathered. A round begins with waiting for *free*, before its first kernel: what waits beside
   a kernel that fills the GPU waits for its end.
3. Elsewhere they are messages of the engine. That serves tests on CPUs.

Multicast of symmetric memory stays off. A signal that does not come within the time-out of the
process group ends the kernel that waits for it with an error of CUDA.
"""

from __future__ import annotations

import math
import os
import socket
import warnings
from typing import Any, Protocol

import torch
import torch.distributed as dist

from polygen.adapters.torch.engine import engine, patience

_FREE, _THERE, _MADE, _TAKEN = range(4)
_LINE = 512  # bytes: places begin at multiples of it
_known: dict[Any, Peers | None] = {}


class Peers(Protocol):
    """What one round needs of the engine."""

    ranks: int
    rank: int

    def begin(self, size: int) -> None:
        """A round of tensors of at most so many bytes begins."""

    def push(self, to: int, tensor: torch.Tensor) -> None:
        """Send a tensor without gaps, beside what is launched from now on; it must stay as it is
        until the round ends.
        """

    def arrived(self, source: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """What a rank has pushed here; what is launched from now on may read it, until `read`."""

    def read(self, source: int) -> None:
        """What a rank has pushed here is not needed any more."""

    def place(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory for what this rank makes, to be gathered."""

    def gather(self, own: torch.Tensor, whole: torch.Tensor) -> None:
        """Bring the `place` of every rank, by rank, into the rows of a tensor."""

    def end(self) -> None:
        """What is launched from now on may write what was pushed."""

    def abandon(self) -> None:
        """The round has failed, on all ranks alike: the next one owes nothing to it."""


def order(ranks: int, rank: int) -> list[tuple[int, int]]:
    """Per step of a round whom a rank sends to and whom it hears of: all meet, two at a time."""
    return [((rank + step) % ranks, (rank - step) % ranks) for step in range(1, ranks)]


def peers_of(group: dist.ProcessGroup | None, tensor: torch.Tensor) -> Peers | None:
    """How ranks of a group reach each other; None: by the engine's collectives alone.

    All ranks of the group call this at the same place of their program.
    """
    group = dist.group.WORLD if group is None else group
    key = (group, tensor.device)
    if key not in _known:
        if tensor.device.type == "cuda":
            _known[key] = _symmetric(group, tensor.device)
        else:
            _known[key] = Messages(group)
    return _known[key]


class Messages:
    """Peers that the engine sends messages to."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self._sending: list[Any] = []

    def _of_world(self, peer: int) -> int:
        return int(dist.get_global_rank(self._group, peer))

    def begin(self, size: int) -> None:
        """Nothing has to be made ready."""

    def push(self, to: int, tensor: torch.Tensor) -> None:
        """Send a tensor."""
        there = self._of_world(to)
        work = engine(lambda: dist.isend(tensor, there, group=self._group), f"rows for rank {to}")
        self._sending.append((work, tensor, to))

    def arrived(self, source: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Wait for a tensor."""
        found = torch.empty(shape, dtype=dtype)
        there = self._of_world(source)
        engine(lambda: dist.recv(found, there, group=self._group), f"rows of rank {source}")
        return found

    def read(self, source: int) -> None:
        """The sender has nothing to wait for."""

    def place(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Any memory."""
        return torch.empty(shape, dtype=dtype)

    def gather(self, own: torch.Tensor, whole: torch.Tensor) -> None:
        """By the engine's collective."""
        engine(
            lambda: dist.all_gather_into_tensor(whole, own, group=self._group), "rows of all ranks"
        )

    def end(self) -> None:
        """Wait until everything has left."""
        for work, _, to in self._sending:
            engine(work.wait, f"rows for rank {to}")
        self._sending.clear()

    def abandon(self) -> None:
        """Nothing is waited for."""
        self._sending.clear()


class Symmetric:
    """Peers whose memory this GPU reaches.

    Attributes:
        ranks: how many there are.
        rank: this one.
    """

    def __init__(self, group: Any, device: torch.device) -> None:
        self._group, self._device = group, device
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self._patience = patience(group, device)
        # One to a peer: a signal that waits for a multiprocessor holds up no copy to another peer.
        self._beside = [torch.cuda.Stream(device, priority=-1) for _ in range(self.ranks)]
        self._begun: list[torch.cuda.Stream] = []
        self._each = 0  # bytes of a place
        self._handle: Any = None
        self._rooms: list[Any] = []  # all there ever were: graphs that were captured have them

    def reserve(self, size: int) -> None:
        """Make room for tensors of so many bytes; all ranks do at the same time.

        Raises:
            RuntimeError: the engine cannot, or a graph is being captured.
        """
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"a round of {size} bytes is captured, and there is room for {self._each}: "
                "run it once before"
            )
        engine = _engine()
        each = -(-size // _LINE) * _LINE
        # A place for what each rank sends, and one for what this rank makes.
        size, name = (self.ranks + 1) * each, self._group.group_name
        room = engine.empty_strided_p2p((size,), (1,), torch.uint8, self._device, name)
        handle = engine.rendezvous(room)
        self._each, self._handle = each, handle
        self._rooms.append((room, handle))
        for peer in self._others():
            handle.put_signal(peer, _FREE, self._patience)
            handle.put_signal(peer, _TAKEN, self._patience)

    def _others(self) -> list[int]:
        return [peer for peer in range(self.ranks) if peer != self.rank]

    def _buffer(
        self, at: int, number: int, shape: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """A place in a rank's memory, as a tensor of this one."""
        offset = number * self._each // dtype.itemsize
        found: torch.Tensor = self._handle.get_buffer(at, shape, dtype, offset)
        return found

    def begin(self, size: int) -> None:
        """Wait until peers have read what they were sent in the round before."""
        if size > self._each:
            self.reserve(size)
        for peer in self._others():
            self._handle.wait_signal(peer, _FREE, self._patience)

    def push(self, to: int, tensor: torch.Tensor) -> None:
        """Copy a tensor into the peer's memory, when it is made."""
        there = self._buffer(to, self.rank, tuple(tensor.shape), tensor.dtype)
        with torch.cuda.stream(self._begin(to)):
            there.copy_(tensor)
            self._handle.put_signal(to, _THERE, self._patience)

    def arrived(self, source: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Wait, on the stream, until a rank's tensor is in this GPU's memory."""
        self._handle.wait_signal(source, _THERE, self._patience)
        return self._buffer(self.rank, source, shape, dtype)

    def read(self, source: int) -> None:
        """Tell a rank that its place is free."""
        self._handle.put_signal(source, _FREE, self._patience)

    def place(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The place of this rank, when all have taken what was there."""
        if math.prod(shape) * dtype.itemsize > self._each:
            raise RuntimeError("what is gathered is larger than what was pushed")
        for peer in self._others():
            self._handle.wait_signal(peer, _TAKEN, self._patience)
        return self._buffer(self.rank, self.ranks, shape, dtype)

    def gather(self, own: torch.Tensor, whole: torch.Tensor) -> None:
        """Copy what every rank has made from its memory."""
        rows = whole.chunk(self.ranks)
        for to, _ in order(self.ranks, self.rank):
            self._handle.put_signal(to, _MADE, self._patience)
        with torch.cuda.stream(self._begin(self.rank)):
            rows[self.rank].copy_(own)
        for _, source in order(self.ranks, self.rank):
            self._handle.wait_signal(source, _MADE, self._patience)
            rows[source].copy_(self._buffer(source, self.ranks, tuple(own.shape), own.dtype))
            self._handle.put_signal(source, _TAKEN, self._patience)

    def end(self) -> None:
        """What was pushed has left when the stream gets here."""
        for stream in self._begun:  # no others: while one is captured, the rest are not
            torch.cuda.current_stream(self._device).wait_stream(stream)
        self._begun.clear()

    def abandon(self) -> None:
        """The next round gets memory, and signals, of its own."""
        self.end()
        self._each = 0

    def _begin(self, peer: int) -> torch.cuda.Stream:
        """The stream beside kernels for a peer, which waits for what has been launched."""
        stream = self._beside[peer]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        self._begun.append(stream)
        return stream


def _engine() -> Any:
    """What the engine's own workspaces are made with.

    Raises:
        ImportError: it is not in this build.
    """
    from torch._C._distributed_c10d import _SymmetricMemory  # noqa: PLC0415

    return _SymmetricMemory


def _symmetric(group: Any, device: torch.device) -> Symmetric | None:
    """Symmetric memory, if all ranks have it; what speaks against it is said once."""
    ranks = dist.get_world_size(group)
    if ranks == 1:
        return None
    mine = (socket.gethostname(), str(torch.cuda.get_device_properties(device).uuid), device.index)
    said: list[Any] = [None] * ranks
    dist.all_gather_object(said, mine, group=group)
    why = ""
    if len({host for host, _, _ in said}) > 1:
        why = "ranks are on several hosts"
    elif len({gpu for _, gpu, _ in said}) < ranks:
        why = "ranks share a GPU"
    elif len(others := {at for *_, at in said} - {device.index}) == ranks - 1 and not all(
        torch.cuda.can_device_access_peer(device.index, at) for at in others
    ):
        why = "GPUs do not reach each other's memory"
    # Every rank has to know before the first of them waits for another one.
    why = _first_said(why, group, ranks)
    found = None
    if not why:
        os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
        try:
            found = Symmetric(group, device)
            found.reserve(_LINE)
        except (RuntimeError, ImportError, AttributeError) as error:
            why = str(error).partition("\n")[0]
        why = _first_said(why, group, ranks)
    if why:
        if dist.get_rank(group) == 0:
            warnings.warn(
                f"no symmetric memory ({why}): ranks exchange by the engine's collectives",
                stacklevel=2,
            )
        return None
    return found


def _first_said(why: str, group: Any, ranks: int) -> str:
    """What the first rank that has something to say says."""
    said: list[Any] = [None] * ranks
    dist.all_gather_object(said, why, group=group)
    return next(filter(None, said), "")
