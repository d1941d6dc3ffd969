"""Devices: look-up, spelling, features, and the relations between their numbers."""

import pytest

from polygen.hardware.device import common_facts, device, devices


@pytest.mark.parametrize("text", ["sm_90a", "90a", "sm90a", "SM_90A", "compute_90a", " sm_90a "])
def test_spellings(text):
    assert device(text).name == "sm_90a"


def test_dotted_spelling_and_identity():
    assert device("8.0") is device("sm_80")
    assert device(device("sm_80")) is device("sm_80")


def test_features_decide():
    assert device("sm_90a").has("wgmma") and not device("sm_90").has("wgmma")
    assert device("sm_90").has("tma") and not device("sm_89").has("tma")
    assert device("sm_89").has("mma_sync_fp8") and not device("sm_86").has("mma_sync_fp8")


def test_a100_numbers():
    found = device("sm_80")
    assert found.shared_per_block_optin == 163 * 1024
    assert found.shared_per_multiprocessor == 164 * 1024
    assert (found.multiprocessors, found.warps_per_multiprocessor) == (108, 64)
    assert (found.grid_x, found.grid_y, found.grid_z) == (2**31 - 1, 65535, 65535)
    assert "white paper" in found.source("multiprocessors")


@pytest.mark.parametrize("found", devices(), ids=str)
def test_numbers_fit_together(found):
    optin = found.shared_per_multiprocessor - found.shared_reserved_per_block
    assert found.shared_per_block_optin == optin
    assert found.max_threads_per_block <= found.warps_per_multiprocessor * found.warp_size
    assert len(found.sources) == len({fact for fact, _ in found.sources}) >= 15
    assert all(source for _, source in found.sources)
    assert found.schedule_families and found.compile_target == found.name


def test_common_facts():
    assert common_facts()["shared_banks"] == 32
