"""Records: whole on disk, refused when they are none, continued where they end."""

from __future__ import annotations

import copy
import json
import re

import pytest
from bench_samples import COMMITTED, GATE, GELU, MM, RESIDUAL, ROWS, SMALL, sample

from polygen.bench import record
from polygen.bench.provenance import provenance
from polygen.bench.rows import selected, suite_names
from polygen.errors import BenchError


def test_a_record_is_read_as_it_was_written_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "deep" / "r.json"
    record.save(path, sample())
    assert record.load(path) == json.loads(json.dumps(sample()))
    assert [p.name for p in path.parent.iterdir()] == ["r.json"]
    assert sum('"key"' in line for line in path.read_text().splitlines()) == 5  # a row to a line
    record.save(path, record.empty())
    assert record.load(path) == record.empty()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "no record of `polygen bench`"),
        ('{"kind": "tuning"}', "no record of `polygen bench`.*nothing was changed"),
        ('{"kind": "bench", "format": 7}', "has format 7, this version reads 1"),
        ('{"kind": "bench", "format": 1, "rows": []}', "lacks suites, runs"),
        (
            '{"kind": "bench", "format": 1, "rows": [{}], "suites": {}, "runs": []}',
            "lacks keys of rows",
        ),
    ],
)
def test_what_is_no_record_is_refused_with_its_place(tmp_path, text, message):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(BenchError, match=message) as caught:
        record.load(path)
    assert str(path) in str(caught.value) and path.read_text() == text


def test_a_record_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BenchError, match=r"none.json: no such record"):
        record.load(tmp_path / "none.json")


def test_unfinished_rows_are_those_without_a_right_result():
    rows, made = [MM, RESIDUAL, GATE, GELU, SMALL], sample()
    peers = ("separate", "cublaslt", "inductor")
    assert record.unfinished(rows, made, peers) == [GATE]
    assert record.unfinished(rows, made, peers, refill=True) == [GATE, SMALL]
    assert record.unfinished(rows, made, ("triton",)) == rows  # none of them has met it
    assert record.unfinished([ROWS[9]], made, ()) == [ROWS[9]]


def test_lines_are_replaced_and_keep_the_order_of_the_rows():
    made = record.empty()
    lines = {line["key"]: line for line in sample()["rows"]}
    for row in (GELU, MM, RESIDUAL):
        record.merge(made, lines[row.key], ROWS)
    record.merge(made, {"key": "from another suite"}, ROWS)
    record.merge(made, lines[MM.key] | {"run": 7}, ROWS)
    keys = [line["key"] for line in made["rows"]]
    assert keys == [MM.key, RESIDUAL.key, GELU.key, "from another suite"]
    assert made["rows"][0]["run"] == 7


NOT_MEASURED: set[str] = set()  # suites that no committed record holds yet


def test_the_committed_records_are_records_and_hold_all_suites():
    paths = [p for p in COMMITTED.parent.glob("*.json") if '"kind": "bench"' in p.read_text()]
    found = {path.stem: record.load(path) for path in paths}
    made, types = found["h200"], found["h200_types"]
    keys = [line["key"] for line in made["rows"]]
    assert keys[: len(ROWS)] == [row.key for row in ROWS]
    for path in paths:
        one = found[path.stem]
        rows = {row.key for row in selected([*one["suites"]])}
        assert {line["key"] for line in one["rows"]} | set(one["unfinished"]) == rows
        assert record.text(one) == path.read_text()
    measured = {name for one in found.values() for name in one["suites"]}
    assert not measured & NOT_MEASURED, "measured by now: take it from the list"
    assert measured | NOT_MEASURED == set(suite_names()), "neither measured nor named above"
    page = (COMMITTED.parents[1] / "benchmarks.md").read_text()
    named = set(re.findall(r"^\| `([\w-]+)` \|.*not measured yet", page, re.MULTILINE))
    assert named == NOT_MEASURED, "docs/benchmarks.md says so of each"
    assert not types["unfinished"] and len(types["rows"]) == len(selected(["types"]))


def test_a_record_names_settings_but_no_folders(monkeypatch):
    monkeypatch.setenv("POLYGEN_CACHE", "0")
    monkeypatch.setenv("POLYGEN_CACHE_DIR", "/somewhere/else")
    found = provenance("polygen bench", ("hopper",), 3)["environment"]
    assert found["POLYGEN_CACHE"] == "0" and "POLYGEN_CACHE_DIR" not in found
    assert not [value for value in found.values() if value.startswith("/")]


def test_an_error_does_not_replace_what_was_measured():
    made = sample()
    before = copy.deepcopy(made["rows"][0])
    record.merge(made, {"key": before["key"], "error": "why"}, ROWS)
    assert made["rows"][0] == before
