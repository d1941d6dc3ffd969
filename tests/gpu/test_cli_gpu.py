"""``polygen run`` on a real GPU."""

from __future__ import annotations

import json

import pytest

from polygen.cli import main

pytestmark = pytest.mark.gpu
SIZES = ["--size", "M=500", "N=712", "K=1000"]


@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32"])
@pytest.mark.parametrize("layout", ["", ":col"])
def test_run_is_within_its_bound(kind, layout, capsys):
    words = ["gelu(s * (x @ w.T) + b)", f"x:{kind}[M,K]{layout}", f"w:{kind}[N,K]", "b:f32[N]"]
    assert main(["run", *words, "s:f32", *SIZES, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] and 0 < report["outputs"][0]["fraction_of_bound"] < 1
    assert 0 < report["milliseconds"]["minimum"] <= report["milliseconds"]["median"]


def test_run_prints_for_people(capsys):
    words = ["x @ w, relu(x @ w)", "x:bf16[M,K]", "w:bf16[K,N]", *SIZES]
    assert main(["run", *words, "--out-dtype", "f32", "bf16"]) == 0
    out = capsys.readouterr().out
    assert out.count("right: largest error") == 2 and "TFLOP/s" in out
