"""docs/performance.md is what docs/make_tables.py makes of the committed records."""

import json
import runpy
from pathlib import Path

from gpu.contenders import CUBLAS, INDUCTOR, LT, SEPARATE, Row, ratios
from gpu.hopper_speed import heading, summary


def test_the_performance_page_comes_from_the_records():
    docs = Path(__file__).resolve().parents[2] / "docs"
    made = runpy.run_path(str(docs / "make_tables.py"))["render"]()
    assert (docs / "performance.md").read_text() == made
    assert "| `x @ w.T` |" in made


def peers_record():
    def line(row, times, graph=False):
        found = ratios(row, {name: [us] for name, us in times.items()})
        return heading(row) | found | {"schedule": "big", "graph": graph, "run": 0}

    rows = [
        line(Row("mm", 4096, 4096, 4096), {"polygen": 200, CUBLAS: 180, LT: 190}),
        line(Row("bias_relu", 256, 512, 64), {"polygen": 10, SEPARATE: 25, LT: 12}, graph=True),
        line(Row("bias_gelu", 4, 4, 4), {"polygen": 99.96, SEPARATE: 300, LT: 200, INDUCTOR: 150}),
        heading(Row("mm", 3000, 3000, 3000)) | {"run": 1, "error": "wrong result"},
    ]
    made = {
        "date": "2026-11-22T10:00:00+00:00",
        "gpu": {"name": "NVIDIA H200", "driver_version": "580"},
        "before": {"clocks.sm": "1980 MHz"}, "after": {"clocks.sm": "1700 MHz"}, "cuda": "13.0",
        "torch": "2.11.0", "triton": "3.6.0", "polygen": "0.1.0", "sources": "abc", "protocol": "p",
    }  # fmt: skip
    return {"kind": "peers", "provenance": made, "rows": rows, "summary": summary(rows)}


def test_a_record_beside_the_libraries_becomes_a_section(tmp_path):
    docs = Path(__file__).resolve().parents[2] / "docs"
    render = runpy.run_path(str(docs / "make_tables.py"))["render"]
    old = docs / "results" / "h200_mma_sync.json"
    (tmp_path / old.name).write_text(old.read_text())
    before = render(tmp_path)
    (tmp_path / "h200_hopper.json").write_text(json.dumps(peers_record()))
    made = render(tmp_path)
    for line in (
        "## NVIDIA H200, 2026-11-22: beside the libraries",
        "Driver 580, SM clock 1980 MHz before and 1700 MHz after the run, CUDA 13.0,",
        "The rows come from 2 runs; the figures above are those of the last.",
        "| 4096 | 4096 | 4096 | bf16 | 200.0 | 687 | 180.0 | 190.0 | – | 0.900 | big |",
        "| `relu(x @ w.T + b)` | 256 | 512 | 64 | bf16 | 10.0* | 2 | 25.0* | 12.0* | – | 2.500 | "
        "1.200 | big |",
        "A library is faster in 1 of 3 rows:",
        "| `x @ w.T` | 4096 | 4096 | 4096 | bf16 | 0.900 | cuBLAS |",
        "Rows without a figure, because polygen failed there: 1.",
        "- mm bf16 3000x3000x3000: wrong result",
    ):
        assert f"{line}\n" in made, line
    assert "| all fused rows, beside cuBLAS and separate kernels | 2 | 0 | 2.7" in made
    tables = [line for line in before.splitlines() if line.startswith("|")]
    assert tables and all(line in made.splitlines() for line in tables)
    assert made.count("These kernels use `mma.sync`") == 1  # beside the kernels that do
    assert made.index("mma.sync") > made.index("Where polygen loses")
