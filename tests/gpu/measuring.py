"""What the measurements share: the interleaved protocol and records.

Nothing here knows what is measured. PyTorch is imported by the functions that use a GPU.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import subprocess
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
