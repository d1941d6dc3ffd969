"""Calls as CUDA graphs on one GPU, and with collectives and peers' memory on two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import polygen as pg  # noqa: E402
import polygen.adapters.torch as pgt  # noqa: E402

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 600  # seconds: guards against hangs alone

up = pgt.op(lambda x, w, b: pg.relu(x @ w.T + b), name="captured_up")
total = pgt.op(lambda x, w: pg.logsumexp(x @ w.T, axis=-1), name="captured_total")


def numbers(*shape: int) -> torch.Tensor:
    return torch.randint(-2, 3, shape, device="cuda").to(torch.bfloat16)


@pytest.mark.parametrize("rows", [64, 511])  # 511: ragged tiles
def test_replays_give_what_calls_give(rows):
    """Kernels with copies before them and launches behind them, too: K = 1030 is realigned."""
    w, odd, b = numbers(512, 1024), numbers(512, 1030), numbers(512)

    def run(x, y):
        hidden = up(x, w, b)
        return {"up": hidden, "odd": up(y, odd, b), "total": total(x, w)}

    fast = pgt.captured(run)
    for _ in range(4):
        x, y = numbers(rows, 1024), numbers(rows, 1030)
        found, wanted = fast(x, y), run(x, y)
        assert fast.why == ""
        for name, value in wanted.items():
            assert torch.equal(found[name], value), name


def test_results_that_are_kept_and_operands_in_place():
    w, b = numbers(512, 1024), numbers(512)
    fast = pgt.captured(lambda x: up(x, w, b), keep=True)
    first = fast(numbers(64, 1024))
    (own,) = fast.operands(numbers(64, 1024))
    own.copy_(numbers(64, 1024))
    second = fast(own)
    assert first.data_ptr() == second.data_ptr() and torch.equal(second, up(own, w, b))
    fast.forget()


def test_a_capture_that_fails_leaves_pytorch_as_it_was():
    w, b = numbers(512, 1024), numbers(512)

    def run(x):
        return up(x, w, b) * x.float().sum().item()  # which waits for the GPU

    x, stream = numbers(64, 1024), torch.cuda.current_stream()
    fast = pgt.captured(run)
    with pytest.warns(UserWarning, match="not captured: the capture fails"):
        assert torch.equal(fast(x), run(x))
    assert torch.cuda.current_stream() == stream
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(fast(x), run(x))
    again = pgt.captured(lambda x: up(x, w, b))
    assert torch.equal(again(x), up(x, w, b))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_give_what_one_gives_in_every_way(tmp_path):
    record = tmp_path / "two_gpus.json"
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
           str(ROOT / "docs" / "measure_two_gpus.py"), "--out", str(record),
           "--parts", "checks"]  # fmt: skip
    subprocess.run(run, check=True, timeout=PATIENCE, env=os.environ | {"PYTHONPATH": str(ROOT)})
    checks = json.loads(record.read_text())["checks"]
    assert {name: row["within"] for name, row in checks.items()} == dict.fromkeys(checks, True)
    for block in ("Mlp", "Attention"):
        assert checks[block]["graph"] == "captured" and checks[block]["graph_equal"]
