"""Tables, plots and what a terminal shows."""

from __future__ import annotations

import json
import re

import pytest
from bench_samples import COMMITTED, MM, sample
from bench_samples import line as measured

from polygen.bench import figures, plots, record, report
from polygen.bench.rows import Row
from polygen.cli import main


def test_a_page_says_what_was_measured_with_what():
    text = report.page(sample())
    assert "SM clock 1980 MHz before and 1700 MHz after the run, power limit 700.00 W" in text
    assert "800 TFLOP/s bf16 (cuBLAS 8192x8192x8192)" in text and "copy 4000 GB/s" in text
    assert "- *CuPy* is missing: ModuleNotFoundError: No module named 'cupy'" in text
    assert "its own bias, relu, gelu and added matrix" in text  # through nvmath


def test_every_table_has_the_ratio_to_each_library_and_to_the_limit():
    text = report.page(sample())
    head = next(line for line in text.splitlines() if line.startswith("| expression"))
    assert head.endswith(
        "| µs | ± % | TFLOP/s | cuBLAS + separate | cuBLASLt | Inductor | best | of limit | "
        "schedule |"
    )
    for line in (
        "| `x @ w.T` | 4096 | 4096 | 4096 | bf16 | 200.0 | 0.0 | 687 | 0.900 | 0.950 | 0.925 | "
        "0.900 | 0.86 | big |",
        "| `relu(x @ w.T + b)` | 1024 | 1024 | 1024 | bf16 | 10.0* | 0.4 | 215 | 2.500 | 1.200 | "
        "– | 1.200 | 0.27 | big |",
    ):
        assert line in text.splitlines(), line


def test_an_empty_kernel_stands_beside_the_times_where_one_was_launched():
    made = sample()
    old = report.terminal(made, made["rows"]), plots.bars(made, "hopper")
    assert "empty" not in report.page(made) + old[0] and "empty" not in old[1]
    made["rows"][4]["empty"] = {"us": 2.5}
    lines = report.page(made).splitlines()
    heads = [line for line in lines if line.startswith("| expression") and "schedule" in line]
    assert all("| ± % | empty µs | TFLOP/s |" in head for head in heads)
    (row,) = (line for line in lines if line.startswith("| `relu(x @ w.T + b)`"))
    assert "| 10.0* | 0.4 | 2.5 | 215 |" in row, "nothing is subtracted"
    assert any("| 200.0 | 0.0 | – | 687 |" in line for line in lines)
    text = report.terminal(made, made["rows"]).splitlines()
    assert text[0].split() == ["row", "us", "empty", "ratio", "limit", "fastest", "library"]
    assert any(line.split()[3:6] == ["10.0", "2.5", "1.200"] for line in text)
    assert plots.bars(made, "hopper")["empty"] == [None, None, None, 0.25]
    assert plots.digest(plots.bars(made, "hopper")) != plots.digest(old[1])


def test_losses_errors_and_absences_are_told():
    lines = report.page(sample()).splitlines()
    assert "A library is faster in 1 of 4 rows:" in lines
    assert "| `x @ w.T` | 4096 | 4096 | 4096 | bf16 | 0.900 | cuBLAS | 0.86 |" in lines
    assert "Rows without a figure, because polygen failed there: 1." in lines
    assert "- bias_silu_mul bf16 4096x4096x4096: wrong result: (NaN) / much" in lines
    assert "- Inductor, bias_relu bf16 1024x1024x1024: no time left after 9 s" in lines
    assert any(line.startswith("| hopper | the best library | 4 | 1.181") for line in lines)


def test_the_overview_has_a_line_per_suite_and_says_where_libraries_lack():
    made = sample()
    made["rows"][1]["suites"].append("small-k")
    lines = report.overview(made).splitlines()
    assert lines[0].startswith("| suite | rows | best of all | cuBLAS + separate | cuBLASLt")
    assert lines[2].startswith("| `hopper` | 4 | 1.18 | 2.62 | 1.36 | 1.19 (3) | 1 | ")
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| `hopper`", "| `small-k`", "| all"]


def test_of_each_suite_what_was_measured_last():
    """The other suites of an older record stay, with the machine of its own run."""
    old, new = sample(), sample()
    old["rows"][1]["suites"].append("small-k")
    new["runs"][-1]["date"] = "2999-01-01T00:00:00+00:00"
    new["rows"] = new["rows"][:1]
    for records in ((old, new), (new, old)):
        made = record.newest(records)
        lines = report.overview(made, ("cublaslt", "triton")).splitlines()
        assert lines[0].endswith("| best of all | cuBLASLt | lost rows | of limit | measured |")
        (hopper, small, both) = (line.split(" | ") for line in lines[2:])
        assert (hopper[:2], hopper[-1]) == (["| `hopper`", "1"], "2999-01-01 |")
        assert (small[:2], small[-1][:10]) == (["| `small-k`", "1"], old["runs"][-1]["date"][:10])
        assert both[:2] == ["| all", "2"] and both[-1].strip("| ") == ""
        runs = {line["suites"][0]: made["runs"][line["run"]] for line in made["rows"]}
        assert runs == {"hopper": new["runs"][0], "small-k": old["runs"][0]}


def test_rows_of_several_days_have_the_first_and_the_last():
    old = sample()
    days = ("2999-01-01", "2999-01-02", "2999-01-03")
    old["runs"] = [{**old["runs"][0], "date": f"{day}T00:00:00+00:00"} for day in days]
    for number, row in enumerate(old["rows"]):
        row["run"] = number % 3
    old["rows"][1]["suites"].append("small-k")
    lines = report.overview(old, ("cublaslt",)).splitlines()
    ends = [line.split(" | ")[-1].strip("| ") for line in lines[2:]]
    assert ends == ["2999-01-01 to 2999-01-03", "2999-01-02", ""]


def test_a_suite_that_was_measured_again_leaves_the_older_record():
    """By the runs that measured its rows: a record that goes on is not newer in all suites."""
    old, new = sample(), sample()
    for row in old["rows"][1:]:
        row["suites"] = ["small-k"]
    old["suites"] = {"hopper": "a", "small-k": "b"}
    old["runs"].append({**old["runs"][0], "date": "2999-01-01T00:00:00+00:00"})
    new["runs"][-1]["date"] = "2998-01-01T00:00:00+00:00"
    first, second = record.latest((old, new))
    assert [row["suites"] for row in first["rows"]] == [["small-k"]] * (len(old["rows"]) - 1)
    assert list(first["suites"]) == ["small-k"]
    assert {name for row in second["rows"] for name in row["suites"]} == {"hopper"}
    assert len(second["rows"]) == len(new["rows"])
    for row in old["rows"][:1]:
        row["run"] = len(old["runs"]) - 1  # measured by the run that went on
    first, second = record.latest((old, new))
    assert len(first["rows"]) == len(old["rows"]) and not second["rows"]


def test_a_terminal_shows_rows_and_means():
    made = sample()
    text = report.terminal(made, made["rows"])
    assert "mm bf16 4096x4096x4096                          200.0  0.900   0.86  cuBLAS\n" in text
    assert "error  wrong result" in text and "1.200   0.27  cuBLASLt*" in text
    assert text.endswith("1 errors, 0 rows not done")
    assert report.told(made["rows"][1]).endswith("100.0 us, 1.200 Inductor")
    assert max(map(len, text.splitlines()[:7])) < 100


def test_tables_have_batches_where_rows_have_them():
    made = sample()
    made["rows"] = [
        measured(Row("bmm_nn", 1024, 1024, 128, batch=64), 60, ("batched",), separate=50),
        measured(
            Row("qkv", 4096, 4096, 4096), 400, ("products",), separate=410, inductor_joined=405
        ),
    ]
    text = report.page(made).splitlines()
    heads = [found for found in text if found.startswith("| expression")]
    assert [head.split(" | ")[1:6] for head in heads] == [
        ["B", "M", "N", "K", "type"], ["M", "N", "K", "type", "µs"], ["B", "M", "N", "K", "type"],
    ]  # fmt: skip
    assert any(x.startswith("| `x @ w` | 64 | 1024 | 1024 | 128 | bf16 | 60.0") for x in text)
    assert "- *Inductor, joined*: torch.compile in that mode of one product with the" in "\n".join(
        text
    )
    assert report.suites_in(made) == ["batched", "products"]
    gains = plots.fusion(
        {**made, "rows": [measured(Row("pairs", 2048, 2048, 512), 9, separate=18)]}
    )
    assert gains["points"] == [{"op": "pairs", "k": 1024, "passes": 3, "ratio": 2.0}]


# --- plots
def test_plotted_values_are_those_of_the_record():
    made = sample()
    bars = plots.bars(made, "hopper")
    assert bars["rows"][0] == MM.key and bars["ratios"]["inductor"] == [0.925, 1.2, 1.5006, None]
    roof = plots.roofline(made)
    assert roof["points"][0]["tflops"] == pytest.approx(687.19, abs=0.01)
    assert roof["points"][0]["intensity"] == pytest.approx(2 * 4096**3 / (3 * 2 * 4096**2), 1e-4)
    (strip,) = plots.strips(made, ["hopper", "llm"])["suites"].values()  # none of the other
    assert strip["ratios"] == [0.9, 1.2, 1.2, 1.5006]
    assert strip["mean"] == pytest.approx((0.9 * 1.2 * 1.2 * 1.5006) ** 0.25, abs=1e-3)
    gain = plots.fusion(made)
    assert gain["flops_per_byte"] == 200.0  # 800 TFLOP/s over 4 TB/s: a read and a write are 400/K
    assert [point["passes"] for point in gain["points"]] == [7, 4, 4]
    assert set(plots.all_data(made)) == {"suite_hopper.svg", "roofline.svg", "fusion.svg"}
    del made["runs"][0]["ceilings"]
    assert set(plots.all_data(made)) == {"suite_hopper.svg"}


def test_plots_are_drawn_with_their_data_s_digest_and_always_the_same(tmp_path):
    pytest.importorskip("matplotlib")
    made = sample()
    first = plots.write(made, tmp_path / "a")
    again = plots.write(made, tmp_path / "b")
    assert [p.name for p in first] == sorted(plots.all_data(made), key=lambda n: n != first[0].name)
    for one, two in zip(first, again, strict=True):
        assert one.read_text() == two.read_text()
        assert plots.digest(plots.all_data(made)[one.name]) in one.read_text()
    changed = sample()
    changed["rows"][0]["times"]["polygen"]["us"] = 199.0
    assert plots.digest(plots.bars(changed, "hopper")) != plots.digest(plots.bars(made, "hopper"))


# --- the command
def run(capsys, *words):
    code = main(["bench", *map(str, words)])
    return code, capsys.readouterr()


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "old.json"
    record.save(path, sample())
    return path


def test_rows_are_listed(capsys):
    code, shown = run(capsys, "--suite", "hopper", "--rows", "^mm f16", "--list")
    assert code == 0 and shown.out.splitlines()[1].split() == [
        "mm", "f16", "4096x4096x4096", "x", "@", "w.T", "hopper",
    ]  # fmt: skip
    code, shown = run(capsys, "--suite", "small-k", "--list", "--json")
    assert code == 0 and len(json.loads(shown.out)) == 21


def test_a_replay_through_the_command_and_its_baseline(capsys, tmp_path, old):
    out = tmp_path / "new.json"
    words = ["--suite", "hopper", "--rows", r"mm bf16 4096x4096x4096|residual.*4096x4096x4096"]
    words += ["--replay", old, "--out", out, "--peers", "separate,cublaslt,inductor"]
    code, shown = run(capsys, *words, "--baseline", old)
    assert code == 1, "one of the rows is not in the replayed record"
    assert "[1/3] mm bf16 4096x4096x4096: 200.0 us, 0.900 cuBLAS" in shown.out
    assert "no such row" in shown.out and "0 slower, 2 same, 0 faster" in shown.out
    faster = sample()
    faster["rows"][0]["times"]["polygen"] = faster["rows"][4]["times"]["polygen"]
    record.save(tmp_path / "faster.json", faster)
    words[3] = "mm bf16 4096x4096x4096"
    code, shown = run(capsys, *words, "--baseline", tmp_path / "faster.json")
    assert code == 1 and "slower +1900.0%, libraries +0.0%: mm bf16 4096x4096x4096" in shown.out
    code, shown = run(capsys, *words, "--baseline", old)
    assert code == 0
    code, shown = run(capsys, *words, "--baseline", old, "--json", "--fresh")
    told = json.loads(shown.out)
    assert code == 0 and told["changes"][0]["verdict"] == "same"
    assert told["rows"][0]["ratio"]["separate"] == 0.9 and "1 rows to measure" in shown.err


def test_reports_are_printed_and_written(capsys, tmp_path, old):
    code, shown = run(capsys, "--out", old, "--report")
    assert code == 0 and "## Where polygen loses" in shown.out
    code, shown = run(capsys, "--out", old, "--report", "--json")
    assert json.loads(shown.out)[0]["best"] == "separate"
    code, shown = run(capsys, "--out", old, "--report", tmp_path / "made")
    text = (tmp_path / "made" / "report.md").read_text()
    shows = re.findall(r"\]\(\./(\w+\.svg)\)", text)
    assert code == 0 and {p.name for p in (tmp_path / "made").iterdir()} == {"report.md", *shows}


def test_other_measurements_are_compared(capsys, tmp_path, old):
    there = tmp_path / "there.json"
    row = {"M": 4096, "N": 4096, "K": 4096, "dtype": "bfloat16", "op": "mm"}
    there.write_text(json.dumps([row | {"eager_us": 90.0, "inductor_us": 185.0}]))
    code, shown = run(capsys, "--out", old, "--compare-peers", there)
    assert code == 0
    assert re.search(r"mm bf16 4096x4096x4096 +eager +180.0 +90.0 +2.000\n", shown.out)
    assert "Inductor, launches: geometric mean 1.000, least 1.000" in shown.out
    there.write_text('[{"M": 1}]')
    code, shown = run(capsys, "--out", old, "--compare-peers", there)
    assert code == 2 and "the table of other measurements cannot be read" in shown.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--suite", "nothing"], "no suite is called 'nothing'"),
        (["--rows", "nothing"], "no row matches 'nothing'"),
        (["--peers", "cutlass"], "no library is called 'cutlass'"),
        (["--budget", "0"], "--budget: a budget of 0 s"),
        (["--budget", "nan"], "--budget: a budget of nan s"),
        (["--repeats", "0"], "--repeats: 0 launches"),
        (["--replay", "none.json"], "none.json: no such record"),
        (["--baseline", "none.json"], "none.json: no such record"),
        (["--report"], "no such record"),
        (["--replay", "OLD", "--out", "OLD"], "cannot be replayed into itself"),
    ],
)
def test_wrong_usage_is_one_message_and_writes_nothing(capsys, tmp_path, old, words, message):
    out = [] if "--out" in words else ["--out", tmp_path / "out.json"]
    words = [str(old) if word == "OLD" else word for word in words]
    code, shown = run(capsys, *words, *out)
    assert code == 2 and message in shown.err and len(shown.err.splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["old.json"]


def test_the_committed_record_becomes_a_page():
    made = record.load(COMMITTED)
    text = report.page(made)
    assert "A library is faster in 45 of 175 rows:" in text
    assert "the fastest of its algorithms by measurement" in text
    assert figures.losses(made["rows"])[0]["key"] == "mm bf16 4099x4093x1031"
