"""Two to four processes with Gloo: pipelines and layers cut in two, beside one process."""

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
    return distributed_ranks.start(2, folder, "pipelines", "graphs", "tensors", "examples", "dies")


def test_gradients_of_pipelines_are_those_of_one_process_bit_by_bit(found):
    for result in found["pipelines"]:
        for name in ("gpipe", "1f1b", "interleaved", "zero-bubble", "in pairs"):
            parameters, gradients, losses, others = result[name]
            assert (parameters, gradients, losses, others) == (8, True, True, True), name


def test_captured_steps_give_the_same_bits(found):
    """One capture to a pipeline, three replays of four steps, and one with other inputs."""
    for result in found["graphs"]:
        assert result["said"] == ["steps are not captured: CUDA graphs need tensors on a GPU"]
        for name in ("1f1b", "zero-bubble"):
            same, losses, apart, anew, unused = result[name]
            assert same and losses, name
            assert apart, "gradients of a step before are what they were"
            assert anew and unused, name
        assert result["counts"] == {"captures": 2, "replays": 8, "forgotten": 2}


def test_what_pipelines_refuse_is_refused_on_all_ranks(found):
    for rank, result in enumerate(found["pipelines"]):
        assert "rank 0 has gpipe" in result["disagree"] and "6 microbatches" in result["disagree"]
        assert "two works in one tick" in result["illegal"]
        assert f"stage {2 * rank} is None (it is at home on rank {rank})" in result["absent"]
        assert "17 rows for 6 microbatches" in result["rows"]


def test_when_a_rank_dies_the_other_says_so_and_keeps_its_gradients(found):
    first, second = found["dies"]
    assert second is None
    assert "the engine gives up on " in first["error"]  # whichever message it notices first
    assert "A rank has ended or is stuck" in first["error"]
    assert first["kept"]


def test_layers_cut_in_two_give_what_one_process_gives(found):
    """Whole numbers: column- and row-parallel layers, forward and backward, are exact."""
    placements = {"up.weight": "S(0)", "up.bias": "S(0)", "down.weight": "S(1)", "down.bias": "R"}
    for result in found["tensors"]:
        assert result["forward"]
        assert result["backward"] == {name: [at, True] for name, at in placements.items()}
        assert result["rows"] == ["S(0)", True] and result["part"]


def test_what_waits_for_a_sum_is_computed_of_the_sum(found):
    for result in found["tensors"]:
        assert result["linear"] == ["P(sum)", True]
        assert result["waits"] == ["R", True] and result["two dims"]


def test_what_only_adds_to_a_sum_is_added_once(found):
    """By rows, and with an odd number of them by one rank."""
    for result in found["tensors"]:
        assert result["once"] == ["R", True] and result["odd rows"]


def test_chunks_beside_communication_give_the_whole(found):
    for result in found["tensors"]:
        assert result["gathered"] == [True] * 3 and result["scattered"] == [True] * 6


def test_what_layers_cut_in_two_refuse(found):
    wanted = [
        "plain tensors beside DTensors",
        "operands on different meshes",
        "= 7 over 2 ranks",
        "6 rows for 4 chunks",
        "rows of the results are not made of rows of x alone",
        "12 rows for 10 ranks and chunks",
        "no parameter is called q. Parameters: x, w",
        "x has this rank's rows alone",
        "an operand needs a gradient",
    ]
    for result in found["tensors"]:
        for message, part in zip(result["refused"], wanted, strict=True):
            assert part in message


def test_the_example_gives_what_one_process_gives(found):
    for result in found["examples"]:
        layers, gradients = result["differences"]
        assert layers < 1e-12 and gradients == 0.0


@pytest.mark.parametrize("ranks", [3, 4])
def test_more_than_two_ranks(ranks, tmp_path):
    for result in distributed_ranks.start(ranks, tmp_path, "several")["several"]:
        assert result["sums"] == [True] * 6
        assert result["scattered"] == result["gathered"] == [True] * 12
        assert result.get("pipeline", ranks == 3)


def test_when_a_rank_of_a_layer_dies_the_other_says_so(tmp_path):
    first, second = distributed_ranks.start(2, tmp_path, "leaves")["leaves"]
    assert second is None
    for text in first["said"]:
        assert "the engine gives up on " in text and "A rank has ended or is stuck" in text
