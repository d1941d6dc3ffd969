"""What ranks compute before they add up: a kernel like any other, run on the PTX machine."""

from __future__ import annotations

import pytest

import polygen as pg
from polygen.api import target
from polygen.decision import decision
from polygen.kernel import Kernel
from polygen.parallel.cuts import cuts
from polygen.pipeline import with_sizes


@pytest.mark.slow
def test_the_parts_of_a_sum_are_a_kernel_that_is_proved_and_right():
    whole = pg.fuse(lambda x, w, b: pg.gelu(x @ w.T + b)).program(
        "bf16[M,K]", "bf16[N,K]", "bf16[N]"
    )
    (cut,) = [cut for cut in cuts(whole) if cut.dim == "K"]
    sizes, device = {"M": 64, "N": 64, "K": 32}, target("sm_80")
    head = with_sizes(cut.head, sizes)
    kernel = Kernel.decided(head, device, sizes, *decision(head, device, sizes))
    report = kernel.check()
    assert report.ok, report
    assert report.comparison == "equal to NumPy, bit for bit"
