"""Kernels that run one after another, on the PTX machine."""

from __future__ import annotations

import pytest
from alone_samples import ALONE
from sequence_samples import SAMPLES, compiled, expected, operands, require_close
from split_samples import SPLIT

EVERY = SAMPLES | ALONE | SPLIT


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", EVERY)
def test_results(name: str, arch: str) -> None:
    sample = EVERY[name]
    kernels, given = compiled(sample, arch), operands(sample)
    assert len(kernels.kernels) == sample.kernels
    done = kernels.emulation(*given)
    assert done.report.ok, done.report
    results = done.results if isinstance(done.results, tuple) else (done.results,)
    wanted = expected(sample, kernels.program, given)
    for found, (value, allowed) in zip(results, wanted, strict=True):
        require_close(found, value, allowed)


def test_a_check_is_of_every_kernel() -> None:
    kernels = compiled(SAMPLES["graph convolution"], "sm_80")
    report = kernels.check({"N": 72})
    assert report.ok, report
    assert {name.partition(":")[0] for proof in report.proofs for name in [proof.subject]} == {
        "sample_1", "sample_2",
    }  # fmt: skip
    assert "sample_1 equal to NumPy, bit for bit; sample_2 equal" in str(report)
