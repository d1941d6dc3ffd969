"""Operands of chains that a launch before the kernel makes: both launches, exact.

The machine reports every byte that is read or written outside of an array, and the workspace is NaN
before: what the chain reads of it, the launch before has written. Data are small whole numbers, and
results those of the program as it was written, bit for bit.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from chain_samples import arrays_of, by_warps, few_rows, run
from generated import edited

import polygen as pg
from polygen.emulated import emulate
from polygen.errors import AlignmentMismatch
from polygen.frontend.evaluate import evaluate
from polygen.kernel import Kernel
from polygen.schedule.model import Schedule
from polygen.small_problem import few_blocks

SIZES = {"B": 2, "H": 2, "G": 2, "S": 37, "T": 75, "M": 37, "N": 50, "P": 3, "R": 9}
HEADS = ("bf16[B,H,S,64]", "bf16[B,H,T,64]", "bf16[B,H,T,64]")
ANGLES = ("bf16[S,32]", "bf16[S,32]", "bf16[T,32]", "bf16[T,32]")
MLP = ("bf16[M,64]", "bf16[64,96]", "bf16[96,64]")


def halves(x: Any, c: Any, s: Any) -> Any:
    """Halves of heads turned into each other, as rotary embeddings do."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)


def neighbours(x: Any, c: Any, s: Any) -> Any:
    """Neighbours turned into each other."""
    a, b = x[..., ::2], x[..., 1::2]
    return np.stack([a * c - b * s, b * c + a * s], axis=-1).reshape(x.shape)


def reshaped(x: Any, c: Any, s: Any) -> Any:
    """Halves again, with one pointwise expression of both."""
    parts = x.reshape(*x.shape[:-1], 2, x.shape[-1] // 2)
    sign = 2 * pg.indices(parts)[-2] - 1
    turned = parts * c[:, None] + parts[..., ::-1, :] * s[:, None] * sign
    return turned.reshape(x.shape)


def largest(x: Any) -> Any:
    """Rows less their largest element: a fold, and exact."""
    return x - x.max(axis=-1, keepdims=True)


def scored(turn: Any) -> Any:
    """Products in a row without a softmax, of queries and keys that are turned."""

    def function(q: Any, k: Any, v: Any, c: Any, s: Any, d: Any, t: Any) -> Any:
        return pg.relu(turn(q, c, s) @ turn(k, d, t).mT) @ v

    return function


def in_groups(q: Any, k: Any, v: Any, g: Any) -> Any:
    k, v = (k * g)[:, :, None], (v + 2)[:, :, None]
    return pg.relu(largest(q) @ k.mT) @ v


def before(q: Any, k: Any, v: Any, length: Any) -> Any:
    scores = (q + 2) @ largest(k).mT
    inside = pg.indices(scores)[-1] < length[:, None, None, None]
    return pg.where(inside, scores, 0) @ v


def paged(q: Any, keys: Any, values: Any, table: Any) -> Any:
    keys, values = (one[table].reshape(q.shape[0], -1, 64) for one in (keys, values))
    return pg.relu(largest(q) @ keys.mT) @ values


CASES: dict[str, tuple[Any, tuple[str, ...], str, Schedule | str, int, int]] = {
    # function, types, target, schedule, operands that are made, and those of them by rows
    "factors of columns": (
        lambda x, u, d, g: pg.relu((x * g) @ u) @ (d + 2) + x, (*MLP, "f32[64]"), "sm_80", "auto",
        2, 0,
    ),
    "factors of columns, with roles": (
        lambda x, u, d, g: pg.relu((x * g) @ u) @ (d + 2) + x, (*MLP, "f32[64]"), "sm_90a",
        "auto", 2, 0,
    ),
    "bytes with scales": (
        lambda x, u, d, s: pg.relu(x @ (u * s).astype("bf16")) @ d,
        ("bf16[M,64]", "s8[64,96]", "bf16[96,64]", "f32[96]"), "sm_80", "auto", 1, 0,
    ),
    "folds in front, a gate": (
        lambda x, u, d, w: (pg.relu(largest(x) @ u) * (largest(x) @ w)) @ d, (*MLP, MLP[1]),
        "sm_90a", "auto", 1, 1,
    ),
    "three layers": (
        lambda x, a, b, c, d: pg.relu(pg.relu(largest(x) @ (a * 2).astype("bf16")) @ b)
        @ (c * d).astype("bf16"),
        ("bf16[M,32]", "bf16[32,32]", "bf16[32,48]", "bf16[48,32]", "bf16[32]"), "sm_80", "auto",
        3, 1,
    ),
    "halves": (scored(halves), (*HEADS, *ANGLES), "sm_80", "auto", 2, 2),
    "halves, with roles": (scored(halves), (*HEADS, *ANGLES), "sm_90a", "auto", 2, 2),
    "neighbours": (scored(neighbours), (*HEADS, *ANGLES), "sm_80", "auto", 2, 2),
    "neighbours, with roles": (scored(neighbours), (*HEADS, *ANGLES), "sm_90a", "auto", 2, 2),
    "halves of a reshape": (scored(reshaped), (*HEADS, *ANGLES), "sm_80", "auto", 2, 2),
    "halves behind folds": (
        scored(lambda x, c, s: halves(largest(x), c, s)), (*HEADS, *ANGLES), "sm_90a", "auto", 2, 2,
    ),
    "neighbours behind folds": (
        scored(lambda x, c, s: neighbours(largest(x), c, s)), (*HEADS, *ANGLES), "sm_80", "auto",
        2, 2,
    ),
    "halves of one operand": (
        lambda q, k, v, c, s: pg.relu(halves(q, c, s) @ k.mT) @ v, (*HEADS, *ANGLES[:2]), "sm_80",
        "auto", 1, 1,
    ),
    "scores of two products": (
        lambda q, k, v, p, r: pg.relu(q @ k.mT + p @ r.mT) @ v,
        (*HEADS, "bf16[B,H,S,32]", "bf16[B,H,T,32]"), "sm_90a", "auto", 2, 2,
    ),
    "values with folds": (
        lambda q, k, v: pg.relu(q @ k.mT) @ largest(v), HEADS, "sm_90a", "auto", 1, 1,
    ),
    "keys that are values": (
        lambda q, k: pg.relu(q @ (h := largest(k)).mT) @ h, HEADS[:2], "sm_80", "auto", 1, 1,
    ),
    "a turned residual": (
        lambda x, u, d, c, s: pg.relu((h := neighbours(x, c, s).astype("bf16")) @ u) @ d + h,
        (*MLP, "bf16[M,32]", "bf16[M,32]"), "sm_80", "auto", 1, 1,
    ),
    "heads in groups": (
        in_groups, ("bf16[B,H,G,S,64]", *HEADS[1:], "bf16[64]"), "sm_80", "auto", 3, 1,
    ),
    "lengths": (before, (*HEADS, "s32[B]"), "sm_90a", "auto", 2, 1),
    "keys in parts": (
        scored(halves), (*HEADS, *ANGLES), "sm_80", by_warps(keys=32, part=64), 2, 2,
    ),
    "keys in parts, with roles": (
        scored(halves), (*HEADS, *ANGLES), "sm_90a", few_rows(part=64), 2, 2,
    ),
    "pages": (
        paged, ("bf16[B,S,64]", "bf16[R,16,64]", "bf16[R,16,64]", "s32[B,P]"), "sm_90a", "auto",
        1, 1,
    ),
    "rows by index": (
        lambda x, r, u, d: pg.relu(x[r] @ u) @ d, ("bf16[N,64]", "s32[M]", *MLP[1:]), "sm_80",
        "auto", 1, 0,
    ),
    "tf32": (
        scored(lambda x, c, s: halves(largest(x), c, s)),
        tuple(one.replace("bf16", "tf32") for one in HEADS)
        + tuple(one.replace("bf16", "f32") for one in ANGLES), "sm_80", "auto", 2, 2,
    ),
    "tf32 in chunks": (
        lambda x, u, d, g: pg.relu((x * g) @ u) @ (d + g),
        ("tf32[M,64]", "tf32[64,64]", "tf32[64,64]", "f32[64]"), "sm_80", "auto", 2, 0,
    ),
    "f32": (
        lambda x, u, d, g: pg.relu(largest(x) @ u) @ (d + g),
        ("f32[M,64]", "f32[64,64]", "f32[64,64]", "f32[64]"), "sm_80", "auto", 2, 1,
    ),
}  # fmt: skip
QUICK = (
    "factors of columns", "folds in front, a gate", "halves", "neighbours, with roles", "lengths",
    "tf32",
)  # fmt: skip


@cache
def made(name: str) -> Kernel:
    function, signature, arch, schedule, _, _ = CASES[name]
    fused = pg.fuse(function, name="made")
    sizes = {dim: SIZES[dim] for dim in fused.program(*signature).sizes}
    return fused.compile(*signature, arch=arch, sizes=sizes, schedule=schedule)


def operands(name: str) -> tuple[Any, ...]:
    """Small whole numbers; rows, pages and lengths that there are."""
    rng, found = np.random.default_rng(0), []
    for tensor in made(name).program.inputs:
        shape = [dim if isinstance(dim, int) else SIZES[dim] for dim in tensor.dims]
        values = rng.integers(-1, 2, shape)
        if tensor.dtype.name == "s32":
            values = rng.integers(1, SIZES["R"], shape)
        found.append(values.astype(np.float32).astype(tensor.dtype.numpy))
    return tuple(found)


def exact(name: str) -> np.ndarray:
    """What the program, as it was written, gives of them."""
    program = made(name).program
    arrays = {t.name: a for t, a in zip(program.inputs, operands(name), strict=True)}
    (found,) = evaluate(program, arrays, {dim: SIZES[dim] for dim in program.sizes})
    return found.astype(np.float64)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in CASES]
)
def test_exact_and_nothing_outside(name: str) -> None:
    kernel = made(name)
    source, before_it = few_blocks(kernel.passes.source), kernel.passes.plan.realign
    assert before_it is not None and not before_it.tensors
    assert (len(before_it.made), len(before_it.by_rows)) == CASES[name][4:]
    assert (kernel.resources.spill_store_bytes, kernel.resources.stack_bytes) == (0, 0)
    done = emulate(kernel.program, source, kernel.ptx, operands(name))
    assert done.report.ok, str(done.report)
    wanted = exact(name)
    assert wanted.any() and np.array_equal(done.results.astype(np.float64), wanted)


def normed_heads(q: Any, k: Any, v: Any, g: Any, h: Any, c: Any, s: Any) -> Any:
    """Attention of today's language models: norms of heads, rotary embeddings, a causal mask."""
    q, k = halves(pg.rms_norm(q, g), c, s), halves(pg.rms_norm(k, h), c, s)
    scores = (q @ k.mT) * 0.125
    i, j = pg.indices(scores)[-2:]
    return pg.softmax(pg.where(i >= j, scores, -np.inf)) @ v


@pytest.mark.parametrize("arch", ["sm_80", pytest.param("sm_90a", marks=pytest.mark.slow)])
def test_attention_of_normed_and_turned_heads(arch: str) -> None:
    signature = (*["bf16[B,S,64]"] * 3, "f32[64]", "f32[64]", "f32[S,32]", "f32[S,32]")
    heads = arrays_of(0, *[(2, 100, 64)] * 3)
    more = arrays_of(1, (64,), (64,), (100, 32), (100, 32), dtype=np.float32)
    run(normed_heads, signature, [*heads, *more], arch=arch)


@pytest.mark.parametrize("norm", [pg.rms_norm, pg.layer_norm])
def test_a_norm_in_front_of_an_mlp(norm: Any) -> None:
    given = arrays_of(0, (50, 64), (64,), (64, 96), (64, 96), (96, 64))
    types = (MLP[0], "bf16[64]", MLP[1], MLP[1], MLP[2])
    run(lambda x, g, u, w, d: pg.gelu((h := norm(x, g)) @ u) * (h @ w) @ d + x, types, given,
        arch="sm_80")  # fmt: skip
    plain = lambda x, g, u, d: pg.gelu(norm(x, g) @ u) @ d + x  # noqa: E731
    run(plain, (*types[:3], types[4]), [*given[:3], given[4]], arch="sm_80")


MISTAKES = {
    "another half": ("(float)(row_at3) < 32.0f", "(float)(row_at3) < 31.0f"),
    "the same half": ("((row_at3 % 32) + 32)", "((row_at3 % 32))"),
    "another row": ("q_ +", "q_ + 1 +"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_seen(compile_ptx: Any, name: str) -> None:
    kernel = made("halves")
    before_it, title, rest = kernel.source.partition("// The launch before it")
    ptx = compile_ptx(before_it + title + edited(rest, [MISTAKES[name]]), "sm_80")
    source = few_blocks(kernel.passes.source)
    done = emulate(kernel.program, source, ptx, operands("halves"))
    wanted = exact("halves")
    assert not (done.report.ok and np.array_equal(done.results.astype(np.float64), wanted))


def test_what_is_shown_and_saved(tmp_path: Any) -> None:
    kernel = made("halves")
    plan = kernel.show("plan")
    assert "before it:" in plan and "pg_made_realign makes" in plan
    assert "a row by a block: its elements" in plan
    assert "w10, w21: made by a launch that goes before" in kernel.show("rewrite")
    kernel.save(tmp_path)
    again = Kernel.load(tmp_path / "pg_made.json")
    done = again.emulation(*operands("halves"))
    assert done.report.ok
    assert np.array_equal(done.results.astype(np.float64), exact("halves"))


def test_operands_are_made_whose_rows_end_anywhere():
    """Of a column-major array of three rows: no variant of the kernel had been found for them."""

    def function(a, b, c):
        return (pg.relu(a) @ pg.relu(b[..., 0:66:2]).T).astype("f16") @ c

    fused = pg.fuse(function, name="odd")
    kernel = fused.compile(
        "f16[M,33]:col", "f16[8,67]", "f16[8,16]", arch="sm_80", sizes={"M": 3}, out_dtype="f32"
    )
    generator = np.random.default_rng(0)
    a, b, c = (generator.integers(-2, 3, s).astype("f2") for s in ((3, 33), (8, 67), (8, 16)))
    found = kernel.emulate(np.asfortranarray(a), b, c)
    np.testing.assert_array_equal(found, fused.reference(a, b, c))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_rows_by_index_of_a_column_major_array(arch):
    """They are no neighbours: chunks are made along the other axis."""
    fused = pg.fuse(lambda a, r, d, e: (a[r] @ d.T).astype("f16") @ e, name="picked")
    kernel = fused.compile(
        "f16[S,16]:col", "s32[M]", "f16[16,16]", "f16[16,8]", arch=arch, sizes={"M": 32, "S": 9}
    )
    generator = np.random.default_rng(0)
    a, d, e = (generator.integers(-2, 3, s).astype("f2") for s in ((9, 16), (16, 16), (16, 8)))
    rows = generator.integers(0, 9, 37, dtype=np.int32)
    found = kernel.emulate(np.asfortranarray(a), rows, d, e)
    np.testing.assert_array_equal(found.astype(float), fused.reference(a, rows, d, e))


def test_variants_that_do_not_fit_end(monkeypatch):
    kernel = pg.fuse(lambda x, w: x @ w.T, name="plain").compile(
        "f16[M,K]", "f16[N,K]", arch="sm_80", sizes={"M": 16, "N": 16, "K": 16}
    )
    monkeypatch.setattr(Kernel, "for_alignment", lambda own, mismatch: own)
    given = [np.zeros((3, 5), "f2"), np.zeros((4, 5), "f2")]
    with pytest.raises(AlignmentMismatch):
        kernel.emulate(*given)
