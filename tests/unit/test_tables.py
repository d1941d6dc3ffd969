"""docs/performance.md, its plots and the README's table are what the committed records say."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from polygen.bench import plots

ROOT = Path(__file__).resolve().parents[2]
MADE = runpy.run_path(str(ROOT / "docs" / "make_tables.py"))


def test_the_performance_page_comes_from_the_records():
    made = MADE["render"]()
    assert (ROOT / "docs" / "performance.md").read_text() == made
    assert "| `x @ w.T` |" in made and "### Where polygen loses" in made
    assert made.count("These kernels use `mma.sync`") == 1
    assert (
        "- Triton, 5 rows: BenchError: Triton: the kernel's sums are floats, those of s8 are s32."
        in made
    )


def test_models_and_programs_are_shown_where_they_were_measured(tmp_path):
    assert MADE["models"](tmp_path) == MADE["programs"](tmp_path) == ""
    head = {"gpu": "H", "driver_version": "1", "versions": {"torch": "2"}, "protocol": "In turns."}
    row = {
        "us": {"eager": 40.0, "inductor": 22.0, "inductor max-autotune": 21.0, "polygen": 20.0},
        "gpu_us": {"eager": None, "inductor": 18.0, "polygen": 15.0},
        "compile_s": {"inductor max-autotune": 30.0, "polygen": 6.0}, "agrees": True,
        "groups": {"polygen": 3}, "taken": {"polygen": 2},
        "launches": {"inductor": 9, "polygen": 7},
    }  # fmt: skip
    for name, date, rows in (
        ("one", "2026-01-01", {"a block": {"failed": "out of memory"}, "b": {"failed": "broken"}}),
        ("two", "2026-01-02", {"a block": row}),
    ):
        record = {"kind": "models", "date": date, "rows": rows, **head}
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    ratio = {"ms": {"polygen": 2.0, "cupy": 3.0}, "cold_ms": {"polygen": 900.0, "cupy": 800.0}}
    rows = {"nmf": {**ratio, "ratio": 1.5, "agrees": True}, "k_means": {"failed": "no GPU"}}
    record = {"kind": "numpy programs", "date": "2026-01-01", "rows": rows, **head}
    (tmp_path / "programs.json").write_text(
        json.dumps({**record, "caches": "kept", "calls": {"us": {"kernel": 8.0, "operator": 9.5}}})
    )
    text = MADE["render"](tmp_path)
    assert (
        "| a block | 20.0 | 3, 2 | 9, 7 | 2.000 | 1.100 | 1.200 | 1.050 |  | 6.0 | 30.0 | yes |"
        in text
    )
    assert "- b: broken" in text and "out of memory" not in text
    assert "1 rows: geometric mean 1.100, least 1.100; captured: geometric mean 1.200" in text
    assert "| nmf | 2.000 | 3.000 | 1.500 | 900 | 800 | yes |" in text and "no GPU" in text
    assert "First runs found what had been compiled before." in text
    assert "1 scripts: geometric mean 1.500" in text and "kernel 8.0, operator 9.5" in text


def test_rows_that_were_not_reached_are_named(tmp_path):
    record = json.loads((ROOT / "docs" / "results" / "h200_types.json").read_text())
    dropped = [row["key"] for row in record["rows"][-2:]]
    record |= {"rows": record["rows"][:-2], "unfinished": dropped}
    (tmp_path / "h200_types.json").write_text(json.dumps(record))
    made = MADE["render"](tmp_path)
    assert f"2 rows were not reached in the time given: {', '.join(dropped)}" in made


def test_records_come_with_the_suites_that_they_measured_last(tmp_path):
    """Those of most suites first, then the newest; not what is measured again."""

    def written(name, date, *suites):
        rows = [{"key": suite, "suites": [suite], "run": 0} for suite in suites]
        record = {"kind": "bench", "format": 1, "rows": rows, "runs": [{"date": date}]}
        record |= {"suites": dict.fromkeys(suites, ""), "unfinished": []}
        (tmp_path / f"{name}.json").write_text(json.dumps(record))

    written("wide", "2026-01-02", "hopper", "llm")
    written("older", "2026-01-01", "hopper", "paper", "llm")
    written("oldest", "2025-01-01", "hopper", "types")
    written("narrow", "2026-01-03", "types")
    found = MADE["records"](tmp_path)
    assert {name: list(one["suites"]) for name, one in found.items()} == {
        "wide": ["hopper", "llm"], "narrow": ["types"], "older": ["paper"]
    }  # fmt: skip
    assert list(found) == ["wide", "narrow", "older"]


def test_the_readme_s_table_comes_from_the_record_of_most_suites():
    text = (ROOT / "README.md").read_text()
    assert MADE["with_made"](text, MADE["speed"]()) == text
    assert MADE["with_made"](text, "| other |") != text


@pytest.mark.parametrize(
    ("page", "made"),
    [
        ("tuning", "tuner"),
        ("attention", "attention"),
        ("odd_rows", "odd_rows"),
        ("in_order", "in_order"),
        pytest.param("cost-model", "model", marks=pytest.mark.slow),
    ],
)
def test_tables_of_the_tuner_come_from_the_records(page, made):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    assert MADE["with_made"](text, MADE[made]()) == text


def test_generation_times_come_from_their_record():
    """And the record has what the page says of it: up to 200 operations change little."""
    made = runpy.run_path(str(ROOT / "docs" / "generation_time.py"))
    record = made["load"]()
    text = (ROOT / "docs" / "pipeline.md").read_text()
    assert made["with_made"](text, made["table"](record)) == text
    assert f"data {plots.digest(record)}" in made["PLOT"].read_text(), "make docs"
    assert {p["operations"] for p in record["points"]} >= {2, 200, 512}
    assert made["PLOT"] in (ROOT / "docs" / "plots").glob("*.svg")


def test_the_readme_s_plot_holds_every_row():
    data, path = MADE["speeds"](), MADE["SPEED"]
    assert f"data {plots.digest(data)}" in path.read_text(), f"{path}: make docs"
    assert str(path.relative_to(ROOT)) in (ROOT / "README.md").read_text()
    assert sum(len(one["ratios"]) for one in data["suites"].values()) > 300


def test_plots_hold_the_data_of_the_record_of_most_suites():
    name, record = next(iter(MADE["records"](ROOT / "docs" / "results").items()))
    folder = MADE["plots_folder"](name)
    wanted = plots.all_data(record)
    found = list((ROOT / "docs" / "plots").glob("*/*.svg"))
    found = [path for path in found if path.parent.name != MADE["GALLERY"]]
    assert {path.name for path in found} == set(wanted)
    for path in found:
        assert path.parent == folder
        assert f"data {plots.digest(wanted[path.name])}" in path.read_text(), f"{path}: make docs"
