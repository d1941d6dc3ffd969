"""The benchmark of polygen itself, on a clock that only the work moves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polygen.bench import host, host_work
from polygen.bench.host_work import Work, timed
from polygen.errors import BenchError

COMMITTED = Path(__file__).parents[3] / host.COMMITTED


class Machine:
    """A machine on which work takes so many seconds as it says, times the machine's slowness."""

    def __init__(self, slowness: float = 1.0) -> None:
        self.now, self._slowness, self.order = 0.0, slowness, []

    def __call__(self) -> float:
        return self.now

    def run(self, name: str, seconds: float) -> None:
        self.order.append(name)
        self.now += seconds * self._slowness

    def work(self, name: str, *seconds: float) -> Work:
        """Takes these seconds in turn, and the last for ever."""
        left = list(seconds)

        def once() -> None:
            self.run(name, left.pop(0) if len(left) > 1 else left[0])

        return Work(name, lambda: timed(once))

    def measured(self, *works: Work, repeats: int = 5):
        return host.measure(works, repeats, self, lambda: self.run("loop", 0.5))


def test_a_ratio_is_to_the_calibration_around_the_work():
    machine = Machine()
    found = machine.measured(machine.work("a", 1.0), machine.work("b", 0.25, 9.0, 0.25))
    assert [(row["name"], row["ratio"]) for row in found["rows"]] == [("a", 2.0), ("b", 0.5)]
    assert [row["seconds"] for row in found["rows"]] == [1.0, 0.25], "medians: 9 s once is noise"
    assert found["calibration_seconds"] == 0.5 and found["repeats"] == 5
    one_round = ["loop", "a", "loop", "b", "loop"]
    assert machine.order == ["loop", *one_round * 5], "by turns, the calibration before and after"


def test_the_ratio_is_the_same_on_a_slower_machine():
    slow, fast = Machine(7.0), Machine()
    ratios = [m.measured(m.work("a", 1.0))["rows"][0]["ratio"] for m in (slow, fast)]
    assert ratios == [2.0, 2.0]


def test_changes_are_those_of_the_ratios():
    old, new = Machine(), Machine(3.0)
    before = old.measured(old.work("a", 1.0), old.work("gone", 1.0))
    after = new.measured(new.work("a", 1.5), new.work("added", 1.0), repeats=1)
    assert host.changes(after, before) == {"a": 1.5} and host.changes(after, None) == {}
    text = host.table(after, before)
    assert "1.50x" in text and "only in the old record: gone" in text
    (added,) = [line for line in text.splitlines() if line.startswith("added")]
    assert added.endswith("new")


def test_the_committed_record_has_every_piece_of_work():
    recorded = host.load(COMMITTED)
    names = [work.name for work in host_work.WORKS]
    assert [row["name"] for row in recorded["rows"]][: len(names)] == names
    assert len(set(names)) == len(names) and recorded["repeats"] >= 5


@pytest.mark.parametrize(
    ("text", "why"),
    [(None, "cannot be read"), ("{", "cannot be read"), ("[]", "no record of"),
     ('{"kind": "bench", "format": 1, "rows": []}', "no record of"),
     ('{"kind": "host", "format": 1, "rows": [{}]}', "no record of")],
)  # fmt: skip
def test_a_file_that_is_no_record_is_refused(tmp_path, text, why):
    path = tmp_path / "r.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BenchError, match=why):
        host.load(path)


def test_it_informs_and_fails_only_if_told_to(tmp_path, capsys):
    out = tmp_path / "out.json"
    assert host.main(["--rows", "rank", "--repeats", "2", "--out", str(out)]) == 0
    assert "rank 2000 schedules" in capsys.readouterr().out
    found = json.loads(out.read_text())
    for row in found["rows"]:
        row["ratio"] /= 1e6  # then everything today is slower
    out.write_text(json.dumps(found))
    words = ["--rows", "rank", "--repeats", "1", "--baseline", str(out)]
    assert host.main(words) == 0
    assert host.main([*words, "--fail-above", "2", "--json"]) == 1
    printed = capsys.readouterr()
    assert "slower: rank 2000 schedules takes" in printed.err
    assert host.load(out)["kind"] == "host"


def test_wrong_usage_is_refused(tmp_path, capsys):
    for words in (
        ["--repeats", "0"],
        ["--rows", "("],
        ["--rows", "nothing is called so"],
        ["--baseline", str(tmp_path / "missing.json")],
    ):
        assert host.main(words) == 2
        assert capsys.readouterr().err.startswith("polygen: ")


def test_the_long_program_is_as_long_as_it_says():
    kernel = host_work.program(host_work.chain(), *host_work.SIGNATURE)
    made = kernel.program(*host_work.SIGNATURE)
    assert host_work.chain().count("(") >= host_work.LONG and len(made.outputs) == 1
