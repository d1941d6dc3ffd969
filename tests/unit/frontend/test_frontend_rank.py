"""Array code of any rank: batches, vectors, slices, permuted axes, einsum, chains."""

import contextlib

import numpy as np
import pytest

import polygen
from polygen.errors import TraceError
from polygen.frontend import functions as pg
from polygen.frontend.build import build_program
from polygen.frontend.evaluate import evaluate, reference
from polygen.frontend.indexing import affine
from polygen.frontend.products import einsum, matmul
from polygen.frontend.program import Access, Affine
from polygen.frontend.signature import parse_signature

SIZES = {"B": 2, "H": 3, "M": 4, "N": 5, "K": 3, "L": 2, "R": 2}
ARRAYS = {
    "x": "bf16[M,K]",
    "w": "bf16[K,N]",
    "u": "bf16[N,K]",
    "p": "bf16[K]",
    "q": "bf16[M]",
    "bx": "bf16[B,M,K]",
    "bw": "bf16[B,K,N]",
    "bu": "bf16[B,N,K]",
    "hx": "bf16[B,H,M,K]",
    "hw": "bf16[H,K,N]",
    "one": "bf16[1,K,N]",
    "mid": "bf16[B,1,M,K]",
    "heads": "bf16[B,M,H,K]",
    "keys": "bf16[B,N,H,K]",
    "xl": "bf16[M,K,L]",
    "wl": "bf16[L,K,N]",
    "up": "bf16[R,N]",
    "sq": "bf16[M,M]",
    "wide": "bf16[M,6]",
    "thin": "bf16[3,N]",
    "six": "bf16[6,N]",
    "long": "bf16[B,M,6]",
    "b": "f32[N]",
    "bb": "f32[B,1,N]",
    "bc": "f32[B,M,1]",
    "bn": "f32[B,N]",
    "r": "f32[B,M,N]",
    "rt": "f32[N,M,B]",
    "s": "f32",
}


def tensors(function, **override):
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return [parse_signature(f"{n}:{override.get(n, ARRAYS[n])}") for n in names]


def build(function, out_dtypes=None, **override):
    return build_program(function, "kernel", "", tensors(function, **override), out_dtypes)


def texts(function, **override):
    return [str(statement) for statement in build(function, **override).statements]


def numbers(program, seed=0):
    """Small integers, so that sums are exact in any order and in the operands' types."""
    rng = np.random.default_rng(seed)
    shapes = {t.name: [SIZES.get(d, d) for d in t.dims] for t in program.inputs}
    return {n: rng.integers(-2, 3, shape).astype(np.float64) for n, shape in shapes.items()}


PROGRAMS = {
    # batches
    "batch": lambda bx, bw: bx @ bw,
    "shared right": lambda bx, w: bx @ w,
    "shared left": lambda x, bw: x @ bw,
    "size one right": lambda bx, one: bx @ one,
    "size one in the middle": lambda mid, hw: mid @ hw,
    "two and one leading axes": lambda hx, hw: hx @ hw,
    "two leading axes, one matrix": lambda hx, w: hx @ w,
    "three ranks": lambda hx, w, hw: hx @ w + hx @ hw,
    "new batch axis": lambda x, bw: x[None] @ bw,
    "new axis between": lambda bx, hw: bx[:, None] @ hw,
    "np.matmul": lambda bx, bw: np.matmul(bx, bw),
    "pg.matmul": lambda bx, bw: matmul(bx, bw),
    "polygen.matmul": lambda bx, bw: polygen.matmul(bx, bw),
    # epilogues
    "bias per batch": lambda bx, bw, bb: pg.relu(bx @ bw + bb),
    "bias of all": lambda bx, bw, b: bx @ bw * b,
    "column per batch": lambda bx, bw, bc: bx @ bw - bc,
    "bias with a new axis": lambda bx, bw, bn: bx @ bw + bn[:, None, :],
    "bias with an ellipsis": lambda hx, hw, b: hx @ hw + b[..., :],
    "residual": lambda bx, bw, r, s: (bx @ bw + r) * s,
    "residual reversed": lambda bx, bw, rt: bx @ bw + rt.T,
    "residual permuted": lambda bx, bw, rt: bx @ bw + np.transpose(rt, (2, 1, 0)),
    "multiplied": lambda bx, bw, r: np.multiply(np.maximum(bx @ bw, 0), r),
    "casts": lambda bx, bw: (bx @ bw).astype("f16") + 1,
    "two outputs": lambda bx, bw, w: (bx @ bw, pg.relu(bx @ w)),
    "outputs of several ranks": lambda bx, bw, x, w: (bx @ bw, x @ w, (x @ w)[0]),
    # vectors
    "matrix and vector": lambda x, p: x @ p,
    "vector and matrix": lambda p, w: p @ w,
    "vectors": lambda p: p @ p,
    "vector and batch": lambda p, bw: p @ bw,
    "batch and vector": lambda bx, p: bx @ p,
    "batches and vector": lambda hx, p: hx @ p,
    "vector as matrix": lambda p, w: p[None, :] @ w,
    "vector as column": lambda p, up: p[:, None] @ up[:1],
    "np.dot of vectors": lambda p: np.dot(p, p),
    "scaled vector": lambda x, p, q: (x @ p) * q + 1,
    # permuted axes
    "mT of the right": lambda bx, bu: bx @ bu.mT,
    "mT of the result": lambda bx, bw: (bx @ bw).mT,
    "mT of both": lambda bx, bw: bw.mT @ bx.mT,
    "swapaxes": lambda bx, bu: bx @ bu.swapaxes(1, 2),
    "negative axes": lambda bx, bu: bx @ bu.swapaxes(-1, -2),
    "np.swapaxes": lambda bx, bu: bx @ np.swapaxes(bu, 1, -1),
    "np.matrix_transpose": lambda bx, bu: bx @ np.matrix_transpose(bu),
    "np.permute_dims": lambda bx, bu: bx @ np.permute_dims(bu, (0, 2, 1)),
    "heads": lambda heads, keys: heads.transpose(0, 2, 1, 3) @ keys.transpose((0, 2, 3, 1)),
    "heads and back": lambda heads, keys: (heads.swapaxes(1, 2) @ keys.swapaxes(1, 2).mT).swapaxes(
        1, 2
    ),
    "all axes reversed": lambda bx, bw: (bx @ bw).T,
    "permuted epilogue": lambda bx, bw, rt: (bx @ bw).transpose(2, 1, 0) * rt,
    # slices
    "sum over every other": lambda wide, thin: wide[:, ::2] @ thin,
    "sum over the last": lambda wide, thin: wide[..., 3:] @ thin,
    "sum over the first": lambda long, thin: long[..., :3] @ thin,
    "rows backwards": lambda wide, six: wide[:, ::-1] @ six,
    "rows from the end": lambda wide, thin: wide[:, -3:] @ thin,
    "a step that leaves a rest": lambda long, up: long[:, :, 1::4] @ up,
    "interleaved gate": lambda x, w: pg.silu((x @ w)[:, ::2]) * (x @ w)[:, 1::2],
    "halves": lambda x, w: (x @ w)[:, :3] * (x @ w)[:, 3:],
    "slice of a slice": lambda x, w: (x @ w)[:, 1:][:, ::2],
    "slice of a transpose": lambda x, w: (x @ w).T[1::2] + (x @ w).T[::2],
    "one row": lambda bx, bw: (bx @ bw)[0],
    "one element": lambda bx, bw: (bx @ bw)[0, 0],
    "last of an axis": lambda wide, six, x: (wide @ six)[:, None] + x[0] @ x[0],
    "operand at one place": lambda bx, w: bx[0] @ w,
    "broadcast slice": lambda bx, bw, r: bx @ bw + r[:1, 0],
    "bounds beyond the axis": lambda wide, six: wide[:, :99] @ six,
    # einsum
    "einsum matmul": lambda x, w: einsum("mk,kn->mn", x, w),
    "einsum implicit": lambda x, w: np.einsum("mk,kn", x, w),
    "einsum sorted output": lambda x, w: np.einsum("zk,ka", x, w),
    "einsum transposed": lambda x, u: np.einsum("mk, nk -> nm", x, u),
    "einsum batch": lambda bx, bw: np.einsum("bmk,bkn->bmn", bx, bw),
    "einsum ellipsis": lambda hx, hw: np.einsum("...mk,...kn->...mn", hx, hw),
    "einsum ellipsis on one side": lambda hx, w: np.einsum("...mk,kn", hx, w),
    "einsum ellipsis on the right": lambda x, hw: np.einsum("mk,...k->...m", x, hw[:, :, 0]),
    "einsum heads": lambda heads, keys: np.einsum("bmhk,bnhk->bhmn", heads, keys),
    "einsum two sums": lambda xl, wl: np.einsum("mkl,lkn->mn", xl, wl),
    "einsum three sums": lambda hx, bx: np.einsum("bhmk,bmk->h", hx, bx),
    "einsum all": lambda x: np.einsum("mk,mk->", x, x),
    "einsum batch last": lambda bx, bw: np.einsum("bmk,bkn->mnb", bx, bw),
    "einsum stretched": lambda mid, hw: np.einsum("bhmk,hkn->bhmn", mid, hw),
    "einsum of one": lambda bx, bw: np.einsum("bmk->mbk", np.einsum("bmk,bkn->bmn", bx, bw)),
    "einsum of one, implicit": lambda x, w: np.einsum("ba", x @ w),
    "einsum without a sum": lambda x, w, q, b: x @ w + np.einsum("m,n->mn", q, b),
    "einsum elementwise": lambda bx, bw, r: einsum("bmn,nmb->bmn", r, (bx @ bw).T),
    "polygen.einsum": lambda x, w: polygen.einsum("mk,kn->mn", x, w),
    # several products, and chains
    "gated pair": lambda bx, bw, bu: pg.silu(bx @ bw) * (bx @ bu.mT),
    "sum of products": lambda x, w, bx, bw: x @ w + bx @ bw,
    "three products": lambda x, w, u: (x @ w, x @ u.T, (x @ w) * (x @ u.T) + 1),
    "chain": lambda x, w, u: (x @ w) @ u,
    "chain on the right": lambda w, u: u @ (w @ u),
    "three in a chain": lambda x, w, u: x @ w @ u @ w,
    "chain beside its start": lambda x, w, u: ((x @ w), (x @ w) @ u),
    "pointwise between": lambda x, w, u: pg.relu(x @ w + 1) @ u,
    "named type between": lambda x, w, u: (x @ w).astype("bf16") @ u,
    "batched chain": lambda bx, bw, u: pg.relu(bx @ bw) @ u,
    "product with itself": lambda x, w: (x @ w) @ (x @ w).T,
    "computed operand": lambda x, w: pg.relu(x) @ (w * 2),
    "computed and turned": lambda x, u: (x + 1) @ (u - 1).T,
    "computed and sliced": lambda wide, thin: (wide * 2)[:, ::2] @ thin,
    "condition as operand": lambda x, w: (x > 0) @ w,
}


def sized(name):
    """The signature of a program whose slices need numbers in place of names."""
    override = {}
    if name in ("interleaved gate", "halves"):
        override["w"] = "bf16[K,6]"
    elif name == "slice of a slice":
        override["w"] = "bf16[K,5]"
    elif name == "slice of a transpose":
        override["w"] = "bf16[K,4]"
    elif name in ("vector as column", "a step that leaves a rest"):
        override["up"] = "bf16[2,N]"
    elif name == "broadcast slice":
        override["r"] = "f32[2,M,N]"
    return override


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_program_equals_the_function_run_by_numpy(name):
    function = PROGRAMS[name]
    program = build(function, **sized(name))
    for seed in range(2):
        arrays = numbers(program, seed)
        got = evaluate(program, arrays, round_outputs=False)
        expected = reference(function, list(arrays.values()))
        expected = expected if isinstance(expected, tuple) else (expected,)
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert one.shape == other.shape
            if name == "interleaved gate":
                np.testing.assert_allclose(one, other, rtol=1e-12)
            else:
                np.testing.assert_array_equal(one, other)
        for value, tensor in zip(got, program.outputs, strict=True):
            assert value.shape == tuple(SIZES.get(d, d) for d in tensor.dims)


def test_there_are_enough_programs():
    assert len(PROGRAMS) >= 60


SAME = [
    (lambda x, w: x @ w, lambda x, w: np.einsum("ab,bc->ac", x, w)),
    (lambda x, u: x @ u.T, lambda x, u: np.einsum("ak,bk", x, u)),
    (lambda bx, bw: bx @ bw, lambda bx, bw: np.einsum("...ik,...kj", bx, bw)),
    (lambda bx, w: bx @ w, lambda bx, w: np.einsum("bij,jk->bik", bx, w)),
    (lambda bx, bu: bx @ bu.mT, lambda bx, bu: bx @ bu.transpose(0, 2, 1)),
    (lambda bx, bu: bx @ bu.mT, lambda bx, bu: np.einsum("bmk,bnk->bmn", bx, bu)),
    (lambda x, p: x @ p, lambda x, p: np.einsum("mk,k", x, p)),
    (lambda p: p @ p, lambda p: np.einsum("k,k->", p, p)),
    (lambda bx, bw: (bx @ bw).T.T, lambda bx, bw: (bx @ bw).swapaxes(0, 2).transpose(2, 1, 0)),
    (lambda wide, thin: wide[:, 1::2] @ thin, lambda wide, thin: wide[:, 1:][:, ::2] @ thin),
    (lambda wide, six: wide @ six, lambda wide, six: wide[:, ::-1][:, ::-1] @ six),
    (lambda x, w, b: x @ w + b, lambda x, w, b: x @ w + b[None][0]),
    (lambda x, w, u: pg.relu(x @ w) @ u, lambda x, w, u: pg.relu(x @ w).astype("bf16") @ u),
]


@pytest.mark.parametrize(("first", "second"), SAME)
def test_spellings_give_equal_programs(first, second):
    assert build(first) == build(second)


def test_two_spellings_in_one_program_are_one_product():
    program = build(lambda x, u: np.einsum("mk,nk->mn", x, u) + x @ u.T)
    assert [str(s) for s in program.contractions] == ["v0[i,j] += x[i,k] * u[j,k]"]
    assert str(program.pointwise[0]) == "v1[i,j] = add(v0[i,j], v0[i,j])"


def test_the_statements_of_a_batch():
    program = build(lambda bx, w, bb: pg.gelu(bx @ w + bb))
    assert str(program) == (
        "kernel: \n"
        "  in  bx: bf16[B, M, K]\n"
        "  in  w: bf16[K, N]\n"
        "  in  bb: f32[B, 1, N]\n"
        "  out y0: bf16[B, M, N]\n"
        "   S0  v0[b,i,j] += bx[b,i,k] * w[k,j]         b < B, i < M, j < N, k < K   (f32)\n"
        "   P1  v1[b,i,j] = add(v0[b,i,j], bb[b,0,j])   b < B, i < M, j < N   (f32)\n"
        "   P2  v2[b,i,j] = gelu(v1[b,i,j])             b < B, i < M, j < N   (f32)\n"
        "   P3  y0[b,i,j] = cast(v2[b,i,j])             b < B, i < M, j < N   (bf16)"
    )
    assert program.outputs[0].order == (0, 1, 2)
    assert program.sizes == ("B", "M", "K", "N")


def test_iterators_avoid_names_of_arguments_and_dims():
    def function(b, w, c):
        return b @ w + c

    given = [parse_signature(t) for t in ("bf16[d,M,K]", "bf16[e,1,K,N]", "f32[N]")]
    program = build_program(function, "k", "", given)
    assert str(program.contractions[0]) == "v0[f,g,i,j] += b[g,i,k] * w[f,0,k,j]"


def test_many_axes_find_names():
    axes = ",".join(f"D{n}" for n in range(12))
    program = build(lambda x, w: x @ w, x=f"bf16[{axes},M,K]")
    names = [iterator for iterator, _ in program.contractions[0].domain]
    assert len(set(names)) == 15
    assert names[-3:] == ["i", "j", "k"]
    sums = build(
        lambda x, w: np.einsum("abcdefghm,abcdefghn->mn", x, w),
        x="bf16[1,2,1,1,2,1,1,1,M]",
        w="bf16[1,2,1,1,2,1,1,1,N]",
    )
    assert len(sums.contractions[0].domain) == 10
    assert len({iterator for iterator, _ in sums.contractions[0].domain}) == 10


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, p: x @ p, "v0[i] += x[i,k] * p[k]"),
        (lambda p, w: p @ w, "v0[i] += p[k] * w[k,i]"),
        (lambda p: p @ p, "v0 += p[k] * p[k]"),
        (lambda bx, p: bx @ p, "v0[i,j] += bx[i,j,k] * p[k]"),
        (lambda mid, hw: mid @ hw, "v0[b,c,i,j] += mid[b,0,i,k] * hw[c,k,j]"),
        (lambda bx, one: bx @ one, "v0[b,i,j] += bx[b,i,k] * one[0,k,j]"),
        (lambda x, bw: x[None] @ bw, "v0[b,i,j] += x[i,k] * bw[b,k,j]"),
        (lambda wide, thin: wide[:, ::2] @ thin, "v0[i,j] += wide[i,2*k] * thin[k,j]"),
        (lambda wide, thin: wide[:, 3:] @ thin, "v0[i,j] += wide[i,k+3] * thin[k,j]"),
        (lambda wide, six: wide[:, ::-1] @ six, "v0[i,j] += wide[i,-k+5] * six[k,j]"),
        (lambda wide, thin: wide[:, 4::-2] @ thin, "v0[i,j] += wide[i,-2*k+4] * thin[k,j]"),
        (lambda xl, wl: np.einsum("mkl,lkn", xl, wl), "v0[i,j] += xl[i,k,l] * wl[l,k,j]"),
        (
            lambda heads, keys: np.einsum("bmhk,bnhk->bhmn", heads, keys),
            "v0[b,c,i,j] += heads[b,i,c,k] * keys[b,j,c,k]",
        ),
    ],
)
def test_accesses(function, expected):
    assert texts(function)[0] == expected


def test_a_slice_of_a_product_is_a_product_with_a_slice_of_an_operand():
    function = lambda x, w: pg.silu((x @ w)[:, ::2]) * (x @ w)[:, 1::2]  # noqa: E731
    assert texts(function, w="bf16[K,64]") == [
        "v0[i,j] += x[i,k] * w[k,2*j]",
        "v1[i,j] += x[i,k] * w[k,2*j+1]",
        "v2[i,j] = silu(v0[i,j])",
        "v3[i,j] = mul(v2[i,j], v1[i,j])",
        "y0[i,j] = cast(v3[i,j])",
    ]
    program = build(function, w="bf16[K,64]")
    assert program.contractions[0].domain[1] == ("j", 32)
    assert program.pointwise[0].domain == (("i", "M"), ("j", 32))


def test_rotary_embeddings_can_be_said():
    def rotate(x, w, cos, sin):
        value = x @ w
        left, right = value[..., :4], value[..., 4:]
        return left * cos - right * sin, right * cos + left * sin

    given = ("bf16[B,S,K]", "bf16[K,8]", "f32[S,4]", "f32[S,4]")
    program = build_program(rotate, "k", "", [parse_signature(t) for t in given])
    assert len(program.contractions) == 2
    rng = np.random.default_rng(5)
    shapes = {"x": (2, 3, 5), "w": (5, 8), "cos": (3, 4), "sin": (3, 4)}
    arrays = {n: rng.integers(-3, 4, shape).astype(float) for n, shape in shapes.items()}
    for got, expected in zip(
        evaluate(program, arrays, round_outputs=False), rotate(*arrays.values()), strict=True
    ):
        np.testing.assert_array_equal(got, expected)


def test_a_chain_comes_after_what_it_reads():
    program = build(lambda x, w, u: (x @ u.T) + pg.relu(x @ w) @ (u @ w))
    assert [f"{s.name} {s}" for s in program.statements] == [
        "S0 v0[i,j] += x[i,k] * u[j,k]",
        "S1 v1[i,j] += x[i,k] * w[k,j]",
        "S2 v2[i,j] += u[i,k] * w[k,j]",
        "P3 v3[i,j] = maximum(v1[i,j], 0.0)",
        "P4 v4[i,j] = cast(v3[i,j])",
        "P5 v5[i,j] = cast(v2[i,j])",
        "S6 v6[i,j] += v4[i,k] * v5[k,j]",
        "P7 v7[i,j] = add(v0[i,j], v6[i,j])",
        "P8 y0[i,j] = cast(v7[i,j])",
    ]
    assert program.pointwise[1].dtype.name == "bf16"
    assert program.pointwise[2].domain == (("i", "N"), ("j", "N"))


def test_a_computed_operand_is_rounded_like_the_other():
    rounded = build(lambda x, w, u: (x @ w) @ u, x="f16[M,K]", w="f16[K,N]", u="f16[N,K]")
    assert [s.dtype.name for s in rounded.statements] == ["f32", "f16", "f32", "f16"]
    x, w, u = np.full((1, 3), 1000.0), np.full((3, 1), 0.7), np.ones((1, 3))
    (got,) = evaluate(rounded, {"x": x, "w": w, "u": u}, round_outputs=False)
    assert got[0, 0] == float(np.float16(np.float32(x @ w)[0, 0]))


def test_a_computed_operand_of_tf32_stays_f32():
    program = build(lambda x, w, u: (x @ w) @ u, x="tf32[M,K]", w="tf32[K,N]", u="tf32[N,K]")
    assert [str(s) for s in program.statements[:2]] == [
        "v0[i,j] += x[i,k] * w[k,j]",
        "v1[i,j] += v0[i,k] * u[k,j]",
    ]
    assert program.outputs[0].dtype.name == "f32"
    both = build(lambda x, w: (x @ w) @ (x @ w).T, x="tf32[M,K]", w="tf32[K,N]")
    assert len(both.statements) == 3


def test_two_computed_operands_take_what_their_products_store():
    program = build(lambda x, w: (x @ w) @ (x @ w).T, x="f16[M,K]", w="f16[K,N]")
    assert [s.dtype.name for s in program.pointwise] == ["f16", "f16"]
    assert str(program.contractions[1]) == "v2[i,j] += v1[i,k] * v1[j,k]"


def test_views_of_one_computed_operand_share_its_value():
    program = build(lambda x: pg.relu(x) @ pg.relu(x).T)
    assert [s.function for s in program.pointwise] == ["maximum", "cast", "cast"]


def test_chains_deeper_than_the_stack():
    def function(sq):
        value = sq
        for _ in range(1200):
            value = value @ sq
        return value

    program = build(function)
    assert len(program.contractions) == 1200
    (got,) = evaluate(program, {"sq": np.eye(2)}, round_outputs=False)
    assert np.array_equal(got, np.eye(2))


def test_affine_indices_are_in_their_simplest_form():
    assert affine("i", 1, 0) == "i"
    assert affine(3, 2, 1) == 7
    assert affine(Affine("i", -1, 5), -1, 5) == "i"
    assert affine(Affine("i", 2, 1), 3, 1) == Affine("i", 6, 4)
    assert [str(Affine("i", *form)) for form in ((2, 0), (1, 3), (-1, 4), (3, -2))] == [
        "2*i", "i+3", "-i+4", "3*i-2",
    ]  # fmt: skip
    assert Access("x", ("i", 0, Affine("j", 2, 1))).iterators == ("i", "j")


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda bx, bw: (bx @ bw).mT, "(bx @ bw).mT"),
        (lambda bx, bw: (bx @ bw).T, "(bx @ bw).transpose(2, 1, 0)"),
        (lambda bx, bw: (bx @ bw)[:, None], "(bx @ bw)[:, None, :, :]"),
        (lambda bx, bw: (bx @ bw)[0], "(bx @ bw)[0, :, :]"),
        (lambda long: long[..., ::2], "long[:, :, ::2]"),
        (lambda long: long[..., 1:4], "long[:, :, 1:4]"),
        (lambda long: long[..., ::-1], "long[:, :, ::-1]"),
        (lambda long: long[..., 2:].mT[None], "long[:, :, 2:].mT[None, :, :, :]"),
        (lambda x, u: np.einsum("mk,nk->mn", x, u), 'einsum("ac,bc->ab", x, u)'),
        (lambda x, w: np.einsum("mk,kn->mn", x, w), "x @ w"),
    ],
)
def test_values_read_as_they_are_written(function, text):
    seen = []
    names = function.__code__.co_varnames[: function.__code__.co_argcount]

    def record(*arguments):
        seen.append(repr(function(*arguments)))
        return arguments[0] @ np.swapaxes(arguments[0], -1, -2)

    with contextlib.suppress(TraceError):  # an argument is left unused
        build_program(record, "k", "", [parse_signature(f"{n}:{ARRAYS[n]}") for n in names])
    assert f"<traced {text}: " in seen[0]


def test_shapes_of_traced_values():
    seen = []

    def function(hx, hw):
        seen.append((hx.mT.shape, hx[..., None].shape, (hx @ hw).shape, np.ndim(hx @ hw)))
        return hx @ hw

    build(function)
    assert seen == [
        (("B", "H", "K", "M"), ("B", "H", "M", "K", 1), ("B", "H", "M", "N"), 4)
    ]  # fmt: skip


def test_public_products_are_numpy_on_arrays():
    x, w = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    assert np.array_equal(polygen.matmul(x, w), x @ w)
    assert np.array_equal(polygen.einsum("ij,jk->ki", x, w), (x @ w).T)
