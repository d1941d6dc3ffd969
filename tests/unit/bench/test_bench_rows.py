"""Rows and suites."""

from __future__ import annotations

import pytest

from polygen.bench.protocol import BOUNDS
from polygen.bench.rows import Row, read, selected, suite, suite_names, suites_of
from polygen.errors import BenchError


def test_the_suites_are_there_and_of_a_size_that_a_run_can_do():
    wide = ("decode", "held-out", "hopper", "llm", "paper", "ragged", "small-k", "types")
    others = ("gated", "grouped")
    first = ("attention", "batched")
    assert suite_names() == (*first, *wide[:1], *others, *wide[1:5], "products", *wide[5:])
    for name in suite_names():
        rows = suite(name).rows
        assert len(rows) == len(set(rows)) and (15 if name in wide else 2) <= len(rows) <= 80
        assert len(suite(name).digest) == 12
    assert all(row.m <= 128 for row in suite("decode").rows)
    assert {64, 1024} <= {row.k for row in suite("small-k").rows} and all(
        row.k <= 1024 for row in suite("small-k").rows
    )
    assert {row.m for row in suite("llm").rows} >= {1, 16384}
    assert {row.acc for row in suite("paper").rows} == {"f16", "f32"}
    assert {"mm_nn", "mm_tn", "mm_tt"} <= {row.op for row in suite("paper").rows}
    assert {row.pad for row in suite("ragged").rows} == {0, 1, 8}


def test_the_hopper_suite_has_the_rows_of_its_earlier_record():
    rows = suite("hopper").rows
    assert len(rows) == 80 and rows[0].key == "mm bf16 4096x4096x4096"
    assert [row.op for row in rows[-16:]] == ["bias_relu"] * 16
    assert len([row for row in rows if row.dtype == "f16"]) == 10
    assert len({(row.m, row.n, row.k, row.dtype) for row in rows}) == 16


def test_a_row_has_a_key_a_signature_and_least_bytes():
    row = Row("bias_silu_mul", 100, 200, 300, pad=1)
    assert row.key == "bias_silu_mul bf16 100x200x300 pad 1"
    assert Row("mm", 1, 2, 3, "f16", "f16").key == "mm f16 1x2x3 sums f16"
    assert row.signature == ["x:bf16[M,K]@2", "w:bf16[N,K]@2", "b:bf16[N]", "r:bf16[M,N]@2"]
    assert Row("mm_tn", 8, 16, 24, pad=8).signature == ["x:bf16[K,M]", "w:bf16[K,N]"]
    assert Row("mm_tn", 8, 16, 24).shape("x") == (24, 8)
    assert row.pitches == {"x.pitch": 301, "w.pitch": 301, "r.pitch": 201}
    assert Row("mm", 8, 16, 24).pitches == {}
    assert row.operations == 2 * 100 * 200 * 300
    assert row.bytes == 2 * (100 * 300 + 200 * 300 + 200 + 100 * 200 + 100 * 200)


def test_rows_of_other_types_have_results_that_hold_their_sums():
    rows = suite("types").rows
    assert {row.dtype for row in rows} == {"tf32", "e4m3", "s8"}
    for size in (4096, 8192):
        assert {row.dtype for row in rows if (row.m, row.n, row.k) == (size,) * 3} == {
            "tf32", "e4m3", "s8",
        }  # fmt: skip
    tf32, e4m3 = (Row("bias_gelu", 32, 64, 128, kind) for kind in ("tf32", "e4m3"))
    assert tf32.signature == ["x:tf32[M,K]", "w:tf32[N,K]", "b:f32[N]"] and tf32.out_dtype is None
    assert e4m3.signature == ["x:e4m3[M,K]", "w:e4m3[N,K]", "b:bf16[N]"]
    assert e4m3.out_dtype == "bf16" and e4m3.type_of("") == "bf16"
    assert e4m3.bytes == 32 * 128 + 64 * 128 + 2 * (64 + 32 * 64)
    assert Row("mm", 32, 64, 128, "s8").bytes == 32 * 128 + 64 * 128 + 4 * 32 * 64
    assert {(row.dtype, row.acc) for row in rows} <= BOUNDS.keys()


def test_batches_count_every_product_and_have_their_size_in_the_key():
    row = Row("bmm_bias_gelu_nn", 8, 16, 32, batch=4)
    assert row.key == "bmm_bias_gelu_nn bf16 4x8x16x32"
    assert row.sizes == {"B": 4, "M": 8, "N": 16, "K": 32}
    assert row.signature == ["x:bf16[B,M,K]", "w:bf16[B,K,N]", "b:bf16[N]"]
    assert row.products == row.results == ((4, 8, 16),) and row.shape("w") == (4, 32, 16)
    assert row.operations == 4 * 2 * 8 * 16 * 32 == 32768
    assert row.bytes == 2 * (4 * 8 * 32 + 4 * 32 * 16 + 16 + 4 * 8 * 16) == 7200
    turned = Row("bmm", 8, 16, 32, batch=4)
    assert turned.shape("w") == (4, 16, 32) and turned.products == ((4, 8, 16),)
    assert turned.operations == 32768
    assert Row("bmm", 8, 16, 33, batch=4, pad=1).signature[0] == "x:bf16[B,M,K]@4"
    first = suite("batched").rows[0]
    assert first.operations == pytest.approx(17.18e9, rel=1e-3)  # 64 * 2 * 1024 * 1024 * 128
    assert first.bytes == 2 * (64 * (2 * 1024 * 128 + 1024 * 1024) + 1024)


@pytest.mark.parametrize(
    ("op", "operations", "moved", "results"),
    [
        # Two products of 8 x 16 x 32; x is read once, whatever it is used for.
        ("gated", 2 * 8192, 2 * (8 * 32 + 2 * 16 * 32 + 8 * 16), 1),
        ("pairs", 2 * 8192, 2 * (2 * 8 * 32 + 2 * 16 * 32 + 8 * 16), 1),
        ("qkv", 2 * 8192, 2 * (8 * 32 + 2 * 16 * 32 + 2 * 8 * 16), 2),
    ],
)
def test_several_products_count_each_and_every_operand_once(op, operations, moved, results):
    row = Row(op, 8, 16, 32)
    assert (row.operations, row.bytes) == (operations, moved)
    assert row.products == ((8, 16),) * 2 and row.results == ((8, 16),) * results
    assert {row.type_of(name) for name in row.operation.names} == {"bf16"}


def test_the_suites_of_batches_and_several_products():
    batched = suite("batched").rows
    assert {(r.batch, r.m, r.n, r.k) for r in batched} == {
        (64, 1024, 1024, 128), (256, 512, 512, 64), (32, 2048, 128, 2048), (512, 128, 128, 128),
    }  # fmt: skip
    assert [r.op for r in batched].count("bmm") == 1 and len(batched) == 9
    assert [(r.m, r.n, r.k) for r in suite("gated").rows] == [
        (4096, 14336, 4096), (512, 14336, 4096), (16, 14336, 4096), (2048, 8960, 1536),
    ]  # fmt: skip
    assert [r.key for r in suite("products").rows] == [
        "pairs bf16 4096x4096x2048", "qkv bf16 4096x4096x4096",
    ]  # fmt: skip


def test_suites_take_turns_and_a_shared_row_comes_once():
    rows = selected(["hopper", "ragged"])
    assert rows[0] == suite("hopper").rows[0] and rows[1] == suite("ragged").rows[0]
    shared = Row("mm", 3000, 3000, 3000)
    assert rows.count(shared) == 1 and len(rows) == len(set(rows)) == 80 + 19 - 3
    assert suites_of(shared, ["hopper", "ragged", "llm"]) == ["hopper", "ragged"]
    assert [r.key for r in selected(["hopper"], "^mm f16")] == [
        "mm f16 4096x4096x4096", "mm f16 8192x6144x4096",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "pattern", "message"),
    [
        (["hoper"], "", "no suite is called 'hoper'.*Suites: attention, batched, decode"),
        (["hopper"], "tf32", "no row matches 'tf32'.*--list"),
        (["hopper"], "(", "no regular expression"),
    ],
)
def test_wrong_choices_are_refused(names, pattern, message):
    with pytest.raises(BenchError, match=message):
        selected(names, pattern)


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"ops": ["mm"], "shapes": [[1, "2", "x"]]}, "cannot be read"),
        ({"ops": ["mm"], "shapes": [[1, 2]]}, r"mm has no shape \[1, 2\].*Give M x N x K"),
        ({"ops": ["mm"], "shapes": [[2, 1, 2, 3]]}, "mm has no shape"),
        ({"ops": ["bmm"], "shapes": [[1, 2, 3]]}, "bmm has no shape.*Give B x M x N x K"),
        ({"ops": ["bmm"], "shapes": [[0, 1, 2, 3]]}, "cannot be measured"),
        ({"ops": ["mm"], "shapes": [[1, 2, 3]], "colour": 1}, "cannot be read.*colour"),
        ({"ops": ["mm"]}, "cannot be read.*shapes"),
        ({"ops": ["mm"], "shapes": [[0, 2, 3]]}, "cannot be measured"),
        (
            {"ops": ["mm"], "shapes": [[1, 2, 3]], "dtype": "e3m4"},
            "Sizes from 1.*bf16 or f16 or tf32",
        ),
        ({"ops": ["mmm"], "shapes": [[1, 2, 3]]}, "no operation is called 'mmm'"),
    ],
)
def test_a_wrong_suite_file_is_refused(group, message):
    with pytest.raises(BenchError, match=message):
        read({"title": "t", "group": [group]}, "t.toml")


def test_rows_by_groups_have_ends_and_a_matrix_for_each():
    rows = suite("grouped").rows
    assert {r.op for r in rows} == {"grouped", "grouped_bias_gelu", "grouped_gated"}
    row = next(r for r in rows if r.op == "grouped_gated")
    assert row.key == "grouped_gated bf16 64x8192x2816x2048"
    assert row.sizes == {"B": 64, "M": 8192, "N": 2816, "K": 2048}
    assert row.signature == [
        "x:bf16[M,K]", "u:bf16[B,N,K]", "v:bf16[B,N,K]", "ends:s32[B]"
    ]  # fmt: skip
    assert row.operations == 2 * 2 * 8192 * 2816 * 2048
    matrices = 2 * (8192 * 2048 + 2 * 64 * 2816 * 2048 + 8192 * 2816)
    assert row.bytes == matrices + 4 * 64
    assert row.results == ((8192, 2816),)


def test_attention_counts_both_products_and_half_where_keys_are_masked():
    row = Row("attention", 100, 200, 64, batch=3)
    assert row.signature == ["q:bf16[B,M,64]", "k:bf16[B,N,64]", "v:bf16[B,N,64]"]
    assert row.symbols == {"B": 3, "M": 100, "N": 200}
    assert row.products == ((3, 100, 200), (3, 100, 64)) and row.results == ((3, 100, 64),)
    assert row.operations == 2 * 2 * 3 * 100 * 200 * 64
    assert Row("attention_causal", 100, 200, 64, batch=3).operations == row.operations / 2
    assert row.bytes == 2 * 3 * (2 * 100 * 64 + 2 * 200 * 64)
    assert all(row.operation.inner for row in suite("attention").rows)
