"""What the measurements share: the interleaved protocol, a killable child process, records.

Nothing here knows what is measured. PyTorch is imported by the functions that use a GPU.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import multiprocessing
import os
import random
import subprocess
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

REPEATS = 40
_FLUSHED_BYTES = 256 << 20


# --- the protocol ---------------------------------------------------------------------------------
def interleaved(
    contenders: dict[str, Callable[[], Any]], repeats: int = REPEATS
) -> dict[str, list[float]]:
    """Microseconds of every launch of every contender, in random order, with a cold L2 cache."""
    import torch

    flush = torch.empty(_FLUSHED_BYTES, dtype=torch.uint8, device="cuda")
    for call in contenders.values():
        for _ in range(5):
            call()
    pairs: dict[str, list[Any]] = {name: [] for name in contenders}
    names = list(contenders)
    order = random.Random(0)
    for _ in range(repeats):
        order.shuffle(names)
        for name in names:
            flush.zero_()
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            contenders[name]()
            stop.record()
            pairs[name].append((start, stop))
    torch.cuda.synchronize()
    return {n: [a.elapsed_time(b) * 1e3 for a, b in found] for n, found in pairs.items()}


def captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """The replay of a CUDA graph that holds one call; the call has been made before."""
    import torch

    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = call()  # the graph writes to it

    def replay(kept: Any = kept) -> None:
        graph.replay()

    return replay


def geometric_mean(values: Sequence[float]) -> float | None:
    """None of no values."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


# --- a child process that may hang ----------------------------------------------------------------
Stage = Callable[[str, float], None]  # (what comes now, seconds it may take)
Handler = Callable[[Any, Stage], Any]


class Lost(Exception):
    """The child hung, died or failed, and is gone.

    Attributes:
        stage: what it was doing.
        why: the reason, for people.
    """

    def __init__(self, stage: str, why: str) -> None:
        super().__init__(f"{stage}: {why}")
        self.stage, self.why = stage, why


class Watched:
    """A child process that does one job at a time, and is killed when a stage takes too long.

    A kernel that never ends blocks every later call of its process, so that only the end of the
    process helps. The next `ask` starts a new one.

    Args:
        make: called in the child, gives the function that does jobs; a picklable name.
        start_limit: seconds `make` may take.
        limit: seconds until a job names its first stage.
        log: where what the child prints is added; None: it prints where the parent does.
    """

    def __init__(
        self,
        make: Callable[[], Handler],
        start_limit: float = 240,
        limit: float = 60,
        log: Path | None = None,
    ) -> None:
        self._make, self._start_limit, self._limit, self._log = make, start_limit, limit, log
        self._process: Any = None
        self._connection: Any = None
        self._ready = False

    def start(self) -> None:
        """Start the child without waiting for it, if there is none."""
        if self._process is not None:
            return
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(self._make, theirs, self._log))
        self._process.start()
        theirs.close()
        self._ready = False

    def ask(self, job: Any) -> Any:
        """Do one job.

        Raises:
            Lost: the child hung, died or failed.
        """
        self.start()
        if not self._ready:  # a large job would block in the pipe until the child reads
            self._receive("start", self._start_limit)
            self._ready = True
        try:
            self._connection.send(job)
        except OSError:
            raise self._lost("start", "the process has ended") from None
        return self._receive("start", self._limit)

    def _receive(self, stage: str, limit: float) -> Any:
        while True:
            if not self._connection.poll(limit):
                raise self._lost(stage, f"no answer within {limit:g} s")
            try:
                kind, *values = self._connection.recv()
            except (EOFError, OSError):
                self._process.join(5)
                why = f"the process ended with {self._process.exitcode}"
                raise self._lost(stage, why) from None
            if kind == "stage":
                stage, limit = values
            elif kind == "failed":
                raise self._lost(stage, values[0])
            else:
                return values[0]

    def _lost(self, stage: str, why: str) -> Lost:
        self.stop()
        return Lost(stage, why)

    def stop(self) -> None:
        """Kill the child, if there is one."""
        if self._process is None:
            return
        self._process.kill()
        self._process.join(30)
        self._connection.close()
        self._process = self._connection = None


def _serve(make: Callable[[], Handler], connection: Any, log: Path | None) -> None:
    """The child: jobs in, stages and results out, until the parent goes or a job fails."""
    if log is not None:
        with log.open("ab") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
    try:
        handle = make()
        connection.send(("done", None))
        while True:
            job = connection.recv()
            result = handle(job, lambda name, limit: connection.send(("stage", name, limit)))
            connection.send(("done", result))
    except EOFError:
        return
    except Exception as error:  # a CUDA error leaves the process useless: the parent makes another
        traceback.print_exc()
        with contextlib.suppress(OSError):
            connection.send(("failed", one_line(error)))


def one_line(error: BaseException, most: int = 300) -> str:
    """An exception as one short line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:most]


# --- records --------------------------------------------------------------------------------------
def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write JSON so that the file is whole whenever the process is killed."""
    made = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    made.write_text(json.dumps(record, indent=1) + "\n")
    made.replace(path)


def smi(fields: str) -> dict[str, str]:
    """What nvidia-smi says of the first card; empty without one."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    values = done.stdout.partition("\n")[0].split(",")
    return dict(zip(fields.split(","), (value.strip() for value in values), strict=False))


def sources_digest(root: Path, folders: Iterable[str] = ("polygen", "schedules")) -> str:
    """Twelve hexadecimal digits of everything that decides what code is generated."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", ".j2", ".toml"):
                digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]
