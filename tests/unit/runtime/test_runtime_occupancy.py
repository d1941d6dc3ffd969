"""How many blocks run at once is what the driver says."""

from __future__ import annotations

import ctypes

import pytest

from polygen.emit.source import Launch
from polygen.errors import ToolchainMissing
from polygen.runtime import occupancy


class Library:
    """Stands in for libcuda: 132 multiprocessors, and as many clusters as told."""

    def __init__(self, clusters: int, status: int = 0) -> None:
        self.clusters, self.status, self.config = clusters, status, None

    def cuDeviceGetAttribute(self, found, attribute, device):
        assert (attribute, device) == (16, 3)
        found._obj.value = 132
        return self.status

    def cuOccupancyMaxActiveClusters(self, found, function, config):
        self.config = config._obj
        assert function.value == 777
        found._obj.value = self.clusters
        return self.status


def blocks(monkeypatch, library, cluster, each=1):
    monkeypatch.setattr(occupancy, "_library", lambda: library)
    launch = Launch(
        "M", "N", 128, 128, 8, 384, 200_000, 132 * each, cluster=cluster, per_multiprocessor=each
    )
    return occupancy.resident_blocks(777, launch, 3)


def test_one_block_per_multiprocessor_without_clusters(monkeypatch):
    assert blocks(monkeypatch, Library(0), (1, 1)) == 132


def test_several_blocks_per_multiprocessor(monkeypatch):
    assert blocks(monkeypatch, Library(0), (1, 1), each=2) == 264
    assert blocks(monkeypatch, Library(60), (2, 2), each=2) == 240  # the driver counts them all


def test_whole_clusters_as_the_driver_counts_them(monkeypatch):
    library = Library(30)
    assert blocks(monkeypatch, library, (2, 2)) == 120
    config = library.config
    assert list(config.grid) == [4, 1, 1] and list(config.block) == [384, 1, 1]
    assert config.shared_bytes == 200_000 and config.count == 0


def test_the_record_has_the_layout_of_the_header():
    """CUlaunchConfig of cuda.h: seven 32-bit numbers, then pointers at multiples of eight."""
    config = occupancy.LaunchConfig
    assert (config.shared_bytes.offset, config.stream.offset) == (24, 32)
    assert (config.attributes.offset, config.count.offset) == (40, 48)
    assert ctypes.sizeof(config) == 56


@pytest.mark.parametrize("library", [Library(0), Library(8, status=1)])
def test_a_cluster_that_does_not_fit_is_refused(monkeypatch, library):
    with pytest.raises(ToolchainMissing, match="device 3 holds no cluster of 4 blocks"):
        blocks(monkeypatch, library, (4, 1))
