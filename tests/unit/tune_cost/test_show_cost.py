"""`show --stage cost`: the explanation of a kernel's predicted time, from Python and the shell."""

from __future__ import annotations

import re

import pytest
from matrix import case, roles

from polygen.cli import main
from polygen.decide import candidates
from polygen.hardware.device import device
from polygen.schedule.problem import Fitted
from polygen.tune.cost import predict

SIZES = {"M": 4096, "N": 4096, "K": 1024}


def predicted(text):
    return float(re.search(r"predicted: ([\d.]+) us", text)[1])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_kernel_explains_its_time_at_the_sizes_it_is_for(arch):
    one = case("cost", "nt", "bf16", "bias_gelu", arch=arch, sizes=tuple(SIZES.items()))
    kernel = one.kernel()
    text = kernel.show("cost")
    problem, _ = candidates(kernel.program, device(arch), SIZES)
    plan = kernel.passes.plan
    fitted = Fitted(plan.schedule, plan.resources.blocks_per_multiprocessor)
    assert predicted(text) == pytest.approx(predict(device(arch), fitted, problem), abs=0.06)
    assert "m, n, k = 4096, 4096, 1024" in text and f"on {arch}" in text
    assert text.splitlines()[0] == "gelu((x @ w.T) + b)"
    assert f"schedule: {plan.schedule.name}: {kernel.schedule_origin}" in text
    assert re.search(r"^bound: .+, \d+% of the time: ", text, re.M)


def test_a_given_schedule_is_explained_as_it_is():
    one = case(
        "cost", "nt", "bf16", "gate", arch="sm_90a", schedule=roles("pingpong", 96, m=128),
        sizes=tuple(SIZES.items()),
    )  # fmt: skip
    text = one.kernel().show("cost")
    assert "given: roles_pingpong" in text
    assert "1376 output tiles of 16 k tiles" in text  # 32 x 43, the last column partly outside
    assert "132 persistent blocks on 132 multiprocessors, 11 tile(s)" in text
    assert "24576 B out, 24576 B in, 12288 functions per tile, in 6 panels" in text


def test_the_command(capsys):
    signature = ["x:bf16[M,K]", "w:bf16[N,K]"]
    sizes = ["--size", "M=128", "N=4096", "K=14336"]
    arguments = ["show", "x @ w.T", *signature, "--arch", "sm_90a", *sizes, "--stage", "cost"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert predicted(text) > 20 and "device memory" in text and "resources" in text
