"""Links between GPUs, read from ``data/links.toml``, each fact under its source."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from polygen.errors import HardwareDataError
from polygen.hardware.data_file import read, take

FILE = "links.toml"


@dataclass(frozen=True, slots=True)
class Link:
    """One direction between two GPUs.

    Attributes:
        name: as in the data.
        bandwidth: bytes a second.
        latency: seconds before the first byte arrives.
        beside: the part of a transfer's time that kernels which fill the GPU do not lose by it.
        chunk: seconds that every further chunk of a transfer beside kernels costs the ranks.
    """

    name: str
    bandwidth: float
    latency: float
    beside: float = 1.0
    chunk: float = 0.0

    def seconds(self, size: float) -> float:
        """How long a message of so many bytes takes on a free link."""
        return self.latency + size / self.bandwidth


@functools.cache
def link(name: str) -> Link:
    """A link by its name.

    Raises:
        HardwareDataError: there is none, or a fact is missing.
    """
    tables = read(FILE)
    if name not in tables:
        raise HardwareDataError(f"no link is called {name!r}", where=f"hardware/data/{FILE}",
                                nearest=f"Links: {', '.join(tables)}")  # fmt: skip
    facts = {key: value for source in tables[name].values() for key, value in source.items()}
    where = f"hardware/data/{FILE}, {name}"
    bandwidth, latency = (float(take(facts, key, where)) for key in ("bandwidth", "latency"))
    beside, chunk = float(facts.get("beside", 1.0)), float(facts.get("chunk", 0.0))
    return Link(name, bandwidth, latency, beside, chunk)
