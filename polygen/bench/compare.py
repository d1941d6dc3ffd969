"""How a record agrees with other measurements of the same libraries.

The other table is JSON: a list of ``{M, N, K, dtype, op, eager_us, lt_us, inductor_us}`` with
dtypes as PyTorch names them. A row that both have is compared contender by contender; the other
figures are of launches without a graph, so that rows timed here by graphs are counted apart.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from polygen.bench.figures import NAMES, is_measured, microseconds
from polygen.bench.record import Record
from polygen.bench.statistics import geometric_mean
from polygen.errors import BenchError

_FIELDS = {"eager": "eager_us", "cublaslt": "lt_us", "inductor": "inductor_us"}
_TYPES = {"bfloat16": "bf16", "float16": "f16"}


@dataclass(frozen=True, slots=True)
class Pair:
    """One library on one row, here and there, in microseconds."""

    key: str
    peer: str
    here: float
    there: float
    graph: bool  # whether the time here is of a graph

    @property
    def ratio(self) -> float:
        """Here over there."""
        return self.here / self.there


def agreement(record: Record, path: Path) -> list[Pair]:
    """The rows that both have.

    Args:
        record: of this harness.
        path: of the other table.

    Raises:
        BenchError: the table cannot be read.
    """
    try:
        there = {
            (e["op"], e["M"], e["N"], e["K"], _TYPES.get(e["dtype"], e["dtype"])): e
            for e in json.loads(path.read_text(encoding="utf-8"))
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchError(
            "the table of other measurements cannot be read", where=str(path),
            why=f"{type(error).__name__}: {error}",
            nearest="A list of {M, N, K, dtype, op, eager_us, lt_us, inductor_us}",
        ) from None  # fmt: skip
    found = []
    for line in record["rows"]:
        other = there.get((line["op"], line["M"], line["N"], line["K"], line["dtype"]))
        if other is None or not is_measured(line) or line["acc"] != "f32" or line["pad"]:
            continue
        for peer, name in _FIELDS.items():
            here = microseconds(line, peer)
            if peer == "eager" and here is None:  # older records have the kernels in place only
                here = microseconds(line, "separate")
            if here is not None and other.get(name):
                found.append(Pair(line["key"], peer, here, other[name], line["graph"]))
    return found


def text(pairs: list[Pair]) -> str:
    """The pairs as lines, with means per library; here over there."""
    lines = [f"{'row':44} {'library':10} {'here':>9} {'there':>9} {'ratio':>6}"]
    for pair in pairs:
        mark = "*" if pair.graph else ""
        lines.append(
            f"{pair.key:44} {NAMES[pair.peer]:10} {pair.here:9.1f} {pair.there:9.1f} "
            f"{pair.ratio:6.3f}{mark}"
        )
    lines.append("* timed here by CUDA graphs, there by launches")
    for graph, words in ((False, "launches"), (True, "graphs")):
        for peer in _FIELDS:
            ratios = [p.ratio for p in pairs if p.peer == peer and p.graph == graph]
            if ratios:
                mean = geometric_mean(ratios)
                lines.append(
                    f"{NAMES[peer]}, {words}: geometric mean {mean:.3f}, least {min(ratios):.3f}, "
                    f"largest {max(ratios):.3f}, {len(ratios)} rows"
                )
    return "\n".join(lines)
