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


def test_rows_that_were_not_reached_are_named(tmp_path):
    record = json.loads((ROOT / "docs" / "results" / "h200_types.json").read_text())
    dropped = [row["key"] for row in record["rows"][-2:]]
    record |= {"rows": record["rows"][:-2], "unfinished": dropped}
    (tmp_path / "h200_types.json").write_text(json.dumps(record))
    made = MADE["render"](tmp_path)
    assert f"2 rows were not reached in the time given: {', '.join(dropped)}" in made


def test_a_later_record_of_one_suite_does_not_replace_the_widest(tmp_path):
    def written(name, date, *suites):
        record = {"kind": "bench", "format": 1, "rows": [], "runs": [{"date": date}]}
        record |= {"suites": dict.fromkeys(suites, ""), "unfinished": []}
        (tmp_path / f"{name}.json").write_text(json.dumps(record))

    written("wide", "2026-01-02", "hopper", "llm")
    written("older", "2026-01-01", "hopper", "llm")
    written("narrow", "2026-01-03", "types")
    assert list(MADE["records"](tmp_path)) == ["wide", "older", "narrow"]


def test_the_readme_s_table_comes_from_the_record_of_most_suites():
    text = (ROOT / "README.md").read_text()
    assert MADE["with_made"](text, MADE["speed"]()) == text
    assert MADE["with_made"](text, "| other |") != text


@pytest.mark.parametrize(
    ("page", "made"),
    [
        ("tuning", "tuner"),
        ("attention", "attention"),
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
