# ruff: noqa: E501 - CUDA text
"""``wmma`` against NumPy: all shapes and types, every layout, shared and global memory."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from test_machine_mma import without_number

from polygen.errors import PtxError
from polygen.machine import Launch, run

DTYPES = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "s8": np.int8, "u8": np.uint8,
    "tf32": np.float32, "f32": np.float32, "f64": np.float64, "s32": np.int32,
}  # fmt: skip
WIDE = {
    "f32": ("f", "float"),
    "s32": ("r", "int"),
    "f64": ("d", "double"),
    "f16": ("r", "unsigned"),
}


def fragment_registers(kind: str, shape: str) -> tuple[int, int, int]:
    """Registers of A, B and of f32 accumulators; those of 8 and 16 bits follow the sides."""
    m, n, k = (int(side) for side in re.findall(r"\d+", shape))
    if kind == "f16":
        return 8, 8, 8
    if kind == "f64":
        return 1, 1, 2
    per = {"bf16": 2, "s8": 4, "u8": 4, "tf32": 1}[kind]
    return m * k // 32 // per, k * n // 32 // per, m * n // 32


def source(kind: str, shape: str, layouts: tuple[str, str, str], out: str) -> str:
    counts = fragment_registers(kind, shape)
    c = 4 if out == "f16" else counts[2]
    letter, name = WIDE[out]
    part = ("d", "double") if kind == "f64" else ("r", "unsigned")
    m, n, k = (int(side) for side in re.findall(r"\d+", shape))
    steps = (
        k if layouts[0] == "row" else m,
        n if layouts[1] == "row" else k,
        n if layouts[2] == "row" else m,
    )

    def load(
        side: str,
        count: int,
        step: int,
        kind_: str,
        letter_: str,
        array: str,
        place: str,
        space: str,
    ) -> str:
        names = ", ".join(f"%{i}" for i in range(count))
        outs = ", ".join(f'"={letter_}"({array}[{i}])' for i in range(count))
        constraint = "l" if space == "global" else "r"
        return f'asm volatile("wmma.load.{side}.sync.aligned.{layouts["abc".index(side)]}.{shape}.{space}.{kind_} {{{names}}}, [%{count}], %{count + 1};" : {outs} : "{constraint}"({place}), "r"({step}));'

    types = f"{out}.{out}" if kind == "f16" else f"{out}.{kind}.{kind}.{out}"
    total = c + counts[0] + counts[1]
    groups = [
        range(0, c),
        range(c, c + counts[0]),
        range(c + counts[0], total),
        range(total, total + c),
    ]
    texts = ["{" + ", ".join(f"%{i}" for i in one) + "}" for one in groups]
    ins = (
        [f'"{part[0]}"(a[{i}])' for i in range(counts[0])]
        + [f'"{part[0]}"(b[{i}])' for i in range(counts[1])]
        + [f'"{letter}"(c[{i}])' for i in range(c)]
    )
    outs = ", ".join(f'"={letter}"(d[{i}])' for i in range(c))
    rest = ", ".join(f"%{i + 1}" for i in range(c))
    values = ", ".join(f'"{letter}"(d[{i}])' for i in range(c))
    size = np.dtype(DTYPES[kind]).itemsize * m * k
    return f"""
extern "C" __global__ void k(const uint4* x, const void* y, const void* z, void* o) {{
  __shared__ __align__(32) uint4 held[{max(size // 16, 1)}];
  for (int i = threadIdx.x; i < {size // 16}; i += 32) held[i] = x[i];
  __syncwarp();
  {part[1]} a[{counts[0]}], b[{counts[1]}]; {name} c[{c}], d[{c}];
  {load("a", counts[0], steps[0], kind, part[0], "a", "(unsigned)__cvta_generic_to_shared(held)", "shared")}
  {load("b", counts[1], steps[1], kind, part[0], "b", "y", "global")}
  {load("c", c, steps[2], out, letter, "c", "z", "global")}
  asm volatile("wmma.mma.sync.aligned.{layouts[0]}.{layouts[1]}.{shape}.{types} {texts[0]}, {texts[1]}, {texts[2]}, {texts[3]};" : {outs} : {", ".join(ins)});
  asm volatile("wmma.store.d.sync.aligned.{layouts[2]}.{shape}.global.{out} [%0], {{{rest}}}, %{c + 1};" :: "l"(o), {values}, "r"({steps[2]}) : "memory");
}}"""


CASES = [
    *(("f16", shape, layouts, out) for shape, layouts, out in [
        ("m16n16k16", ("row", "col", "row"), "f32"), ("m16n16k16", ("col", "row", "col"), "f16"),
        ("m32n8k16", ("row", "row", "row"), "f32"), ("m8n32k16", ("col", "col", "col"), "f32"),
    ]),
    ("bf16", "m16n16k16", ("row", "row", "row"), "f32"),
    ("bf16", "m32n8k16", ("col", "col", "row"), "f32"),
    ("bf16", "m8n32k16", ("row", "col", "row"), "f32"),
    ("tf32", "m16n16k8", ("row", "col", "row"), "f32"),
    ("tf32", "m16n16k8", ("col", "row", "col"), "f32"),
    ("s8", "m16n16k16", ("row", "col", "row"), "s32"),
    ("u8", "m32n8k16", ("row", "col", "row"), "s32"),
    ("s8", "m8n32k16", ("row", "row", "col"), "s32"),
    ("f64", "m8n8k4", ("row", "col", "row"), "f64"),
]  # fmt: skip


def stored(matrix: np.ndarray, layout: str) -> np.ndarray:
    return np.ascontiguousarray(matrix if layout == "row" else matrix.T)


@pytest.mark.parametrize("kind, shape, layouts, out", CASES)
def test_exact(compile_ptx, kind, shape, layouts, out):
    m, n, k = (int(side) for side in re.findall(r"\d+", shape))
    random = np.random.default_rng(3)
    low = 0 if kind == "u8" else -4
    a, b = (random.integers(low, 5, sides).astype(DTYPES[kind]) for sides in ((m, k), (k, n)))
    c = random.integers(-9, 9, (m, n)).astype(DTYPES[out])
    arrays = [
        stored(one, layout)
        for one, layout in zip((a, b, c, np.zeros_like(c)), (*layouts, layouts[2]), strict=True)
    ]
    report = run(
        compile_ptx(source(kind, shape, layouts, out), "sm_80"),
        Launch((1, 1, 1), (32, 1, 1), 0, tuple(arrays)),
    )
    assert report.ok, str(report)
    wanted = a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
    np.testing.assert_array_equal(report.arrays[3].astype(np.float64), stored(wanted, layouts[2]))


@pytest.mark.parametrize(
    "kind, shape, layouts, out", [case for case in CASES if case[3] in ("f16", "f32")]
)
def test_fragments_of_products_give_one_nan(compile_ptx, kind, shape, layouts, out):
    m, n, k = (int(side) for side in re.findall(r"\d+", shape))
    a, b = without_number(DTYPES[kind], (m, k), 1), without_number(DTYPES[kind], (n, k), 2).T
    c = np.random.default_rng(3).integers(-9, 9, (m, n)).astype(DTYPES[out])
    c[6, 1:4] = -np.nan, np.inf, -np.inf
    each = zip((a, b, c, np.zeros_like(c)), (*layouts, layouts[2]), strict=True)
    launch = Launch((1, 1, 1), (32, 1, 1), 0, tuple(stored(*one) for one in each))
    report = run(compile_ptx(source(kind, shape, layouts, out), "sm_80"), launch)
    assert report.ok, str(report)
    with np.errstate(invalid="ignore"):
        wanted = a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
    wanted, got = stored(wanted.astype(c.dtype), layouts[2]), report.arrays[3]
    missing = np.isnan(wanted)
    assert 10 < missing.sum() < missing.size - 10
    np.testing.assert_array_equal(got[~missing], wanted[~missing])
    one = 0x7FFFFFFF if out == "f32" else 0x7FFF
    assert (got.view(f"u{got.itemsize}")[missing] == one).all()


def test_the_header_of_the_toolkit(tmp_path):
    from polygen.runtime.outside import compile_ptx

    path = tmp_path / "wmma.cu"
    path.write_text("""#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void k(const half* a, const half* b, float* c, int n) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
  wmma::fill_fragment(fc, 0.f);
  const int row = 16 * threadIdx.y, column = 16 * blockIdx.x;
  for (int k = 0; k < n; k += 16) {
    wmma::load_matrix_sync(fa, a + row * n + k, n);
    wmma::load_matrix_sync(fb, b + column * n + k, n);
    wmma::mma_sync(fc, fa, fb, fc);
  }
  for (int i = 0; i < fc.num_elements; ++i) fc.x[i] = 2 * fc.x[i] + 1;
  wmma::store_matrix_sync(c + row * 32 + column, fc, 32, wmma::mem_row_major);
}""")
    random = np.random.default_rng(4)
    a, b = (random.integers(-4, 5, (32, 48)).astype(np.float16) for _ in range(2))
    launch = Launch((2, 1, 1), (32, 2, 1), 0, (a, b, np.full((32, 32), np.nan, np.float32), 48))
    report = run(compile_ptx(path, "sm_80"), launch)
    assert report.ok, str(report)
    np.testing.assert_array_equal(
        report.arrays[2], 2 * (a.astype(np.float32) @ b.T.astype(np.float32)) + 1
    )


def test_rows_that_are_not_aligned_are_found(compile_ptx):
    text = source("f16", "m16n16k16", ("row", "col", "row"), "f32").replace(
        '"l"(y), "r"(16)', '"l"(y), "r"(17)'
    )
    arrays = (
        np.ones((16, 16), np.float16),
        np.ones((16, 17), np.float16),
        np.zeros((16, 16), np.float32),
        np.zeros((16, 16), np.float32),
    )
    report = run(compile_ptx(text), Launch((1, 1, 1), (32, 1, 1), 0, arrays))
    assert {one.code for one in report.findings} == {"misaligned"}


def test_a_matrix_read_before_it_is_there(compile_ptx):
    text = source("f16", "m16n16k16", ("row", "col", "row"), "f32").replace("__syncwarp();", "")
    arrays = (
        np.ones((16, 16), np.float16),
        np.ones((16, 16), np.float16),
        np.zeros((16, 16), np.float32),
        np.zeros((16, 16), np.float32),
    )
    report = run(compile_ptx(text), Launch((1, 1, 1), (32, 1, 1), 0, arrays))
    assert {one.code for one in report.findings} == {"race-write-read"}


def test_shapes_that_do_not_exist_are_refused(compile_ptx):
    text = compile_ptx(source("f16", "m16n16k16", ("row", "col", "row"), "f32")).replace(
        "mma.sync.aligned.row.col.m16n16k16", "mma.sync.aligned.row.col.m16n16k8"
    )
    with pytest.raises(PtxError, match="this shape does not exist"):
        run(
            text,
            Launch(
                (1, 1, 1),
                (32, 1, 1),
                0,
                (np.zeros(256, np.float16),) * 2 + (np.zeros(256, np.float32),) * 2,
            ),
        )
