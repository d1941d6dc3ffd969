# ruff: noqa: E501 - CUDA text
"""`polygen check` on kernels that polygen did not make: launch files, reports, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from machine.wgmma_text import wgmma_function

from polygen.cli import main
from polygen.cli.check_arrays import arguments
from polygen.cli.check_launch import ArrayArgument, LaunchFile, MapArgument, load_launch
from polygen.errors import CompileError, LaunchFileError
from polygen.machine import TensorMap, waves
from polygen.runtime import toolkit
from polygen.runtime.outside import compile_ptx

KERNELS = Path(__file__).parents[1] / "machine" / "kernels"
LAUNCH = str(KERNELS / "sum.toml")
ONE = 'format = 1\narch = "sm_80"\ngrid = [1]\nblock = [32]\n'
ARRAY = '[[argument]]\nkind = "array"\ndtype = "s32"\nshape = [32]\n'


def line_of(path: Path, text: str) -> int:
    return next(n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line)


def written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


# --- reports -------------------------------------------------------------------------------------
def test_the_two_lines_of_a_race_are_named(capsys):
    path = KERNELS / "sum_race.cu"
    assert main(["check", str(path), LAUNCH]) == 1
    out = capsys.readouterr().out
    reads, writes = line_of(path, "other = part"), line_of(path, "+= other")
    assert "FOUND race-write-read: a read is not ordered after a write" in out
    assert f"  at   sum_race.cu:{reads} `const float other = part[thread + step];`" in out
    assert f"  and  sum_race.cu:{writes} `part[thread] += other;`" in out
    assert "1 array(s) equal" in out, "the race does not show in the values"


def test_the_kernel_with_the_barrier_is_silent(capsys):
    assert main(["check", str(KERNELS / "sum.cu"), LAUNCH]) == 0
    out = capsys.readouterr().out
    assert out.endswith("1 array(s) equal what the launch file expects\nno findings\n")
    path = KERNELS / "sum.cu"
    assert f"global  128 sectors, ideal 128: sum.cu:{line_of(path, '= x[')} `part[thread]" in out
    assert "FOUND" not in out


def test_progress_is_for_terminals(capsys, monkeypatch):
    words = ["check", str(KERNELS / "sum.cu"), LAUNCH]
    assert main(words) == 0 and capsys.readouterr().err == ""
    monkeypatch.setattr(waves, "WAVE_THREADS", 256)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert main(words) == 0
    said = capsys.readouterr().err
    assert "1 of 4 blocks" in said and said.endswith("3 of 4 blocks\r\x1b[K")


def test_processes_change_nothing_in_the_report(capsys, monkeypatch):
    monkeypatch.setattr(waves, "WAVE_THREADS", 256)
    words = ["check", str(KERNELS / "sum_race.cu"), LAUNCH]
    assert main(words) == 1
    alone = capsys.readouterr().out
    monkeypatch.setattr(waves, "_one_by_one", None)
    assert main([*words, "--workers", "3"]) == 1
    assert capsys.readouterr().out == alone


@pytest.mark.parametrize("number", ["0", "-1", "two", "1e3"])
def test_a_number_of_processes_is_one(number, capsys):
    assert main(["check", "sum.cu", LAUNCH, "--workers", number]) == 2
    assert "is not a number from 1 to 999999" in capsys.readouterr().err


def test_json_holds_the_same(capsys):
    path = KERNELS / "sum_race.cu"
    assert main(["check", str(path), LAUNCH, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is False and found["grid"] == [4, 1, 1] and found["block"] == [256, 1, 1]
    first = found["findings"][0]
    assert first["code"] == "race-write-read" and first["count"] > 0
    assert [(place["file"], place["line"], place["text"]) for place in first["places"]] == [
        ("sum_race.cu", line_of(path, "other = part"), "const float other = part[thread + step];"),
        ("sum_race.cu", line_of(path, "+= other"), "part[thread] += other;"),
    ]
    assert all(row["actual"] >= row["ideal"] > 0 and row["places"] for row in found["profile"])


def test_ptx_is_taken_as_it_is(tmp_path, capsys):
    ptx = written(tmp_path, "sum.ptx", compile_ptx(KERNELS / "sum_race.cu", "sm_80"))
    assert main(["check", ptx, LAUNCH]) == 1
    out = capsys.readouterr().out
    assert (
        "ran sum.ptx" in out
        and f"sum_race.cu:{line_of(KERNELS / 'sum_race.cu', '+= other')}" in out
    )


def test_bank_conflicts_are_counted_against_the_ideal(tmp_path, capsys):
    text = """extern "C" __global__ void k(int* out) {
  __shared__ int s[32][32];
  for (int i = 0; i < 32; i++) s[i][threadIdx.x] = i * 32 + threadIdx.x;
  __syncwarp();
  int sum = 0;
  for (int i = 0; i < 32; i++) sum += s[threadIdx.x][i];
  out[threadIdx.x] = sum;
}"""
    file = written(tmp_path, "k.cu", text)
    launch = written(tmp_path, "k.toml", ONE + "profile = true\n" + ARRAY)
    assert main(["check", file, launch]) == 0
    out = capsys.readouterr().out
    assert "shared  32 wavefronts, ideal 32: k.cu:3" in out
    row = next(line for line in out.splitlines() if "k.cu:6" in line)
    assert row.startswith("shared") and "times the ideal)" in row


def test_a_wrong_value_is_a_finding(tmp_path, capsys):
    text = 'extern "C" __global__ void k(int* x) { x[threadIdx.x] *= 2; }'
    file = written(tmp_path, "k.cu", text)
    wanted = 2 * np.arange(32)
    np.save(tmp_path / "wanted.npy", wanted)
    launch = written(tmp_path, "k.toml", ONE + ARRAY + 'fill = "iota"\nexpect = "wanted.npy"\n')
    assert main(["check", file, launch]) == 0
    wanted[7:9] += 1
    np.save(tmp_path / "wanted.npy", wanted)
    capsys.readouterr()
    assert main(["check", file, launch]) == 1
    out = capsys.readouterr().out
    assert "FOUND wrong-value" in out and "(2 times)" in out
    assert "element [7] is 14, expected 15" in out


def test_tensor_maps_of_a_hopper_kernel(tmp_path, capsys):
    front = wgmma_function("multiply_128", 128, 16, "f32.bf16.bf16")
    file = written(tmp_path, "gemm.cu", front + (KERNELS / "gemm_tma_wgmma.cu").read_text())
    random = np.random.default_rng(0)
    a, b = random.integers(-3, 4, (2, 128, 96))
    np.save(tmp_path / "a.npy", a.astype(np.float32))
    np.save(tmp_path / "b.npy", b.astype(ml_dtypes.bfloat16))
    np.save(tmp_path / "d.npy", np.maximum(a @ b.T, 0).astype(np.float32))
    maps = "".join(
        f'[[argument]]\nkind = "tensor-map"\ndtype = "bf16"\nshape = {shape}\nbox = [128, 64]\n'
        f"swizzle = 128\n{rest}\n"
        for shape, rest in (
            ("[128, 96]", 'fill = "a.npy"'),
            ("[128, 96]", 'fill = "b.npy"'),
            ("[128, 128]", 'fill = "nan"\nexpect = "d.npy"'),
        )
    )
    bias = '[[argument]]\nkind = "array"\ndtype = "f32"\nshape = [128]\nfill = "zeros"\n'
    sizes = "".join(
        f'[[argument]]\nkind = "scalar"\ndtype = "s32"\nvalue = {n}\n' for n in (128, 128, 96)
    )
    head = 'format = 1\nentry = "gemm"\ngrid = [1, 1]\nblock = [384]\n'
    head += f"shared_bytes = {4 * 32768 + 48}\n"
    for completion in ("late", "early", "random"):
        text = f'{head}completion = "{completion}"\n{maps}{bias}{sizes}'
        launch = written(tmp_path, "gemm.toml", text)
        assert main(["check", file, launch, "--arch", "sm_90a"]) == 0, capsys.readouterr().out
    assert "1 array(s) equal" in capsys.readouterr().out


def test_a_draft_of_a_map_of_five_dims_is_small(tmp_path, capsys):
    source = """
struct __align__(64) Map { unsigned long long words[16]; };
extern "C" __global__ void k(const __grid_constant__ Map map) {
  asm volatile("prefetch.tensormap [%0];" :: "l"(&map));
  asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1, %1, %1, %1, %1}];" :: "l"(&map), "r"(0));
}"""
    assert main(["check", written(tmp_path, "five.cu", source), "--arch", "sm_90a"]) == 0
    draft = capsys.readouterr().out
    assert "shape = [2, 2, 2, 128, 128]" in draft and "box = [1, 1, 1, 64, 64]" in draft
    path = Path(written(tmp_path, "five.toml", draft))
    ((made,), _) = arguments(load_launch(path), path)
    assert made.array.shape == (2, 2, 2, 128, 128)


# --- launch files --------------------------------------------------------------------------------
def test_arrays_are_filled_as_asked(tmp_path):
    text = ONE + ARRAY + "seed = 3\nlow = 0\nhigh = 1\n"
    text += '[[argument]]\nkind = "tensor-map"\nof = 0\nbox = [8]\nnan_fill = true\nevery = [1]\n'
    text += '[[argument]]\nkind = "array"\ndtype = "bf16"\nshape = [2, 2]\nfill = "nan"\n'
    text += '[[argument]]\nkind = "array"\ndtype = "u8"\nshape = [9]\nseed = 1\n'
    path = Path(written(tmp_path, "l.toml", text))
    launch = load_launch(path)
    assert isinstance(launch, LaunchFile) and isinstance(launch.arguments[1], MapArgument)
    assert launch.arguments[0] == ArrayArgument("s32", (32,), seed=3, low=0, high=1)
    (x, tensor_map, y, z), expected = arguments(launch, path)
    assert x.dtype == np.int32 and set(x.tolist()) == {0, 1}
    assert isinstance(tensor_map, TensorMap) and tensor_map.array is x and tensor_map.nan_fill
    assert tensor_map.every == (1,)
    assert y.dtype == ml_dtypes.bfloat16 and np.isnan(y.astype(np.float32)).all()
    assert z.dtype == np.uint8 and z.max() <= 4
    assert expected == [None] * 4


def test_tensor_maps_of_tf32_round_and_others_do_not(tmp_path):
    array = '[[argument]]\nkind = "array"\ndtype = "{0}"\nshape = [16]\n'
    beside = '[[argument]]\nkind = "tensor-map"\nof = {1}\nbox = [8]\n'
    own = '[[argument]]\nkind = "tensor-map"\ndtype = "{0}"\nshape = [16]\nbox = [8]\n'
    text = ONE + "".join(
        part.format(dtype, at)
        for at, dtype in ((0, "tf32"), (3, "f32"))
        for part in (array, beside, own)
    )
    path = Path(written(tmp_path, "l.toml", text))
    made, _ = arguments(load_launch(path), path)
    assert [one.kind for one in made if isinstance(one, TensorMap)] == ["tf32", "tf32", "", ""]


MISTAKES = [
    ('format = 1\n', "format = 2\n", ["format: 2 cannot be read. Write format = 1"]),
    ('format = 1\n', "", ["format: missing"]),
    ("grid = [1]", "gird = [1]", ["gird: unknown key. Nearest legal: 'grid'", "grid: missing"]),
    ("grid = [1]", "grid = [0]", ["grid: [0] is not one to three positive numbers"]),
    ("grid = [1]", "grid = 1", ["grid: 1 is not a list of integers"]),
    ("grid = [1]", 'grid = [1]\nshared_bytes = -1', ["shared_bytes: -1 is negative"]),
    ("grid = [1]", 'grid = [1]\nshared_bytes = "x"', ["shared_bytes: 'x' is not an integer"]),
    ("grid = [1]", 'grid = [1]\nprofile = 1', ["profile: 1 is not true or false"]),
    ("grid = [1]", 'grid = [1]\nentry = 1', ["entry: 1 is not a string"]),
    ("grid = [1]", 'grid = [1]\ncompletion = "lat"', ["Nearest legal: 'late'. Legal: late, early"]),
    ('arch = "sm_80"', 'arch = "sm_8"', ["arch: unknown architecture 'sm_8'. Nearest: "]),
    ('"array"', '"arry"', ["argument[0].kind: 'arry' is unknown. Nearest legal: 'array'"]),
    ('kind = "array"\n', "", ["argument[0].kind: missing"]),
    ('"s32"', '"s31"', ["argument[0].dtype: 's31' is unknown. Nearest legal: 's32'"]),
    ("shape = [32]", "shape = []", ["argument[0].shape: [] is not a list of positive numbers"]),
    ("shape = [32]", "shape = [65536, 65536]", ["has 4294967296 elements", "Nearest legal: 1073741824"]),
    ("shape = [32]", 'shape = [32]\nfill = "ones"', ["argument[0].fill: 'ones' is unknown"]),
    ("shape = [32]", 'shape = [32]\nfill = "nan"', ["argument[0].fill: s32 has no NaN"]),
    ("shape = [32]", 'shape = [32]\nfill = "no.npy"', ["argument[0].fill: no.npy cannot be read"]),
    ("shape = [32]", 'shape = [32]\nfill = "two.npy"', ["two.npy has shape (2,), not (32,)"]),
    ("shape = [2]", 'shape = [2]\nfill = "words.npy"', ["words.npy holds <U3, not s32"]),
    ("shape = [32]", 'shape = [32]\nexpect = "a"', ["argument[0].expect: 'a' is not an .npy file"]),
    ("shape = [32]", 'shape = [32]\nlow = 9', ["argument[0].low: 9 is more than high = 4"]),
    ('"array"', '"scalar"', ["argument[0].shape: unknown key", "argument[0].value: missing"]),
    ('"array"\ndtype = "s32"\nshape = [32]', '"scalar"\ndtype = "u8"\nvalue = 256',
     ["argument[0].value: 256 is no u8"]),
    ('"array"\ndtype = "s32"\nshape = [32]', '"tensor-map"\nbox = [0]\nof = 4\nswizzle = 5',
     ["argument[0].box: [0]", "argument[0].of: argument 4 is no array. Legal: none",
      "argument[0].swizzle: 5 is not one of"]),
    ('"array"\ndtype = "s32"\nshape = [32]', '"tensor-map"\nbox = [8]',
     ["argument[0].of: missing. Name an array argument"]),
    ('"array"', '"tensor-map"\nbox = [8]\nof = 0', ["dtype and shape are its own"]),
    ("[[argument]]", "[argument]", ["argument: is not a list of tables. Write [[argument]]"]),
    ("grid = [1]", "grid = [1", ["not TOML"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "replacement", "words"), MISTAKES)
def test_mistakes_are_named_with_their_paths(tmp_path, text, replacement, words):
    np.save(tmp_path / "two.npy", np.zeros(2))
    np.save(tmp_path / "words.npy", np.array(["one", "two"]))
    good = ONE + (ARRAY if "[2]" not in text else ARRAY.replace("[32]", "[2]"))
    assert text in good
    path = Path(written(tmp_path, "l.toml", good.replace(text, replacement, 1)))
    with pytest.raises(LaunchFileError) as caught:
        arguments(load_launch(path), path)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_all_mistakes_come_at_once(tmp_path):
    text = 'format = 1\ngrid = [0]\nblock = "x"\ncompletion = "never"\n'
    text += '[[argument]]\nkind = "array"\ndtype = "f15"\nshape = [0]\ncolour = 1\n'
    with pytest.raises(LaunchFileError) as caught:
        load_launch(Path(written(tmp_path, "l.toml", text)))
    found = [problem.split(":")[0] for problem in caught.value.problems]
    assert sorted(found) == [
        "argument[0].colour", "argument[0].dtype", "argument[0].shape",
        "block", "completion", "grid",
    ]  # fmt: skip


# --- wrong usage ---------------------------------------------------------------------------------
CU = str(KERNELS / "sum.cu")
USAGE = [
    ([CU], "no target to compile for"),
    (
        [CU, "--arch", "sm_80", "--name", "product"],
        "no kernel named product. --name with one of sum",
    ),
    ([CU, LAUNCH, "--format", "xml"], "invalid choice: 'xml'"),
    (["x @ w"], "the following arguments are required: OPERAND"),
    (["x @ w", "x:f16[M,K]", "w:f16[K,N]", "--explain"], "--explain is about kernel files"),
    ([CU, "x:f16[M]"], "sum.cu needs one launch file. Write polygen check sum.cu LAUNCH.toml"),
    ([CU, LAUNCH, "--size", "M=3"], "--size is about an expression"),
    ([CU, "none.toml"], "none.toml: 1 problem(s)\n  - cannot be read"),
    (["none.cu", LAUNCH], "none.cu: cannot be read"),
    (["none.cu"], "none.cu: cannot be read: there is none"),
    (["none.ptx", LAUNCH], "none.ptx: cannot be read"),
    ([CU, LAUNCH, "--arch", "sm_1"], "unknown architecture 'sm_1'"),
    ([CU, LAUNCH, "--name", "product"], "no kernel named product. The PTX has sum"),
]


@pytest.mark.parametrize(("words", "message"), USAGE)
def test_wrong_usage_exits_with_2(words, message, capsys):
    assert main(["check", *words]) == 2
    said = capsys.readouterr()
    assert message in said.err and said.out == ""


def test_a_file_without_a_target_or_with_an_error(tmp_path, capsys):
    file = written(tmp_path, "k.cu", 'extern "C" __global__ void k(int* x) {\n  y = 3;\n}\n')
    launch = written(tmp_path, "k.toml", ONE.replace('arch = "sm_80"\n', "") + ARRAY)
    assert main(["check", file, launch]) == 2
    assert 'Write arch = "sm_80" in the launch file' in capsys.readouterr().err
    assert main(["check", file, launch, "--arch", "sm_80"]) == 2
    error = capsys.readouterr().err
    assert 'k.cu, line 2: NVRTC says: identifier "y" is undefined' in error
    assert "> 2 |   y = 3;" in error


def test_malformed_ptx_names_its_line(tmp_path, capsys):
    ptx = compile_ptx(KERNELS / "sum.cu", "sm_80").replace("bar.sync", "bar.snyc")
    assert main(["check", written(tmp_path, "k.ptx", ptx), LAUNCH]) == 2
    assert "PTX line" in capsys.readouterr().err


def test_a_file_may_include_what_lies_beside_it_and_the_toolkit(tmp_path, capsys):
    written(tmp_path, "two.h", "#define TWO 2\n")
    text = '#include "two.h"\n#include <cuda_fp16.h>\n'
    text += 'extern "C" __global__ void k(int* x) { x[threadIdx.x] *= TWO; }\n'
    file = written(tmp_path, "k.cu", text)
    assert main(["check", file, written(tmp_path, "k.toml", ONE + ARRAY)]) == 0
    assert "no findings" in capsys.readouterr().out


# --- formats, stories, drafts --------------------------------------------------------------------
RACE = str(KERNELS / "sum_race.cu")


def test_a_finding_is_told_as_a_story(capsys):
    assert main(["check", RACE, LAUNCH, "--explain"]) == 1
    out = capsys.readouterr().out
    path = KERNELS / "sum_race.cu"
    writes, reads = line_of(path, "+= other"), line_of(path, "other = part")
    story = out[out.index("  1. ") : out.index("global ")]
    assert f"  1. sum_race.cu:{writes} (PTX line" in story and "writes it" in story
    assert "     > part[thread] += other;" in story
    assert "  2. there is a way from the one to the other with no barrier" in story
    assert f"  3. sum_race.cu:{reads} (PTX line" in story and "reads it" in story
    assert main(["check", RACE, LAUNCH]) == 1
    assert "  1. " not in capsys.readouterr().out


def test_a_barrier_that_does_not_order_is_named(tmp_path, capsys):
    text = """extern "C" __global__ void k(int* x) {
  __shared__ int s[64]; const int t = threadIdx.x;
  s[t] = x[t];
  asm volatile("bar.sync 1, 32;" ::: "memory");
  x[t] = s[63 - t];
}"""
    launch = ONE.replace("[32]", "[64]") + ARRAY.replace("[32]", "[64]")
    file = written(tmp_path, "k.cu", text)
    assert main(["check", file, written(tmp_path, "k.toml", launch), "--explain"]) == 1
    out = capsys.readouterr().out
    assert "between them stand `bar.sync 1, 32` (k.cu:4, PTX line" in out
    assert "which do not order these threads here" in out


def test_sarif_has_one_result_per_pair_of_lines(capsys):
    assert main(["check", RACE, LAUNCH, "--format", "sarif"]) == 1
    log = json.loads(capsys.readouterr().out)
    (run,) = log["runs"]
    assert log["version"] == "2.1.0" and run["tool"]["driver"]["name"] == "polygen"
    (result,) = run["results"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == [result["ruleId"]]
    place = result["locations"][0]["physicalLocation"]
    path = KERNELS / "sum_race.cu"
    assert place["region"]["startLine"] == line_of(path, "other = part")
    assert place["artifactLocation"]["uri"] == path.as_posix()
    other = result["relatedLocations"][0]["physicalLocation"]
    assert other["region"]["startLine"] == line_of(path, "+= other")
    assert len(result["codeFlows"][0]["threadFlows"][0]["locations"]) == 4
    assert "(508 times)" in result["message"]["text"]


def test_annotations_of_github_stay_on_one_line(capsys):
    assert main(["check", RACE, LAUNCH, "--format", "github"]) == 1
    first, last = capsys.readouterr().out.splitlines()
    line = line_of(KERNELS / "sum_race.cu", "other = part")
    assert first.startswith("::error file=") and f",line={line},title=race-write-read%3A " in first
    assert "%0A" in first and "%25rd1" in first and last == "7 finding(s)"


def test_formats_of_a_kernel_without_findings(capsys):
    for name, wanted in (("github", "no findings\n"), ("json", '"ok": true')):
        assert main(["check", CU, LAUNCH, "--format", name]) == 0
        assert wanted in capsys.readouterr().out
    assert main(["check", CU, LAUNCH, "--format", "sarif"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["results"] == []


DRAFTED = """
struct Map { unsigned long long words[16]; };
extern __shared__ unsigned memory[];
extern "C" __global__ __launch_bounds__(96) void k(const __grid_constant__ Map map, const unsigned short* h, float* y, double* z, unsigned char* b, int n, float scale, long long step) {
  if (threadIdx.x == 0) asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %1, %1}];" :: "l"(&map), "r"(n));
  memory[threadIdx.x] = h[threadIdx.x * n] + (unsigned)step;
  y[threadIdx.x] = scale * memory[threadIdx.x]; z[threadIdx.x] += 1; b[n] = 1;
}"""


def test_a_launch_file_is_drafted(tmp_path, capsys):
    file = written(tmp_path, "k.cu", DRAFTED)
    assert main(["check", file, "--arch", "sm_90a"]) == 0
    text = capsys.readouterr().out
    launch = load_launch(Path(written(tmp_path, "k.toml", text)))
    assert (launch.arch, launch.entry, launch.block) == ("sm_90a", "k", (96,))
    assert launch.shared_bytes > 0
    kinds = [type(one).__name__.removesuffix("Argument").lower() for one in launch.arguments]
    assert kinds == ["map", "array", "array", "array", "array", "scalar", "scalar", "scalar"]
    assert [one.dtype for one in launch.arguments[1:]] == [
        "f16",
        "f32",
        "f64",
        "u8",
        "s32",
        "f32",
        "s64",
    ]
    assert len(launch.arguments[0].shape) == 3 and launch.arguments[2].fill == "nan"


def test_a_draft_launches_a_whole_cluster(tmp_path, capsys):
    """And a mark of the byte order, as some editors write it, is no text."""
    kernel = (
        'extern "C" __global__ void __cluster_dims__(2, 1, 1) k(int* x) { x[threadIdx.x] = 1; }'
    )
    file = written(tmp_path, "k.cu", "\ufeff" + kernel)
    assert main(["check", file, "--arch", "sm_90a"]) == 0
    launch = written(tmp_path, "k.toml", capsys.readouterr().out)
    assert load_launch(Path(launch)).grid == (2, 1, 1)
    assert main(["check", file, launch]) == 0


def test_the_block_may_be_that_of_the_launch_bounds(tmp_path, capsys):
    text = 'extern "C" __global__ BOUNDS void k(int* x) { x[threadIdx.x] = blockDim.x; }'
    launch = written(tmp_path, "k.toml", ONE.replace("block = [32]\n", "") + ARRAY)
    file = written(tmp_path, "k.cu", text.replace("BOUNDS", "__launch_bounds__(32)"))
    assert main(["check", file, launch, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["block"] == [32, 1, 1]
    assert main(["check", written(tmp_path, "k.cu", text.replace("BOUNDS", "")), launch]) == 2
    assert "block: missing, and k has no launch bounds" in capsys.readouterr().err


@pytest.mark.parametrize(
    "header, words",
    [
        ("cub/none.cuh", "pip install nvidia-cuda-cccl"),
        ("cutlass/gemm.h", "pip install nvidia-cutlass"),
        ("stdio.h", "NVRTC has no headers of the host"),
        ("mine.h", "Put it beside the file"),
    ],
)
def test_a_header_that_is_missing_names_its_package(tmp_path, header, words, monkeypatch):
    monkeypatch.setattr(toolkit, "nvcc", lambda: None)
    path = Path(written(tmp_path, "k.cu", f"#include <{header}>\n"))
    with pytest.raises(CompileError, match=f"there is no header <{header}>") as caught:
        compile_ptx(path, "sm_80")
    assert words in str(caught.value)


COOPERATIVE = """#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void k(int* x) {
  auto grid = cg::this_grid(); auto block = cg::this_thread_block();
  auto tile = cg::tiled_partition<8>(block);
  const int mine = grid.thread_rank();
  x[mine] = 1 + tile.shfl_down(mine, 1);
  SYNC
  if (mine < 32) x[64 + mine] = x[63 - mine];
}"""


@pytest.mark.skipif(not toolkit.libraries(), reason="no CCCL beside the compiler")
def test_cooperative_groups(tmp_path, capsys):
    launch = ONE.replace("[1]", "[2]") + ARRAY.replace("[32]", "[128]").replace(
        '"s32"', '"s32"\nfill = "zeros"'
    )
    launch = written(tmp_path, "k.toml", launch)
    assert (
        main(
            [
                "check",
                written(tmp_path, "k.cu", COOPERATIVE.replace("SYNC", "grid.sync();")),
                launch,
            ]
        )
        == 0
    )
    capsys.readouterr()
    assert (
        main(
            [
                "check",
                written(tmp_path, "k.cu", COOPERATIVE.replace("SYNC", "block.sync();")),
                launch,
            ]
        )
        == 1
    )
    assert "a thread of another block" in capsys.readouterr().out


def test_an_error_is_json_where_json_was_asked_for(capsys):
    assert main(["check", CU, "none.toml", "--format", "json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "LaunchFileError"
    assert main(["check", CU, "none.toml", "--format", "sarif"]) == 2
    assert capsys.readouterr().out == ""


IMAGES = """extern "C" __global__ void k(cudaTextureObject_t from, cudaSurfaceObject_t to, float* out) {
  const int x = threadIdx.x % 8, y = threadIdx.x / 8;
  out[threadIdx.x] = tex2D<float>(from, x + 0.5f, y + 0.5f);
  surf2Dwrite(4 * x + y, to, 4 * x, y);
}"""
TEXTURE = """
[[argument]]
kind = "texture"
dtype = "f32"
shape = [4, 8]
fill = "iota"
filter = "linear"
"""
SURFACE = """
[[argument]]
kind = "surface"
dtype = "s32"
shape = [4, 8]
fill = "zeros"
expect = "to.npy"
"""


def test_textures_and_surfaces(tmp_path, capsys):
    file = written(tmp_path, "k.cu", IMAGES)
    out = ARRAY.replace('"s32"', '"f32"') + 'expect = "out.npy"\n'
    launch = written(tmp_path, "k.toml", ONE + TEXTURE + SURFACE + out)
    np.save(tmp_path / "out.npy", np.arange(32, dtype=np.float32))
    to = (4 * np.arange(8) + np.arange(4)[:, None]).astype(np.int32)
    np.save(tmp_path / "to.npy", to)
    assert main(["check", file, launch, "--arch", "sm_80"]) == 0
    assert "2 array(s) equal" in capsys.readouterr().out
    np.save(tmp_path / "to.npy", to + 1)
    assert main(["check", file, launch, "--arch", "sm_80"]) == 1
    written(tmp_path, "k.toml", ONE + TEXTURE.replace("linear", "cubic") + SURFACE + out)
    assert main(["check", file, launch, "--arch", "sm_80"]) == 2
    assert "filter 'cubic'" in capsys.readouterr().err
    written(tmp_path, "k.toml", ONE + TEXTURE.replace("filter", "filters") + SURFACE + out)
    assert main(["check", file, launch, "--arch", "sm_80"]) == 2
    assert "unknown key. Nearest legal: 'filter'" in capsys.readouterr().err


def test_a_draft_has_textures_and_surfaces(tmp_path, capsys):
    file = written(tmp_path, "k.cu", IMAGES)
    assert main(["check", file, "--arch", "sm_80"]) == 0
    text = capsys.readouterr().out
    launch = load_launch(Path(written(tmp_path, "k.toml", text)))
    kinds = [type(one).__name__ for one in launch.arguments]
    assert kinds == ["TextureArgument", "SurfaceArgument", "ArrayArgument"]
    assert launch.arguments[0].dtype == "f32" and launch.arguments[1].dtype == "u32"
    assert main(["check", file, str(tmp_path / "k.toml")]) in (0, 1)
