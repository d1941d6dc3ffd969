"""The Python surface: compile, inspect, emulate, check, save; no GPU needed."""

import json
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from matrix import UNUSUAL, small

import polygen as pg
from polygen import knobs
from polygen.errors import ArgumentError
from polygen.frontend.dtypes import F16
from polygen.frontend.parse import parse_expression
from polygen.poly import ast
from polygen.runtime.arrays import ArrayView, storage_order
from polygen.schedule.load import dumps
from polygen.schedule.model import Schedule
from polygen.show import STAGES

BF16 = ml_dtypes.bfloat16
SIZES = {"M": 40, "N": 56, "K": 64}


@pg.fuse
def up(x, w, b):
    """Documented."""
    return pg.relu(x @ w.T + b)


SIGNATURE = ("bf16[M,K]", "bf16[N,K]", "f32[N]")


@pytest.fixture(scope="module")
def kernel():
    return up.compile(*SIGNATURE, arch="sm_80", sizes=SIZES)


def integers(shape, dtype, seed):
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32).astype(dtype)


def operands(m=40, n=56, k=64):
    return integers((m, k), BF16, 1), integers((n, k), BF16, 2), integers((n,), np.float32, 3)


def test_a_fused_function_keeps_its_name_and_documentation():
    assert up.__name__ == "up"
    assert up.__doc__ == "Documented."
    assert repr(up) == "<fused up(x, w, b)>"
    assert up.source == "pg.relu(x @ w.T + b)"


def test_the_reference_is_the_function_in_float64():
    x, w, b = operands()
    found = up.reference(x, w, b)
    assert found.dtype == np.float64
    wide = [a.astype(np.float64) for a in (x, w, b)]
    assert np.array_equal(found, np.maximum(wide[0] @ wide[1].T + wide[2], 0))


@pytest.mark.parametrize("shape", [(40, 56, 64), (1, 1, 8), (33, 8, 24), (129, 136, 200)])
def test_emulation_equals_numpy_for_every_size_of_the_alignment_class(kernel, shape):
    x, w, b = operands(*shape)
    found = kernel.emulate(x, w, b)
    assert found.dtype == BF16
    assert np.array_equal(found, up.reference(x, w, b).astype(np.float32).astype(BF16))


@pytest.mark.parametrize("shape", [(5, 7, 9), (17, 3, 30), (8, 12, 1), (1, 1, 1)])
def test_emulation_takes_less_aligned_arrays_with_a_sibling(kernel, shape):
    x, w, b = operands(*shape)
    found = kernel.emulate(x, w, b)
    assert np.array_equal(found, up.reference(x, w, b).astype(np.float32).astype(BF16))


def test_emulation_takes_any_leading_dimension(kernel):
    x, w, b = operands()
    wide = np.full((40, 96), np.nan, BF16)
    wide[:, :64] = x
    assert np.array_equal(kernel.emulate(wide[:, :64], w, b), kernel.emulate(x, w, b))


def test_a_check_reports_proofs_and_a_run(kernel):
    report = kernel.check()
    assert report.ok
    assert not report.findings
    assert report.comparison == "equal to NumPy, bit for bit"
    assert len(report.proofs) >= 10
    assert "no findings" in str(report)
    assert dict(report.sizes).keys() == {"M", "N", "K"}
    assert dict(kernel.check({"M": 24}).sizes)["M"] == 24


def test_several_outputs_come_as_a_tuple():
    @pg.fuse
    def both(x, w):
        y = x @ w
        return pg.relu(y), y * 2

    kernel = both.compile("f16[M,K]", "f16[K,N]", arch="sm_86", out_dtype=("f16", "f32"))
    x, w = integers((24, 32), np.float16, 1), integers((32, 16), np.float16, 2)
    first, second = kernel.emulate(x, w)
    product = x.astype(np.float64) @ w.astype(np.float64)
    assert first.dtype == np.float16
    assert second.dtype == np.float32
    assert np.array_equal(first, np.maximum(product, 0))
    assert np.array_equal(second, product * 2)


def test_run_time_scalars_are_arguments():
    @pg.fuse
    def scaled(x, w, s):
        return s * (x @ w)

    kernel = scaled.compile("f16[M,K]", "f16[K,N]", "f32", arch="sm_80")
    x, w = integers((16, 16), np.float16, 1), integers((16, 16), np.float16, 2)
    product = x.astype(np.float64) @ w.astype(np.float64)
    for factor in (2.0, -0.5):
        assert np.array_equal(kernel.emulate(x, w, factor), product * factor)


def test_static_dims_become_constants():
    kernel = up.compile(*SIGNATURE, arch="sm_80", sizes=SIZES, static=("K",))
    assert dict(kernel.passes.plan.extents)["k"] == 64
    assert [a.dim for a in kernel.passes.plan.arguments if a.kind == "size"] == ["M", "N"]
    x, w, b = operands()
    assert np.array_equal(kernel.emulate(x, w, b), up.compile(
        *SIGNATURE, arch="sm_80", sizes=SIZES).emulate(x, w, b))  # fmt: skip


# --- schedules -----------------------------------------------------------------------------------
def test_a_schedule_may_be_a_record_a_file_or_automatic(tmp_path):
    record = up.compile(*SIGNATURE, arch="sm_80", schedule=small())
    assert record.schedule == small()
    assert record.schedule_origin == "given: small"
    file = tmp_path / "one.toml"
    file.write_text(dumps(UNUSUAL["stages_2"]))
    read = up.compile(*SIGNATURE, arch="sm_80", schedule=file)
    assert read.schedule == UNUSUAL["stages_2"]
    assert str(file) in read.schedule_origin
    chosen = up.compile(*SIGNATURE, arch="sm_80", sizes=SIZES)
    assert isinstance(chosen.schedule, Schedule)
    assert "wave" in chosen.schedule_origin or "shipped" in chosen.schedule_origin


def test_larger_sizes_get_larger_tiles():
    def tile(size):
        sizes = dict.fromkeys("MNK", size)
        cta = up.compile(*SIGNATURE, arch="sm_80", sizes=sizes).schedule.tile.cta
        return cta.m * cta.n

    assert tile(64) < tile(8192)


def test_a_schedule_file_can_be_forced_by_a_knob(tmp_path):
    file = tmp_path / "forced.toml"
    file.write_text(dumps(UNUSUAL["stages_2"]))
    with knobs.scope(schedule=file):
        assert up.compile(*SIGNATURE, arch="sm_80").schedule == UNUSUAL["stages_2"]


# --- looking at a kernel -------------------------------------------------------------------------
@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage != "sass"])
def test_every_stage_prints(kernel, stage):
    text = kernel.show(stage)
    wanted = {
        "program": "S0", "scop": "flow dependences", "tree": "tiles that execute them",
        "ast": "for t = 0", "plan": "barriers:", "cost": "bound: ",
        "cuda": "__global__", "ptx": "mma.sync", "rewrite": "nothing is rewritten",
    }  # fmt: skip
    assert wanted[stage] in text


def test_the_plan_says_what_each_barrier_is_for(kernel):
    text = kernel.show("plan")
    assert str(kernel) == text
    assert "enforces" in text
    assert "(flow through ring_a)" in text
    for proof in kernel.passes.plan.proofs:
        assert str(proof) in text


def test_what_was_compiled(kernel):
    assert "0 B spilled" in str(kernel.resources)
    assert kernel.cubin[:4] == b"\x7fELF"
    assert ".entry pg_up" in kernel.ptx
    assert "mma.sync.aligned.m16n8k16" in kernel.ptx


def test_loops_of_the_source_are_those_of_isl(kernel):
    """Every statement of the generated loops appears in the CUDA text as a call."""
    text = ast.text(kernel.passes.plan.loops)
    for name in ("copy_a", "copy_b", "load_a", "load_b", "mma", "stage", "store"):
        if f"{name}(" in text:
            assert f"{name}(" in kernel.source


# --- saving it -----------------------------------------------------------------------------------
def test_saving_writes_code_header_binary_and_manifest(kernel, tmp_path):
    path = kernel.save(tmp_path)
    names = sorted(file.name.partition(".")[2] for file in tmp_path.iterdir())
    assert names == ["cu", "cubin", "h", "json", "ptx", "tree.yaml"]
    assert (tmp_path / "pg_up.h").read_text() == kernel.header
    assert (tmp_path / "pg_up.cubin").read_bytes() == kernel.cubin
    assert path == tmp_path / "pg_up.cu"
    assert kernel.source in path.read_text()
    manifest = json.loads((tmp_path / "pg_up.json").read_text())
    assert manifest["entry"] == "pg_up"
    assert manifest["target"] == "sm_80"
    assert [a["name"] for a in manifest["arguments"]][:4] == ["x", "w", "b", "y0"]
    assert manifest["schedule"]["tile"]["cta"]["m"] == kernel.schedule.tile.cta.m
    assert any("barrier" in proof for proof in manifest["proofs"])


def test_the_header_tells_how_the_kernel_was_made():
    command = 'polygen generate "relu(x @ w.T + b)"'
    kernel = up.compile(*SIGNATURE, arch="sm_80", schedule=small(), command=command)
    head = kernel.source[: kernel.source.index("*/")] if "*/" in kernel.source else kernel.source
    for part in ("pg.relu(x @ w.T + b)", "sm_80", "stages = 3", command):
        assert part in head, part


# --- where it comes from -------------------------------------------------------------------------
def test_an_expression_and_a_function_are_the_same_program():
    function = parse_expression("relu(x @ w.T + b)", ("x", "w", "b"))
    spelt = pg.fuse(function, name="up").program(*SIGNATURE)
    assert spelt.statements == up.program(*SIGNATURE).statements


def test_numpy_functions_are_the_same_program():
    @pg.fuse
    def up_numpy(x, w, b):
        return np.maximum(x @ w.T + b, 0)

    assert up_numpy.program(*SIGNATURE).statements == up.program(*SIGNATURE).statements


def test_importing_starts_nothing():
    code = (
        "import sys, polygen; "
        "print(*(name for name in ('cupy', 'torch', 'polygen.cli') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(("m", "n"), [(1, 9), (9, 1), (1, 1)])
def test_single_rows_and_columns_as_numbers(m, n):
    compiled = up.compile(f"bf16[{m},24]", f"bf16[{n},24]", f"f32[{n}]", arch="sm_80")
    given = operands(m, n, 24)
    assert np.array_equal(compiled.emulate(*given).astype(np.float64), up.reference(*given))


@pytest.mark.parametrize(("dtype", "k"), [("s8", 7), ("s8", 10), ("e4m3", 21)])
def test_unaligned_operands_of_one_byte(dtype, k):
    scaled = pg.fuse(lambda x, w, b: (x @ w.T) * 0.5 + b, name="scaled")
    compiled = scaled.compile(
        f"{dtype}[M,K]", f"{dtype}[N,K]", "f32[N]",
        arch="sm_89", sizes={"M": 5, "N": 9, "K": k}, out_dtype="f32",
    )  # fmt: skip
    stored = compiled.program.inputs[0].dtype.numpy
    given = integers((5, k), stored, 1), integers((9, k), stored, 2), integers((9,), np.float32, 3)
    run = compiled.emulation(*given)
    assert not run.report.findings
    assert np.array_equal(run.results, scaled.reference(*given))


def test_sizes_targets_and_static_dims_in_other_forms():
    compiled = up.compile(*SIGNATURE, arch=90, sizes={"K": np.int64(64)}, static="K")
    assert compiled.passes.plan.device.name == "sm_90"
    assert compiled.program.inputs[0].dims == ("M", 64)
    assert repr(compiled) == "<kernel pg_up for sm_90>"


@pytest.mark.parametrize(
    ("shape", "strides", "order"),
    [
        ((2, 3, 4), (12, 4, 1), (0, 1, 2)),
        ((2, 3, 4), (12, 1, 3), (0, 2, 1)),
        ((2, 3, 4), (1, 8, 2), (1, 2, 0)),
        ((3, 2, 4), (4, 12, 1), (0, 1, 2)),  # in which order the slower ones are is no matter
        ((2, 3, 1), (3, 1, 7), (0, 1, 2)),
        ((2, 1, 4), (4, 1, 1), (0, 1, 2)),
        ((4,), (1,), (0,)),
        ((4, 4), (1, 1), (1, 0)),
    ],
)
def test_the_contiguous_axis_is_read_off_the_strides(shape, strides, order):
    assert storage_order(shape, strides) == order


def test_each_storage_order_gets_a_kernel_of_its_own(monkeypatch):
    class OneOrder:
        """Takes arrays of one storage order, as a kernel does."""

        def __init__(self, program):
            self.program = program

        @classmethod
        def decided(cls, program, *_):
            return cls(program)

        def __call__(self, *operands, out, stream):
            for operand, tensor in zip(operands, self.program.inputs, strict=True):
                if operand.strides[tensor.order[-1]] != 1:
                    raise ArgumentError(f"strides {operand.strides}")
            return self

    def array(*strides):
        return ArrayView(64, (4, 4), strides, F16, 0, "cupy")

    monkeypatch.setattr("polygen.api.Kernel", OneOrder)
    monkeypatch.setattr("polygen.api.target", lambda _: None)
    monkeypatch.setattr("polygen.api.decision", lambda *_: (None, ""))
    monkeypatch.setattr("polygen.api.describe", lambda operand, name: operand)
    product = pg.fuse(lambda x, w: x @ w, name="product")
    rows, columns = array(4, 1), array(1, 4)
    first, second = product(rows, rows), product(rows, columns)
    assert [t.order for t in first.program.inputs] == [(0, 1), (0, 1)]
    assert [t.order for t in second.program.inputs] == [(0, 1), (1, 0)]
    assert product(rows, columns) is second
    product(rows, rows)
    assert product(rows, columns) is second  # kept, not compiled again
    with pytest.raises(ArgumentError, match="strides"):
        product(rows, array(8, 2))
