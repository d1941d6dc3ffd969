"""Rounds through peers' memory: the protocol of signals, played by threads in one memory.

A stream is its thread's program order here, which is stricter than a GPU's streams are.
"""

from __future__ import annotations

import contextlib
import threading
import types

import pytest

torch = pytest.importorskip("torch")

from polygen.adapters.torch import peers  # noqa: E402
from polygen.adapters.torch.peers import Symmetric, order  # noqa: E402

PATIENCE = 120  # seconds: guards against hangs alone


class Engine:
    """Symmetric memory of threads; `lost` names a signal that never arrives."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.barrier = ranks, threading.Barrier(ranks, timeout=PATIENCE)
        self.changed, self.pads, self.rooms = threading.Condition(), {}, {}
        self.local = threading.local()

    def empty_strided_p2p(self, size, stride, dtype, device, name):
        return torch.zeros(size, dtype=dtype)

    def rendezvous(self, room):
        number = self.local.count = getattr(self.local, "count", 0) + 1
        self.rooms[number, self.local.rank] = room
        self.barrier.wait()
        return Handle(self, number, self.local.rank)


class Handle:
    def __init__(self, engine: Engine, number: int, rank: int) -> None:
        self.engine, self.number, self.rank = engine, number, rank

    def get_buffer(self, rank, shape, dtype, offset):
        room = self.engine.rooms[self.number, rank].view(dtype)
        count = torch.Size(shape).numel()
        assert offset + count <= room.numel(), "past the end"
        return room[offset : offset + count].view(shape)

    def _change(self, key, wanted: bool) -> None:
        engine = self.engine
        with engine.changed:
            # As the engine's kernels do: a signal is put where the one before has been waited for.
            engine.changed.wait_for(lambda: engine.pads.get(key, False) != wanted, PATIENCE)
            assert engine.pads.get(key, False) != wanted, f"nobody answers {key}"
            engine.pads[key] = wanted
            engine.changed.notify_all()

    def put_signal(self, to, channel, patience):
        self._change((self.number, self.rank, to, channel), True)

    def wait_signal(self, source, channel, patience):
        self._change((self.number, source, self.rank, channel), False)


class Stream:
    def __init__(self, *_, **__) -> None: ...

    def wait_stream(self, other) -> None: ...


@pytest.fixture
def engine(monkeypatch):
    def make(ranks: int) -> Engine:
        found = Engine(ranks)
        monkeypatch.setattr(peers, "_engine", lambda: found)
        return found

    monkeypatch.setattr(peers, "patience", lambda *_: 0)
    monkeypatch.setattr(
        peers, "dist",
        types.SimpleNamespace(get_world_size=lambda g: g.ranks, get_rank=lambda g: g.rank),
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return make


def _rounds(engine: Engine, rank: int, rows: tuple[int, ...], fails: int = -1) -> None:
    """Rounds of tensors of so many rows; that of number `fails` is given up on all ranks."""
    engine.local.rank = rank
    ranks = engine.ranks
    group = types.SimpleNamespace(ranks=ranks, rank=rank, group_name="all")
    own = Symmetric(group, torch.device("cpu"))
    for number, count in enumerate(rows):
        dtype = (torch.float32, torch.float64, torch.bfloat16)[number % 3]

        def sent(source: int, to: int, number=number, count=count, dtype=dtype):
            return torch.full((count, 3), number + 10 * source + to, dtype=dtype)

        own.begin(sent(0, 0).nbytes)
        for to, _ in order(ranks, rank):
            own.push(to, sent(rank, to))
        if number == fails:
            own.abandon()
            engine.barrier.wait()
            continue
        total = sent(rank, rank)
        for _, source in order(ranks, rank):
            part = own.arrived(source, (count, 3), dtype)
            assert torch.equal(part, sent(source, rank)), (number, source)
            total = total + part
            own.read(source)
        if number % 2:
            place = own.place((count, 3), dtype)
            place.copy_(total)
            whole = torch.empty(count * ranks, 3, dtype=dtype)
            own.gather(place, whole)
            for at, found in enumerate(whole.chunk(ranks)):
                wanted = sum(sent(source, at) for source in range(ranks))
                assert torch.equal(found, wanted), (number, at)
        own.end()


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(("rows", "fails"), [((2, 2, 2, 2, 2, 2), -1), ((1, 300, 7, 700, 700), -1),
                                             ((5, 5, 5, 5), 1)])  # fmt: skip
def test_rounds_bring_what_was_sent(engine, ranks, rows, fails):
    shared, errors = engine(ranks), []

    def run(rank: int) -> None:
        try:
            _rounds(shared, rank, rows, fails)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
    assert not errors
    assert not any(thread.is_alive() for thread in threads)


def test_everybody_meets_everybody_and_no_two_the_same_at_once():
    for ranks in (2, 3, 4, 8):
        for step in range(ranks - 1):
            pairs = {(rank, *order(ranks, rank)[step]) for rank in range(ranks)}
            assert len({to for _, to, _ in pairs}) == len({of for _, _, of in pairs}) == ranks
            assert all(order(ranks, to)[step][1] == rank for rank, to, _ in pairs)
        assert {to for to, _ in order(ranks, 0)} == set(range(1, ranks))


def test_a_round_that_needs_more_room_is_not_captured(engine, monkeypatch):
    shared = engine(1)
    shared.local.rank = 0
    group = types.SimpleNamespace(ranks=1, rank=0, group_name="all")
    own = Symmetric(group, torch.device("cpu"))
    own.begin(100)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    own.begin(512)
    with pytest.raises(RuntimeError, match=r"a round of 513 bytes is captured.*room for 512"):
        own.begin(513)
