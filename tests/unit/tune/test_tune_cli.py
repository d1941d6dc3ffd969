"""``polygen tune`` from the words to the files, on recorded times."""

from __future__ import annotations

import json

import pytest
from tuning_samples import EXPRESSION, SIGNATURE, few, fused, keys, replayed, task, times

from polygen import knobs
from polygen.cli import main
from polygen.cli.tune import seconds
from polygen.schedule.load import load_schedule
from polygen.tune.exported import export
from polygen.tune.lookup import best, location
from polygen.tune.records import Records
from polygen.tune.replay import ReplaySource

SIZES = ["--size", "M=4096", "N=4096", "K=1024"]
WORDS = ["tune", EXPRESSION, *SIGNATURE, "--arch", "sm_90a", *SIZES]


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A record of sixteen schedules, made by tuning on made-up times."""
    folder, made = tmp_path_factory.mktemp("record"), task()
    chosen = few(made, 16)
    path = folder / "records.sqlite"
    replayed(made, chosen, path, ReplaySource(tuple(times(chosen).items())))
    with Records(path) as records:
        assert export(records, folder / "record.json", "Recorded GPU", source="replay") == 1
    return folder / "record.json"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYGEN_CACHE_DIR", str(tmp_path / "cache"))


def fastest():
    chosen = few(task(), 16)
    found = times(chosen)
    names = dict(zip(keys(chosen), chosen, strict=True))
    return names[min(found, key=found.__getitem__)].schedule


def test_a_replay_finds_the_best_and_writes_what_was_asked_for(record, tmp_path, capsys):
    out = tmp_path / "again.json"
    words = [*WORDS, "--replay", str(record), "--export", str(out), "--budget", "1h"]
    assert main([*words, "--write-schedule", str(tmp_path / "schedules")]) == 0
    printed, wanted = capsys.readouterr(), fastest()
    assert wanted.name in printed.out and "Recorded GPU" in printed.out
    assert "final 3: 16/16 schedules" in printed.err
    (file,) = (tmp_path / "schedules").iterdir()
    assert load_schedule(file) == wanted and "polygen tune" in file.read_text().splitlines()[0]
    before, after = (json.loads(path.read_text())["problems"] for path in (record, out))
    assert sorted(m["microseconds"] for m in before[0]["measurements"]) == pytest.approx(
        sorted(m["microseconds"] for m in after[0]["measurements"]), rel=1e-9
    )
    assert main([*words, "--json"]) == 0  # nothing is left to do
    report = json.loads(capsys.readouterr().out)
    assert report["resumed"] == 16 and report["best"]["schedule"]["name"] == wanted.name
    assert report["speedup"] >= 1 and report["states"] == {"timed": 16}
    made = task()
    assert best(made.program, made.device, made.sizes) is None  # a replay decides nothing


def test_a_file_made_by_write_schedule_compiles(record, tmp_path):
    words = [*WORDS, "--replay", str(record), "--write-schedule", str(tmp_path), "--budget", "1h"]
    assert main(words) == 0
    (file,) = tmp_path.glob("*.toml")
    made = fused().compile(*SIGNATURE, arch="sm_90a", sizes={"M": 4096}, schedule=file)
    assert made.schedule == fastest()


def test_the_list_is_by_predicted_time_and_needs_no_gpu(capsys):
    assert main([*WORDS, "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    predicted = [one["predicted_microseconds"] for one in listed]
    assert len(listed) > 1000 and predicted == sorted(predicted)
    assert main([*WORDS, "--list"]) == 0
    assert "predicted us" in capsys.readouterr().out and not location().exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*WORDS, "--schedule", "some.toml"], "tuning finds the schedule"),
        (WORDS[:-1], "no size for K"),
        ([*WORDS, "--replay", "missing.json"], "no record of measured schedules"),
        (
            [*WORDS, "--budget", "soon"],
            "'soon' is not a time above 0, in seconds, minutes or hours",
        ),
        ([*WORDS, "--budget", "0"], "'0' is not a time above 0"),
        ([*WORDS, "--budget", "nan"], "'nan' is not a time above 0"),
        ([*WORDS, "--budget", "-3s"], "'-3s' is not a time above 0"),
        ([*WORDS, "--budget=-3s"], "90, 30s, 2m or 1.5h. See `polygen tune --help`"),
        (["tune", "--budget", "-.5", *WORDS[1:]], "'-.5' is not a time above 0"),
        ([*WORDS, "--budget", "9" * 400], "is not a time above 0"),
    ],
)
def test_wrong_usage_is_refused(words, message, capsys):
    if (
        "--schedule" not in words
        and "--replay" not in words
        and not any(word.startswith("--budget") for word in words)
    ):
        words = [*words, "--list"]
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_a_problem_that_the_record_does_not_have_is_refused(record, capsys):
    words = ["tune", EXPRESSION, *SIGNATURE, "--arch", "sm_90a", "--size", "M=8", "N=8", "K=64"]
    assert main([*words, "--replay", str(record)]) == 2
    assert "does not have this program" in capsys.readouterr().err


def test_without_a_gpu_it_says_what_is_missing(capsys, monkeypatch):
    from polygen.errors import ToolchainMissing
    from polygen.tune import tuner

    def missing():
        raise ToolchainMissing("there is no GPU to run on")

    monkeypatch.setattr(tuner, "cupy_driver", missing)
    assert main(WORDS) == 2
    assert "there is no GPU to run on" in capsys.readouterr().err


def test_records_that_cannot_be_written_stop_it_at_once(record, tmp_path, capsys):
    with knobs.scope(cache_dir=tmp_path / "file" / "below"):
        (tmp_path / "file").write_text("")
        assert main([*WORDS, "--replay", str(record)]) == 2
    assert "the records of tuning cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "wanted"), [("30s", 30), ("2m", 120), ("90", 90), ("1.5 h", 5400)]
)
def test_budgets(text, wanted):
    assert seconds(text) == wanted
