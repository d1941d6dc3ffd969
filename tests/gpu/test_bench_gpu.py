"""``polygen bench`` on a real GPU: every library on small rows, and products beside cuBLAS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polygen.bench import figures, record
from polygen.bench.peers import PEERS
from polygen.cli import main

pytestmark = pytest.mark.gpu
pytest.importorskip("torch")
# Batches, several products, attention.
OF_OTHER_ROWS = {"cupy", "cupy_once", "eager_joined", "inductor_joined", "cudnn", "flash"}


def bench(out: Path, *words: str) -> dict[str, Any]:
    assert main(["bench", "--out", str(out), *words]) == 0
    return record.load(out)


def test_every_library_measures_small_rows_or_says_why_not(tmp_path: Path) -> None:
    rows = r"^(mm_tn|bias_relu_tt|bias_gelu|silu_mul) f16 (4096x4096|1024x1024)x1024$"
    found = bench(tmp_path / "r.json", "--suite", "paper", "--rows", rows, "--repeats", "21")
    made = found["runs"][-1]
    assert made["ceilings"]["tflops"]["bf16"] > 0 and made["ceilings"]["copy_gbytes_per_s"] > 0
    for line in found["rows"]:
        assert set(line["times"]) | set(line["skipped"]) >= {"polygen", *PEERS}
        assert {"polygen", "separate", "eager"} <= set(line["times"])
        assert (figures.share_of_limit(found, line) or 0.0) > 0
        print(f"\n{line['key']}: {json.dumps({n: t['us'] for n, t in line['times'].items()})}")
        print(f"skipped: {line['skipped']}")
    present = {name for line in found["rows"] for name in line["times"]}
    there = set(PEERS) - OF_OTHER_ROWS - set(made["missing"])
    assert there <= present, "a library that is there takes part"


@pytest.mark.parametrize("dtype", ["tf32", "e4m3", "s8"])
def test_other_types_are_measured_beside_cublas(tmp_path: Path, dtype: str) -> None:
    words = ["--suite", "types", "--rows", f"^mm {dtype} 4096x4096x4096$", "--repeats", "21"]
    found = bench(tmp_path / "r.json", *words)
    (line,) = found["rows"]
    assert {"polygen", "separate", "eager", "cublaslt"} <= set(line["times"]), line["skipped"]
    assert set(line["times"]) | set(line["skipped"]) >= set(PEERS)
    assert dtype in found["runs"][-1]["ceilings"]["tflops"]
    print(f"\n{line['key']}: {json.dumps({n: t['us'] for n, t in line['times'].items()})}")
    print(f"errors: {line['errors']}\nskipped: {line['skipped']}")


@pytest.mark.parametrize(
    ("suite", "row", "wanted"),
    [
        ("batched", "bmm_bias_gelu_nn bf16 512x128x128x128", {"cupy_once"}),
        ("batched", "bmm bf16 64x1024x1024x128", {"cupy"}),
        ("gated", "gated bf16 16x14336x4096", {"cupy_once", "eager_joined", "inductor_joined"}),
        ("products", "pairs bf16 4096x4096x2048", {"cupy"}),
        ("products", "qkv bf16 4096x4096x4096", {"eager_joined", "inductor_joined"}),
    ],
)
def test_batches_and_several_products_are_measured(
    tmp_path: Path, suite: str, row: str, wanted: set[str]
) -> None:
    words = ["--suite", suite, "--rows", f"^{row}$", "--repeats", "21"]
    found = bench(tmp_path / "r.json", *words)
    (line,) = found["rows"]
    wanted = wanted | {"polygen", "separate", "eager", "inductor"}
    wanted -= set(found["runs"][-1]["missing"])
    # Rows of few microseconds are CUDA graphs, which CuPy from 14 on captures no cuBLAS in.
    wanted -= {name for name, why in line["skipped"].items() if why.startswith("no graph: ")}
    assert wanted <= set(line["times"]), line["skipped"]
    if found["runs"][-1]["versions"]["cublaslt.via"] == "nvmath":
        assert "cublaslt" in line["times"], line["skipped"]
    assert set(line["times"]) | set(line["skipped"]) >= {"polygen", *PEERS}
    assert (figures.share_of_limit(found, line) or 0.0) > 0
    print(f"\n{line['key']}: {json.dumps({n: t['us'] for n, t in line['times'].items()})}")
    print(f"errors: {line['errors']}\nskipped: {line['skipped']}")


def test_products_in_all_layouts_are_measured_beside_cublas(tmp_path: Path) -> None:
    words = ["--suite", "paper", "--rows", "^mm_.. f16", "--peers", "separate"]
    found = bench(tmp_path / "r.json", *words)
    ratios = {line["op"]: figures.ratio(line, "separate") or 0.0 for line in found["rows"]}
    print(ratios)
    assert len(ratios) == 3 and min(ratios.values()) > 0
