"""Two processes with Gloo: pipelines and layers cut in two, beside one process."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
distributed = pytest.importorskip("torch.distributed")

import distributed_ranks  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (distributed.is_available() and distributed.is_gloo_available()), reason="no Gloo"
    ),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return distributed_ranks.start(2, folder, "pipelines", "dies")


def test_gradients_of_pipelines_are_those_of_one_process_bit_by_bit(found):
    for result in found["pipelines"]:
        for name in ("gpipe", "1f1b", "interleaved", "zero-bubble", "in pairs"):
            parameters, gradients, losses, others = result[name]
            assert (parameters, gradients, losses, others) == (8, True, True, True), name


def test_what_pipelines_refuse_is_refused_on_all_ranks(found):
    for rank, result in enumerate(found["pipelines"]):
        assert "rank 0 has gpipe" in result["disagree"] and "6 microbatches" in result["disagree"]
        assert "two works in one slot" in result["illegal"]
        assert f"stage {2 * rank} is None (it is at home on rank {rank})" in result["absent"]
        assert "17 rows for 6 microbatches" in result["rows"]


def test_when_a_rank_dies_the_other_says_so_and_keeps_its_gradients(found):
    first, second = found["dies"]
    assert second is None
    assert "the engine gives up on " in first["error"]  # whichever message it notices first
    assert "A rank has ended or is stuck" in first["error"]
    assert first["kept"]
