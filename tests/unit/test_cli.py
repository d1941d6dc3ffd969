"""The command line: what each subcommand prints and writes, on a machine without a GPU."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

import numpy as np
import pytest

from polygen import errors, knobs
from polygen.api import Fused
from polygen.cli import accuracy, arguments, command_line, load, main, output, trial
from polygen.frontend.parse import parse_expression
from polygen.hardware.device import devices
from polygen.machine import Finding
from polygen.runtime import cache, nvrtc

GELU = ["gelu(x @ w.T + b)", "x:bf16[M,K]", "w:bf16[N,K]", "b:bf16[N]", "--arch", "sm_80"]
SIZES = ["--size", "M=64", "N=96", "K=128"]


@pytest.fixture(autouse=True, scope="module")
def _cache_of_its_own(tmp_path_factory):
    with knobs.scope(cache_dir=tmp_path_factory.mktemp("cache"), arch=None, schedule=None):
        yield


def lines(capsys):
    return dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())


# --- generate
def test_generate_writes_its_files_and_names_them(tmp_path, capsys):
    words = ["generate", *GELU, *SIZES, "-o", str(tmp_path)]
    assert main(words) == 0
    said = lines(capsys)
    assert said["code"] == str(tmp_path / "pg_gelu_add_matmul.cu")
    names = {path.name for path in tmp_path.iterdir()}
    stem = "pg_gelu_add_matmul"
    suffixes = ("cu", "cubin", "h", "json", "ptx", "tree.yaml")
    assert names == {f"{stem}.{suffix}" for suffix in suffixes}
    assert "0 B spilled" in said["compiled"] and "NVRTC" in said["compiled"]
    assert "shipped" in said["schedule"] and said["target"] == "sm_80"
    manifest = json.loads((tmp_path / f"{stem}.json").read_text())
    assert manifest["expression"] == "gelu(x @ w.T + b)"
    assert manifest["resources"]["spill_store_bytes"] == 0


def test_the_header_holds_the_command_as_a_shell_takes_it(tmp_path, capsys):
    words = ["generate", *GELU, *SIZES, "-o", "-"]
    assert main(words) == 0
    text = capsys.readouterr().out
    made = next(line for line in text.splitlines() if line.startswith("// made by: "))
    assert shlex.split(made.removeprefix("// made by: ")) == ["polygen", *words]


def test_a_command_stays_on_one_line():
    assert command_line(["generate", "a\nb\x1b"]) == r"polygen generate 'a\nb\x1b'"


def test_without_a_compiler_the_code_is_still_written(tmp_path, capsys, monkeypatch):
    def missing(*_, **__):
        raise errors.ToolchainMissing("there is no CUDA compiler NVRTC")

    monkeypatch.setattr(nvrtc, "identity", missing)
    monkeypatch.setattr(nvrtc, "library", missing)
    nvrtc.compiler_identity.cache_clear()
    assert main(["generate", *GELU, *SIZES, "--name", "up", "-o", str(tmp_path)]) == 0
    nvrtc.compiler_identity.cache_clear()
    assert lines(capsys)["compiled"].startswith("not compiled: there is no CUDA compiler")
    text = (tmp_path / "pg_up.cu").read_text()
    assert text.startswith("// not compiled") and "__global__" in text
    assert json.loads((tmp_path / "pg_up.json").read_text())["resources"] is None


def test_options_reach_the_kernel(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'format = 1\nname = "mine"\n[tile.cta]\nm = 64\nn = 64\nk = 32\n'
        "[tile.warp]\nm = 32\nn = 32\n"
    )
    words = ["show", "x @ w.T, x @ w.T", "x:f16[M,K]", "w:f16[N,K]", "--arch", "sm_89"]
    words += ["--size", "M=64", "--size", "N=96", "K=128", "--static", "K", "--acc-dtype", "f16"]
    words += ["--out-dtype", "f32", "f16", "--schedule", str(file), "--name", "two"]
    options = arguments.parser().parse_args(words)
    options.command = "none"
    kernel = load.kernel(options)
    program = kernel.program
    assert program.name == "two" and program.sizes == ("M", "N")
    assert [t.dtype.name for t in program.outputs] == ["f32", "f16"]
    assert program.contractions[0].dtype.name == "f16"
    assert kernel.schedule.name == "mine" and kernel.schedule_origin == f"file {file}"
    assert kernel.passes.plan.device.name == "sm_89"


# --- programs
@pytest.fixture
def model(tmp_path):
    file = tmp_path / "model.py"
    (tmp_path / "helper_of_model.py").write_text("SCALE = 2.0\n")
    file.write_text(
        "import polygen as pg\nfrom helper_of_model import SCALE\n"
        "@pg.fuse\ndef up(x, w):\n    return pg.relu(x @ w) * SCALE\n"
        "def plain(x, w):\n    return x @ w.T\n"
    )
    return file


@pytest.mark.parametrize(("name", "shown"), [("up", "relu"), ("plain", "x @ w.T")])
def test_a_function_of_a_file(model, capsys, name, shown):
    path = list(sys.path)
    words = ["show", f"{model}:{name}", "f16[M,K]", "f16[K,N]", "--arch", "sm_80"]
    if name == "plain":
        words[3] = "w:f16[N,K]"
    assert main([*words, "--stage", "program"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{name}: ") and shown in text
    assert sys.path == path


def test_a_decorated_function_under_another_name(model):
    renamed = load.fused(f"{model}:up", [], "other")
    assert isinstance(renamed, Fused) and renamed.name == "other"


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("gelu(x @ w.T + b)", "gelu_add_matmul"),
        ("np.maximum(x @ w, 0)", "maximum_matmul"),
        ("-(x @ w) / 2", "div_neg_matmul"),
        ("x @ w, relu(x @ w)", "matmul_relu_matmul"),
        ("x", "fused"),
        (" + ".join(["x @ w"] * 9), "add_add_add_add_add_add_add_add_matmul_m"),
    ],
)
def test_a_name_is_derived_from_the_operations(expression, name):
    assert load.derived_name(expression) == name


# --- show, check, run
@pytest.mark.parametrize(
    ("stage", "piece"),
    [
        ("program", "outer coincident band"),
        ("scop", "S0"),
        ("tree", "tiles that execute them"),
        ("ast", "copy_a("),
        ("plan", "barriers:"),
        ("cuda", "__global__"),
        ("ptx", ".visible .entry pg_gelu_add_matmul"),
    ],
)
def test_show_prints_a_stage(stage, piece, capsys):
    assert main(["show", *GELU, *SIZES, "--stage", stage]) == 0
    out = capsys.readouterr().out
    assert piece in out and "\x1b" not in out


def test_show_prints_the_plan_by_default(capsys):
    assert main(["show", *GELU, *SIZES]) == 0
    plan = capsys.readouterr().out
    assert plan.startswith("computes:") and "\nbarriers:\n  bar_" in plan


def test_check_proves_and_runs(capsys):
    assert main(["check", *GELU, *SIZES]) == 0
    out = capsys.readouterr().out
    assert out.count("proved: ") > 5 and "no findings" in out


def test_check_exits_with_1_and_reports_each_finding(capsys, monkeypatch):
    from polygen.check import CheckReport
    from polygen.kernel import Kernel

    finding = Finding("race-write-read", "thread 3 reads too early", "PTX line 7", 2)
    report = CheckReport((), (("M", 8),), "differs from NumPy", (finding,))
    monkeypatch.setattr(Kernel, "check", lambda self, **rest: report)
    assert main(["check", *GELU, *SIZES, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is False and found["sizes"] == {"M": 8}
    assert found["findings"] == [
        {
            "code": "race-write-read",
            "sentence": "thread 3 reads too early",
            "where": "PTX line 7",
            "count": 2,
            "story": [],
        }
    ]


def emulated(monkeypatch, spoil):
    """Let `run` work on the PTX machine: the kernel's own code, host arrays, made-up times."""
    from polygen.kernel import Kernel

    def call(self, *operands, out=None, stream=None):
        result = self.emulate(*operands) if out is None else out
        spoil(result)
        return result

    monkeypatch.setattr(Kernel, "__call__", call)
    monkeypatch.setattr(trial, "cupy_driver", lambda: None)
    monkeypatch.setattr(trial, "to_gpu", lambda array: array)
    monkeypatch.setattr(trial, "to_host", lambda array: array)
    monkeypatch.setattr(trial, "device_name", lambda: "the PTX machine")
    monkeypatch.setattr(trial, "milliseconds", lambda launch: [2.0, 1.0, 4.0])


def test_run_compares_and_reports(capsys, monkeypatch):
    emulated(monkeypatch, lambda result: None)
    assert main(["run", *GELU, *SIZES, "--json", "--seed", "3"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] and report["seed"] == 3 and report["sizes"] == {"M": 64, "K": 128, "N": 96}
    assert report["milliseconds"] == {"median": 2.0, "minimum": 1.0}
    assert report["tflops"] == pytest.approx(2 * 64 * 96 * 128 / 2e-3 / 1e12)
    assert 0 < report["outputs"][0]["fraction_of_bound"] < 1


def test_run_exits_with_1_when_one_element_is_wrong(capsys, monkeypatch):
    def spoil(result):
        result[5, 7] += np.float32(0.125)

    emulated(monkeypatch, spoil)
    assert main(["run", *GELU, *SIZES]) == 1
    assert "1 elements WRONG" in capsys.readouterr().out


# --- the bound
def expected(text, operands, sizes, seed=0):
    names = [operand.partition(":")[0] for operand in operands]
    program = Fused(parse_expression(text, names), "f", text, False).program(*operands)
    values = trial.random_operands(program, sizes, seed)
    arrays = {t.name: v for t, v in zip(program.inputs, values, strict=True)}
    return accuracy.expected(program, arrays, sizes, 16)[0], arrays


def test_the_bound_catches_one_missing_product():
    sizes = {"M": 40, "N": 24, "K": 256}
    want, arrays = expected("x @ w", ("x:f16[M,K]", "w:f16[K,N]"), sizes)
    x, w = (arrays[name].astype(np.float64) for name in "xw")
    right = (x @ w).astype(np.float16)
    assert want.compare(right)[1] < 1
    x[:, 17] = 0
    assert want.compare((x @ w).astype(np.float16))[2] > 0.5 * right.size


def test_an_unwritten_element_is_wrong():
    want, _ = expected("x @ w", ("x:f16[M,K]", "w:f16[K,N]"), {"M": 8, "N": 8, "K": 8})
    found = want.value.astype(np.float16)
    found[2, 3] = np.nan
    assert want.compare(found)[2] == 1


def test_elements_next_to_a_pole_are_not_compared():
    want, _ = expected("log(x @ w)", ("x:f16[M,K]", "w:f16[K,N]"), {"M": 16, "N": 16, "K": 16})
    negative = np.isnan(want.value)
    assert 50 < negative.sum() < 200
    error, ratio, wrong = want.compare(np.where(negative, 7.0, want.value))
    assert (error, ratio, wrong) == (0.0, 0.0, 0)


def test_tf32_data_has_all_mantissa_bits_and_layouts_are_declared():
    operands = ("x:tf32[M,K]:col", "w:tf32[K,N]")
    _, arrays = expected("x @ w", operands, {"M": 8, "N": 8, "K": 16})
    assert (arrays["x"].view(np.uint32) & 0x1FFF).any()
    assert arrays["x"].flags.f_contiguous and arrays["w"].flags.c_contiguous


def test_the_bound_takes_tf32_operands_rounded_and_not_cut():
    sizes = {"M": 16, "N": 8, "K": 64}
    operands = ("x:tf32[M,K]", "w:tf32[N,K]", "s:f32")
    program = Fused(parse_expression("s * (x @ w.T) + 1", "xws"), "f", "f", False).program(
        *operands
    )
    generator = np.random.default_rng(0)
    x, w = (generator.random(shape, np.float32) for shape in ((16, 64), (8, 64)))
    x[3, 5] = 1 + 2.0**-11  # as near to 1 as to the next number
    arrays = {"x": x, "w": w, "s": 2.0}
    (want,) = accuracy.expected(program, arrays, sizes, 8)

    def result(rounded):
        products = [rounded(one.view(np.uint32)).view(np.float32).astype(float) for one in (x, w)]
        return (2 * (products[0] @ products[1].T) + 1).astype(np.float32)

    assert want.compare(result(lambda bits: bits + 0x0FFF + (bits >> 13 & 1) & 0xFFFFE000))[2] == 0
    assert want.compare(result(lambda bits: bits + 0x1000 & 0xFFFFE000))[2] == 0  # ties away
    assert want.compare(result(lambda bits: bits & 0xFFFFE000))[2] > 100  # of 128
    assert want.compare(result(lambda bits: bits))[2] > 0  # and not f32 either


# --- targets, env, cache
def test_targets(capsys):
    assert main(["targets"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert len(table) == 1 + len(devices()) and "mma_m8n8k4" in table[1]
    assert main(["targets", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [d["name"] for d in found] == [d.name for d in devices()]
    assert found[0]["schedule_families"] == ["sm_70"]


def test_env(capsys):
    assert main(["env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["numpy"] == np.__version__ and "gpus" in found
    assert main(["env"]) == 0
    assert f"numpy            {np.__version__}" in capsys.readouterr().out


def test_cache_info_and_clear(tmp_path, capsys):
    with knobs.scope(cache_dir=tmp_path):
        assert main(["generate", *GELU, *SIZES, "-o", str(tmp_path / "out")]) == 0
        capsys.readouterr()
        assert main(["cache", "info"]) == 0
        assert f"{tmp_path}: 1 kernels" in capsys.readouterr().out
        assert main(["cache", "clear"]) == 0
        assert capsys.readouterr().out == f"1 kernels removed from {tmp_path}\n"
        assert cache.info().entries == 0


# --- terminals and processes
@pytest.mark.parametrize(
    ("no_color", "terminal", "fancy"), [("", True, True), ("1", True, False), ("", False, False)]
)
def test_colour_needs_a_terminal_and_no_no_color(monkeypatch, no_color, terminal, fancy):
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    assert output.fancy() is fancy


def test_tables_and_code_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(output, "fancy", lambda: True)
    output.print_table(("a", "b"), [("1", "2")])
    output.print_code("__global__ void f();", "cuda")
    out = capsys.readouterr().out
    assert "1" in out and "void" in out


def polygen(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "polygen", *words],
        capture_output=True, text=True, env={**os.environ, **environment}, check=False, timeout=600,
    )  # fmt: skip


def test_the_module_is_the_command():
    done = polygen("targets")
    assert (done.returncode, done.stderr) == (0, "") and "sm_90a" in done.stdout


def test_a_closed_pipe_is_no_error():
    command = f"{shlex.quote(sys.executable)} -m polygen targets --json | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "[\n", "")
