"""What synchronises a kernel is kept on disk, and proved again wherever it comes from."""

from dataclasses import replace

import pytest
from matrix import case, small

from polygen import knobs, pipeline
from polygen.errors import PolygenError, VerifyError
from polygen.poly.derive_syncs import derive
from polygen.poly.tile_tree import without
from polygen.schedule.load import load_schedule, schedules_folder

ROLES = load_schedule(schedules_folder() / "sm_90a" / "cooperative_64x128x64.toml")
KERNELS = {"warps": ("sm_80", small()), "roles": ("sm_90a", ROLES)}


@pytest.fixture(params=KERNELS)
def made(request, monkeypatch):
    """Makes a kernel that nothing in memory knows."""
    arch, schedule = KERNELS[request.param]

    def make():
        pipeline.synchronised.cache_clear()
        return case("derived", "nt", "bf16", "bias", arch=arch, schedule=schedule).kernel()

    yield make
    pipeline.synchronised.cache_clear()


def test_another_process_derives_nothing_and_emits_the_same(made, tmp_path, monkeypatch):
    monkeypatch.setenv("POLYGEN_CACHE_DIR", str(tmp_path))
    with knobs.scope(cache=True):
        first = made()
        monkeypatch.setattr(pipeline, "derive", None)  # calling it fails
        assert made().source == first.source


def test_a_damaged_file_is_derived_again(made, tmp_path, monkeypatch):
    monkeypatch.setenv("POLYGEN_CACHE_DIR", str(tmp_path))
    with knobs.scope(cache=True):
        first = made()
        for path in tmp_path.rglob("*.bin"):
            path.write_bytes(path.read_bytes()[:-9] + b"damaged!!")
        assert made().source == first.source


@pytest.mark.parametrize("number", range(3))
def test_a_derivation_with_a_leaf_missing_is_refused(made, monkeypatch, number):
    """Whoever kept it: `generate` does not emit what the proofs do not accept."""

    def broken(program):
        found = derive(program)
        lost = [leaf.name for leaf in found.leaves if leaf.kind in ("wait", "bar", "retire")]
        return replace(
            found,
            tree=without(found.tree, lost[number % len(lost)]),
            leaves=tuple(x for x in found.leaves if x.name != lost[number % len(lost)]),
        )

    make = made
    monkeypatch.setattr(pipeline, "derive", broken)
    with knobs.scope(cache=False), pytest.raises(PolygenError) as caught:
        make()
    assert isinstance(caught.value, VerifyError) or "dependence" in str(caught.value)
