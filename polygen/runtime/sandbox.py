"""A process of its own for work on input that nobody vouches for, with limits of time and memory.

1. A fresh Python imports the function, sets its limits, says that it is ready, and runs one job.
2. It may take `memory` bytes more than the imports did, write no files, and leave no core dump.
   When its time is over it is killed.
3. The job goes in as a pickle. What comes back is JSON and arrays without Python objects: whatever
   happens in there, nothing that it sends is executed here.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import resource
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

START_LIMIT = 240.0  # seconds until the imports are done
_READY = b"R"
_COMMAND = "from polygen.runtime.sandbox import main; main()"

Answer = tuple[dict[str, Any], tuple[np.ndarray[Any, Any], ...]]


class Stopped(Exception):
    """The process met a limit, or died.

    Attributes:
        limit: "time", "memory" or "" when it died of something else.
    """

    def __init__(self, why: str, limit: str = "") -> None:
        super().__init__(why)
        self.limit = limit


def ask(target: str, job: Any, *, seconds: float, memory: int) -> Answer:
    """Run a function in a process of its own.

    Args:
        target: ``module:function``; it takes the job and returns plain values and arrays.
        job: anything that can be pickled.
        seconds: it may take, after its imports.
        memory: bytes it may take, after its imports.

    Returns:
        What the function returned.

    Raises:
        Stopped: a limit was met, or the process died.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", _COMMAND],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
    )  # fmt: skip
    try:
        given = pickle.dumps((target, memory, job))
        threading.Thread(target=_send, args=(process, given), daemon=True).start()
        if _read(process, START_LIMIT, 1) != _READY:
            raise Stopped(f"the process ended with {process.wait(60)} before its work")
        data = _read(process, seconds)
        if not data:
            raise Stopped(f"the process ended with {process.wait(60)}")
        return _unpacked(data)
    finally:
        process.kill()
        process.wait(60)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def _send(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(data)
        process.stdin.close()
    except OSError:
        return  # it has died; the reader says so


def _read(process: subprocess.Popen[bytes], seconds: float, most: int = -1) -> bytes:
    """What the process says until it ends, or its first bytes."""
    assert process.stdout is not None
    number, end = process.stdout.fileno(), time.monotonic() + seconds
    parts: list[bytes] = []
    with selectors.DefaultSelector() as selector:
        selector.register(number, selectors.EVENT_READ)
        while most < 0 or len(parts) < most:
            left = end - time.monotonic()
            if left <= 0 or not selector.select(left):
                raise Stopped(f"it was stopped after {seconds:g} s", "time")
            part = os.read(number, 1 if most > 0 else 1 << 20)
            if not part:
                break
            parts.append(part)
    return b"".join(parts)


def _unpacked(data: bytes) -> Answer:
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        said = json.loads(bytes(stored["said"]).decode())
        kinds = said.pop("arrays")
        arrays = tuple(
            np.frombuffer(stored[f"a{number}"].tobytes(), _dtype(name)).reshape(shape)
            for number, (name, shape) in enumerate(kinds)
        )
    if limit := said.pop("limit", ""):
        raise Stopped(f"it needs more {limit} than it may take", limit)
    return said, arrays


def _dtype(name: str) -> np.dtype[Any]:
    import ml_dtypes  # noqa: PLC0415 (only who asks needs it)

    return np.dtype(getattr(ml_dtypes, name, None) or name)


# --- in the process ------------------------------------------------------------------------------
def main() -> None:
    """Read a job, do it within its limits, and say what came of it."""
    out = os.dup(1)
    os.dup2(2, 1)  # what else is printed goes nowhere
    target, memory, job = pickle.load(sys.stdin.buffer)
    module, _, name = target.partition(":")
    function = getattr(import_module(module), name)
    _limit(memory)
    os.write(out, _READY)
    said: Mapping[str, Any]
    try:
        said, arrays = function(job)
    except MemoryError:
        said, arrays = {"limit": "memory"}, ()
    kinds = [(array.dtype.name, array.shape) for array in arrays]
    text = json.dumps({**said, "arrays": kinds}).encode()
    entries = {
        f"a{number}": np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        for number, array in enumerate(arrays)
    }
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, said=np.frombuffer(text, np.uint8), **entries)
    with os.fdopen(out, "wb") as file:
        file.write(stream.getbuffer())


def _limit(memory: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + memory
    for what, value in (
        (resource.RLIMIT_AS, most),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (value, value))
