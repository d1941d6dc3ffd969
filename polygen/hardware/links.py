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
    """

    name: str
    bandwidth: float
    latency: float

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
    return Link(name, float(take(facts, "bandwidth", where)), float(take(facts, "latency", where)))
