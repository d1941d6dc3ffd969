"""Kernels of rows: compiled anywhere, sent to the process that measures; and small helpers."""

from __future__ import annotations

import pickle

import pytest

from polygen.bench import card, compiling, provenance, worker
from polygen.bench.figures import NAMES
from polygen.bench.peers import ABOUT, PEERS
from polygen.bench.rows import Row
from polygen.bench.source import Job
from polygen.errors import BenchError
from polygen.runtime.child import Watched


def test_a_kernel_survives_the_way_from_process_to_process():
    row = Row("bias_relu", 256, 256, 64)
    made = compiling.compiled(row, "sm_90a")
    assert made["about"]["registers"] > 0 and isinstance(made["kernel"], bytes)
    kernel = compiling.revived(made["kernel"])
    assert kernel.schedule.name == made["about"]["schedule"]
    assert compiling.revived((row, "sm_90a")).source == kernel.source


def test_padded_rows_and_other_sums_compile():
    padded = compiling.compile_kernel(Row("bias_gelu", 256, 256, 64, pad=1), "sm_80")
    assert {t.alignment for t in padded.program.inputs if len(t.dims) == 2} == {2}
    half = compiling.compile_kernel(Row("mm", 256, 256, 64, "f16", "f16"), "sm_80")
    assert half.program.contractions[0].dtype.name == "f16"


@pytest.mark.parametrize(("dtype", "result"), [("tf32", "f32"), ("e4m3", "bf16"), ("s8", "f32")])
def test_rows_of_other_types_compile(dtype, result):
    kernel = compiling.compile_kernel(Row("mm", 256, 256, 128, dtype), "sm_90a")
    assert [str(t.dtype) for t in kernel.program.outputs] == [result]
    assert [str(t.dtype) for t in kernel.program.inputs] == [dtype, dtype]


def test_what_cannot_be_compiled_says_why():
    found = compiling.compiled(Row("mm", 64, 64, 64), "sm_1")
    assert found["error"].startswith("UnknownTarget: unknown architecture")


def test_jobs_can_be_sent_and_the_child_is_named():
    job = Job(Row("mm", 1, 2, 3), b"", ("separate",), {"inductor": "no"})
    assert pickle.loads(pickle.dumps(job)) == job
    assert Watched(worker.gpu)  # by name, and without PyTorch here


def test_every_library_has_a_name_and_a_description():
    assert set(PEERS) == set(NAMES) == set(ABOUT)


def test_samples_of_the_card_are_summarised():
    found = card.summarised([(1700, 500.04, 50), (1755, 510.0, 51), (1400, 600.0, 52)])
    assert found == {
        "sm_mhz": 1700, "sm_mhz_range": [1400, 1755], "watts": 510.0, "celsius": 51, "samples": 3,
    }  # fmt: skip
    assert card.summarised([]) == {} and card.Sampler().take() == {}


def test_digests_follow_the_sources_and_commands_hide_folders(tmp_path):
    (tmp_path / "a.py").write_text("1")
    one = provenance.sources_digest([tmp_path])
    (tmp_path / "b.txt").write_text("2")
    assert provenance.sources_digest([tmp_path]) == one
    (tmp_path / "a.py").write_text("2")
    assert provenance.sources_digest([tmp_path]) != one and len(one) == 12
    assert len(provenance.sources_digest()) == 12
    command = "polygen bench --out /home/me/r.json --suite llm"
    assert provenance.without_folders(command) == "polygen bench --out r.json --suite llm"


@pytest.mark.slow
def test_rows_of_attention_compile_as_chains_for_their_sizes():
    few = compiling.compile_kernel(Row("attention", 4, 8192, 128, batch=8), "sm_90a")
    assert "_p" in few.schedule.name and few.schedule.tile.part
    capped = compiling.compile_kernel(Row("attention_alibi", 256, 256, 64, batch=256), "sm_90a")
    assert capped.passes.plan.scores is not None


def test_libraries_take_the_attention_that_they_have():
    from polygen.bench.operations import fixed_forms, operation
    from polygen.bench.peers.attention import factor

    assert factor(operation("attention")) == factor(operation("attention_causal")) == 0.1
    for name in ("attention_soft_cap", "attention_alibi"):
        inner = operation(name).inner
        assert inner is not None and not inner.attention
    with pytest.raises(BenchError, match="none of its"):
        fixed_forms(operation("attention"))
    with pytest.raises(BenchError, match="no number"):
        factor(operation("mm"))
