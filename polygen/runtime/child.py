"""A child process that does jobs on a GPU and may hang or crash: it is killed, and named.

A kernel that never ends blocks every later call of its process, and a CUDA error leaves it useless,
so that only the end of the process helps. Measuring and tuning have their work done by a child.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
        try:
            if not self._ready:  # a large job would block in the pipe until the child reads
                self._receive("start", self._start_limit)
                self._ready = True
            try:
                self._connection.send(job)
            except OSError:
                raise self._lost("start", "the process has ended") from None
            return self._receive("start", self._limit)
        except KeyboardInterrupt:
            self.stop()  # else its answer would be taken for that of the next job
            raise

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
