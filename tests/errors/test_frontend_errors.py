"""What the front end refuses, and that each message names the culprit and the way out."""

import math

import numpy as np
import pytest

import polygen
from polygen.errors import (
    ArgumentError,
    DTypeError,
    ExpressionError,
    ShapeError,
    SignatureError,
    TraceError,
    UnsupportedProgram,
)
from polygen.frontend import functions as pg
from polygen.frontend.build import build_program
from polygen.frontend.dtypes import BF16, BOOL
from polygen.frontend.evaluate import evaluate
from polygen.frontend.parse import parse_expression
from polygen.frontend.program import Tensor
from polygen.frontend.signature import parse_signature

ARRAYS = {
    "x": "bf16[M,K]",
    "w": "bf16[K,N]",
    "b": "f32[N]",
    "c": "f32[M]",
    "r": "bf16[M,N]",
    "s": "f32",
}
captured = np.ones((2, 2))


def build(function, out_dtypes=None, acc_dtype="f32", **override):
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    tensors = [parse_signature(f"{n}:{override.get(n, ARRAYS.get(n))}") for n in names]
    return build_program(function, "kernel", "", tensors, out_dtypes, acc_dtype)


def refuses(error, function, *fragments, **keywords):
    with pytest.raises(error) as caught:
        build(function, **keywords)
    for fragment in fragments:
        assert fragment in str(caught.value), str(caught.value)


def conditional(x, w):
    return x @ w if x @ w > 0 else x


def loop(x, w):
    return sum(row for row in x @ w)


def assignment(x, w):
    value = x @ w
    value[0] = 1
    return value


def into_array(x, w):
    array = np.zeros((2, 2))
    array += x @ w
    return array


WHERE = "pg.where"


@pytest.mark.parametrize(
    ("function", "fragments"),
    [
        (conditional, ("condition", "x @ w > 0", WHERE)),
        (lambda x, w: max(x @ w, 0), ("max", "np.maximum")),
        (lambda x, w: 0 < x @ w < 1, ("chained", "logical_and")),
        (lambda x, w: (x @ w) and x, ("and", WHERE)),
        (loop, ("loop over", WHERE)),
        (lambda x, w: 1 in x @ w, ("loop over",)),
        (lambda x, w: x @ w * len(x), ("len() of x", WHERE)),
        (lambda x, w: math.exp(x @ w), ("float()", "pg.exp")),
        (lambda x, w: int(x @ w), ("int() of",)),
        (lambda x, w: [1, 2][x @ w], ("index",)),
        (lambda x, w: np.asarray(x @ w), ("NumPy array made from",)),
        (assignment, ("assignment", WHERE)),
        (into_array, ("np.add with out=",)),
        (lambda x, w: x @ w // 2, ("operator on x @ w", "not in the vocabulary", "+ - * /")),
        (lambda x, w: 2 % (x @ w), ("operator on x @ w", "not in the vocabulary", "+ - * /")),
        (lambda x, w: x @ w * (1 / 0), ("the function raises ZeroDivisionError",)),
    ],
)
def test_what_needs_a_number(function, fragments):
    refuses(TraceError, function, *fragments)


@pytest.mark.parametrize(
    ("function", "fragments"),
    [
        (lambda x, w: np.arctan(x @ w), ("polygen has no `np.arctan`", "`arctan2(a, 1)`")),
        (
            lambda x, w: np.log2(x @ w),
            ("polygen has no `np.log2`", "Write `log(a) * 1.4426950408889634`"),
        ),
        (
            lambda x, w: np.cumsum(x @ w),
            ("np.cumsum", "There are sum, prod, max", "cumsum outside"),
        ),
        (lambda x, w: (x @ w).median(), (".median", "There are sum, prod, max", "median outside")),
        (lambda x, w: np.linalg.inv(x @ w), ("polygen has no `np.linalg.inv`", "docs/reference")),
        (lambda x, w: np.fft.fft(x @ w), ("polygen has no `np.fft.fft`", "docs/reference.md")),
        (lambda x, w: np.median(x @ w), ("np.median",)),
        (lambda x, w: np.add.accumulate(x @ w), ("np.add.accumulate", "reduction")),
        (lambda x, w: (x @ w).cumsum(), ("polygen has no `.cumsum` of x @ w",)),
        (lambda x, w: np.exp(x @ w, where=True), ("np.exp with where=",)),
        (lambda x, w: np.clip(x @ w, 0, 1, out=None), ("np.clip with out=",)),
        (lambda x, w: np.where(x @ w), ("np.where",)),
        (lambda x, w: np.reshape(x @ w, (1,), order="F"), ("np.reshape", "arguments")),
        (lambda x, w: x @ w + captured, ("captured array", "(2, 2)", "argument")),
        (lambda x, w: captured + x @ w, ("captured array", "(2, 2)", "argument")),
        (lambda x, w: pg.where(captured > 0, x @ w, 0), ("captured array",)),
        (lambda x, w: captured @ w + x, ("captured array",)),
        (lambda x, w: x @ w + "1", ("operand is a str",)),
        (lambda x, w: x @ w + 1j, ("operand is a complex",)),
        (lambda x, w: x @ w + np.complex64(1), ("operand is a complex64",)),
        (lambda x, w: x @ w + np.str_("1"), ("add", "str")),
        (lambda x, w: x @ w + [1.0], ("operand is a list",)),
        (lambda x, w: x @ w + None, ("operand is a NoneType",)),
        (lambda x, w: x @ w + 10**400, ("2**1328 or more", "Use 3.4028235e+38")),
        (
            lambda x, w: (x @ w)[1],
            ("indexing of x @ w", "[M, N]", "with 1", "depends on M", "static"),
        ),
        (lambda x, w: (x @ w)[:, :, :], ("indexing", "3 indices", "2 axes")),
        (lambda x, w: (x @ w)[..., ...], ("indexing", "several ellipses")),
        (lambda x, w: (x @ w)[1:], ("indexing", "with 1:", "depends on M", "in the signature")),
        (lambda x, w: (x @ w)[:, ::2], ("with ::2", "depends on N")),
        (lambda x, w: (x @ w)[..., :64], ("with :64", "depends on N")),
        (lambda x, w: (x @ w)[: x[0, 0]], ("indexing of x @ w", "v[:, ::2]")),
        (lambda x, w: (x @ w)[True], ("indexing of x @ w", "with True")),
        (lambda x, w: (x @ w)[0.5:], ("indexing of x @ w", "with 0.5:")),
        (lambda x, w: (x @ w)["a"], ("indexing of x @ w", "with 'a'")),
        (lambda x, w: (x @ w)[[0, 1]], ("indexing of x @ w", "with [0, 1]")),
        (lambda x, w: np.einsum("mk,kn->mq", x, w), ("output names q", "which no operand has")),
        (lambda x, w: np.einsum("mk,kn->mm", x, w), ("output names m 2 times",)),
        (lambda x, w: np.einsum("mk,kn->mn", x), ("name 2 operands and 1 are given", "einsum(")),
        (lambda x, w: np.einsum("mk->km", x, w), ("name 1 operands and 2 are given",)),
        (lambda x, w: np.einsum("m-k,kn->mn", x, w), ("'m-k' is no term", "a letter per axis")),
        (lambda x, w: np.einsum("mk,kn->m->n", x, w), ("'m->n' is no term",)),
        (lambda x, w: np.einsum("m k..k.,kn", x, w), ("is no term",)),
        (lambda x, w: np.einsum("...k,kn->n", x, w), ("leading axes", "output has none", "...n")),
        (lambda x, w: np.einsum(x, [0, 1], w, [1, 2]), ("subscripts <traced x", "a text")),
        (lambda x, w: np.einsum("mk,kn", x, w, out=None), ("np.einsum", "arguments")),
        (lambda x, w: np.einsum("mk,kn", x, captured), ("captured array", "(2, 2)")),
        (lambda x, w: np.round(x @ w, 2), ("np.round to 2 decimals", "np.round(x * 100) / 100")),
        (lambda x, w: pg.relu(x @ w, 0), ("relu got 2 arguments", "relu(x)")),
        (lambda x, w: pg.clip(x @ w), ("clip lacks lo, hi",)),
        (lambda x, w: pg.clip(x @ w, high=1), ("'high'", "clip(x, lo, hi)")),
        (lambda x, w: pg.clip(x @ w, 1, x=1), ("'x'", "twice")),
        (lambda x, w: 1.0, ("output 0 is a float",)),
        (lambda x, w: None, ("output 0 is a NoneType",)),
        (lambda x, w: (x @ w, 3), ("output 1 is a int",)),
        (lambda x, w: (), ("returns 0 values",)),
        (lambda x, w: (x @ w,) * 9, ("returns 9 values", "1 to 8")),
        (lambda x, w, b: x @ w, ("unused argument b", "kernel")),
        (
            lambda x, w, b: (x @ w) + len({(b - b).reshape(-1).T.shape[0]}),
            ("unused argument b",),
        ),
    ],
)
def test_what_a_trace_cannot_follow(function, fragments):
    refuses(TraceError, function, *fragments)


def test_values_do_not_cross_traces():
    kept = []
    build(lambda x, w: kept.append(x @ w) or x @ w)
    refuses(TraceError, lambda x, w: x @ w + kept[0], "another run")
    refuses(TraceError, lambda x, w: kept[0], "output 0")


@pytest.mark.parametrize(
    ("function", "override", "fragments"),
    [
        (
            lambda x, w: x @ w,
            {"w": "bf16[N,L]"},
            ("x @ w: x has inner dim K, w has inner dim N", "one name"),
        ),
        (
            lambda x, w: x @ w,
            {"w": "bf16[N,K]"},
            ("inner dim K", "inner dim N", "Or did you mean x @ w.T?"),
        ),
        (
            lambda x, w: x @ w,
            {"w": "bf16[64,N]"},
            ("inner dim K", "inner dim 64", "if K is always 64"),
        ),
        (lambda x, w: x @ w, {"x": "bf16[M,32]", "w": "bf16[64,N]"}, ("32", "64", "must be equal")),
        (
            lambda x, w: x @ w,
            {"x": "bf16[M,32]", "w": "bf16[1,N]"},
            ("w has inner dim 1", "An axis of size 1 is not stretched along a sum", "be equal."),
        ),
        (lambda x, w: (x @ w) @ 2, {}, ("x @ w @ 2: 2 has 0 axes", "scalar", "Use *")),
        (lambda x, s: s @ x, {}, ("s @ x: s has 0 axes",)),
        (
            lambda x, w: x @ w,
            {"x": "bf16[N]", "w": "bf16[B,K,N]"},
            ("x has inner dim N, w has inner dim K", "x is [N], w is [B, K, N]", "one name"),
        ),
        (
            lambda x, w: x @ w,
            {"x": "bf16[B,M,K]", "w": "bf16[B,N,K]"},
            ("inner dim K", "inner dim N", "Or did you mean x @ w.mT?"),
        ),
        (
            lambda x, w: x @ w,
            {"x": "bf16[B,M,K]", "w": "bf16[C,K,N]"},
            ("x @ w: batch dims of x and w: x has B where w has C", "[C, K, N]", "one name"),
        ),
        (
            lambda x, w: x @ w,
            {"x": "bf16[2,H,M,K]", "w": "bf16[3,1,K,N]"},
            ("batch dims", "x has 2 where w has 3", "must be equal, or one of them 1"),
        ),
        (
            lambda x, w, b: x @ w + b,
            {"x": "bf16[B,M,K]", "b": "f32[C,1,N]"},
            ("add of x @ w and b", "x @ w has B where b has C"),
        ),
        (
            lambda x, w: np.einsum("mk,kn->mn", x, w),
            {"w": "bf16[L,N]"},
            ("k stands for dims that differ: x has K, w has L", "[L, N]", "one name"),
        ),
        (
            lambda x, w: np.einsum("mk,kn->mn", x, w),
            {"w": "bf16[1,N]"},
            ("x has K, w has 1", "not stretched along a sum"),
        ),
        (
            lambda x, w: np.einsum("bmk,bkn->bmn", x, w),
            {"x": "bf16[2,M,K]", "w": "bf16[3,K,N]"},
            ("b stands for dims that differ: x has 2, w has 3", "or one of them 1"),
        ),
        (
            lambda x, w: np.einsum("...mk,...kn->...mn", x, w),
            {"x": "bf16[B,M,K]", "w": "bf16[C,K,N]"},
            ("a leading axis stands for dims that differ", "x has B, w has C"),
        ),
        (lambda x, w: np.einsum("bmk,kn", x, w), {}, ("'bmk' names 3 axes, x has 2", "[M, K]")),
        (lambda x, w: np.einsum("mk,n", x, w), {}, ("'n' names 1 axes, w has 2", "write ...")),
        (lambda x, w: np.einsum("mk...,knb...", x, w), {}, ("'knb...' names 3 axes, w has 2",)),
        (lambda x, w: (x @ w)[8], {"x": "bf16[8,K]"}, ("with 8", "the axis has 8 elements")),
        (lambda x, w: (x @ w)[-9], {"x": "bf16[8,K]"}, ("with -9", "the axis has 8 elements")),
        (lambda x, w: (x @ w)[8:], {"x": "bf16[8,K]"}, ("with 8:", "nothing is left of 8")),
        (lambda x, w: (x @ w)[::0], {"x": "bf16[8,K]"}, ("with ::0", "the step is 0")),
        (lambda x, w: x.swapaxes(0, 2) @ w, {}, ("axes 0 and 2 of x", "2 axes", "-2 to 1")),
        (lambda x, w: x.swapaxes(0, "a") @ w, {}, ("axes 0 and 'a' of x", "2 axes")),
        (lambda x, w: np.swapaxes(x, 0, -3) @ w, {}, ("axes 0 and -3 of x",)),
        (lambda x, w, b: x @ w + b.mT, {}, ("matrix transpose of b", "[N]", "two axes")),
        (lambda x, w: x.transpose(0, 1, 2) @ w, {}, ("transpose of x", "(0, 1, 2)", "2 axes")),
        (lambda x, w: x.transpose(0.5, 1) @ w, {}, ("transpose of x", "each of them once")),
        (lambda x, w, c: x @ w + c, {}, ("add of x @ w and c", "x @ w has N where c has M")),
        (lambda x, w, b: x @ w + b, {"b": "f32[64]"}, ("N", "64", "write 64 in its place")),
        (lambda x, w, b: x @ w + b, {"b": "f32[64]", "w": "bf16[K,32]"}, ("has 32", "has 64")),
        (lambda x, w, b: pg.where(b > 0, x @ w, b), {"b": "f32[K]"}, ("where of b > 0 and x @ w",)),
        (lambda x, w, r: x @ w + r.reshape(-1), {}, ("reshape of r from [M, N] to [-1]",)),
        (lambda x, w, b: x @ w + b.reshape(2, -1), {}, ("reshape of b",)),
        (lambda x, w: (x @ w).transpose(0, 0), {}, ("transpose of x @ w", "(0, 0)")),
    ],
)
def test_shapes(function, override, fragments):
    refuses(ShapeError, function, *fragments, **override)


@pytest.mark.parametrize("dim", ["0", "-3"])
def test_sizes_below_one(dim):
    with pytest.raises(ShapeError, match=f"size of {dim}.*at least 1"):
        parse_signature(f"x:bf16[{dim},K]")


@pytest.mark.parametrize(
    ("function", "override", "fragments"),
    [
        (lambda x, w: x @ w, {"w": "e4m3[K,N]"}, ("x is bf16, w is e4m3", "one dtype")),
        (
            lambda x, w: x @ w,
            {"x": "s8[M,K]", "w": "e4m3[K,N]"},
            ("x is s8, w is e4m3", "s8 and u8, e4m3 and e5m2, or f16 and bf16"),
        ),
        (lambda x, w: x @ w, {"x": "u8[M,K]"}, ("x is u8", 'x.astype("bf16")')),
        (
            lambda x, w: x @ w,
            {"x": "f32[M,K]"},
            ("x is f32, the other operand bf16", "Say f32[...] of both; or tf32[...]"),
        ),
        (lambda x, w: x @ w, {"x": "f32[M,K]", "w": "tf32[K,N]"}, ("the other operand tf32",)),
        (lambda x, w: (x @ w).astype("tf32"), {}, ("tf32", "f32")),
        (
            lambda x, w: (x @ w).astype("float64"),
            {},
            ("f64 beside S0, whose sums are f32", "Use f32"),
        ),
        (lambda x, w: (x @ w).astype("float96"), {}, ("float96", "Known")),
        (lambda x, w: x @ w, {"x": "f64[M,K]"}, ("x is f64, w is bf16", "one dtype")),
        (lambda x, w: (x @ w > 0) + (x @ w > 1), {}, ("add of bool", "logical_and", "astype")),
        (lambda x, w: np.exp(x @ w > 0), {}, ("exp of bool",)),
        (
            lambda x, w: x.astype("f16") @ w,
            {"w": "tf32[K,N]"},
            ('x.astype("f16") is f16, w is tf32', "one dtype"),
        ),
        (
            lambda x, w, u: (x @ w) @ u,
            {"x": "s8[M,K]", "w": "s8[K,N]", "u": "s8[N,K]"},
            ("x @ w @ u: the computed operand x @ w is f32", "is s8", "Return x @ w from one func"),
        ),
        (
            lambda x, w: pg.relu(x) @ w,
            {"x": "e4m3[M,K]", "w": "e4m3[K,N]"},
            (
                "maximum(x, 0) is f32",
                "only 16-bit types, tf32, f32 and f64",
                'Write (maximum(x, 0)).astype("bf16"), and .astype("bf16") behind the other',
            ),
        ),
        (lambda x, w: (x > 0) @ w, {"w": "bool[K,N]"}, ("is bool", '.astype("bf16"), and .astype')),
        (lambda x, w: (x @ w) & 1, {}, ("bit operation on x @ w, which is f32",)),
        (lambda x, w: ~(x @ w), {}, ("bit operation",)),
    ],
)
def test_dtypes(function, override, fragments):
    refuses(DTypeError, function, *fragments, **override)


@pytest.mark.parametrize("kind", ["s8", "e4m3"])
def test_what_is_said_of_functions_of_8_bit_operands_leads_to_a_kernel(kind):
    signature = (f"{kind}[M,K]", f"{kind}[K,N]")
    rounded = polygen.fuse(lambda x, w: pg.relu(x).astype(kind) @ w)
    with pytest.raises(UnsupportedProgram, match=r'Write .astype\("bf16"\) behind both operands'):
        rounded.compile(*signature, arch="sm_80")
    advised = polygen.fuse(lambda x, w: pg.relu(x).astype("bf16") @ w.astype("bf16"))
    assert advised.compile(*signature, arch="sm_80").source
    twice = polygen.fuse(lambda x, w, v: pg.relu(x @ w).astype(kind) @ v)
    with pytest.raises(UnsupportedProgram, match=r"in a second|make two functions"):
        twice.compile(f"{kind}[M,64]", f"{kind}[64,N]", f"{kind}[N,64]", arch="sm_90a", single=True)


@pytest.mark.parametrize(
    ("keywords", "fragments"),
    [
        ({"acc_dtype": "f16"}, ("acc_dtype f16 with bf16", "Use f32")),
        ({"acc_dtype": "s32"}, ("acc_dtype s32 with bf16", "Use f32")),
        ({"acc_dtype": "f16", "x": "s8[M,K]", "w": "s8[K,N]"}, ("f16 with s8", "Use s32")),
        ({"acc_dtype": "f64"}, ("acc_dtype f64 with bf16", "Use f32")),
        ({"out_dtypes": "tf32"}, ("output cannot be tf32", "Use f32")),
        ({"out_dtypes": "f8"}, ("f8", "Known")),
        ({"out_dtypes": ("f16", "f16")}, ("2 dtypes for 1 outputs",)),
    ],
)
def test_requested_dtypes(keywords, fragments):
    refuses(DTypeError, lambda x, w: x @ w, *fragments, **keywords)


@pytest.mark.parametrize(
    ("function", "fragments"),
    [
        (lambda x, b: pg.gelu(x + b), ("reads no contraction", "gelu(x + b)", "x @ w")),
        (lambda x, w, r: (x @ w, r * 2), ("output 1, r * 2, reads no contraction",)),
        (
            lambda x: x.sum(axis=0),
            ("output 0, sum(x, axis=0), reads no", "along the axis that it sums"),
        ),
        (lambda x: np.einsum("mk->km", x), ("x.T, reads no contraction",)),
        (lambda x: np.einsum("mk->m", x), ("a sum over k, an axis of x alone", 'einsum("mk->m"')),
        (lambda x: np.einsum("mm->m", x), ("'mm' takes a diagonal of x", "names m 2 times")),
        (lambda x: np.einsum("mm", x), ("'mm' takes a diagonal of x", "letter of its own")),
        (lambda x, w: np.einsum("mk,kk->mk", x, w), ("'kk' takes a diagonal of w",)),
        (lambda x, w: np.einsum("mk,kn->m", x, w), ("a sum over n, an axis of w alone", "Keep n")),
        (lambda x, w: np.einsum("mk,ln->mn", x, w), ("a sum over k, an axis of x alone",)),
        (
            lambda x, w, r: np.einsum("mk,kn,mj->mn", x, w, r),
            ("a sum over j, an axis of r alone", "step 2", '"mn,mj->mn"', "Keep j in the output"),
        ),
    ],
)
def test_unsupported_programs(function, fragments):
    refuses(UnsupportedProgram, function, *fragments, b="f32[K]")


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("", ("not an argument description", "name:dtype[dims]", "x:bf16[M,K]")),
        ("x:bf16[M,K", ("not an argument description",)),
        ("x bf16[M,K]", ("not an argument description",)),
        ("x:bf17[M,K]", ("unknown dtype 'bf17'", "bf16", "name:dtype[dims]")),
        ("x:bf16[M,,K]", ("empty dim",)),
        ("x:bf16[M,K+1]", ("'K+1' is not a dim",)),
        ("x:bf16[i,K]", ("'i' is taken by a loop", "'I'")),
        ("x:bf16[M,K]:diagonal", ("layout 'diagonal'", "row or col")),
        ("x:bf16[M]:col", ("layout 'col' of 1 dim",)),
        ("x:bf16[B,M,K]:01", ("layout '01' of 3 dim", "as in 021", "slowest")),
        ("x:bf16[B,M,K]:013", ("layout '013' of 3 dim",)),
        ("x:bf16[B,M,K]:011", ("layout '011' of 3 dim",)),
        ("x:bf16[B,M,K]:2x1", ("layout '2x1' of 3 dim",)),
        ("x:f32:0", ("layout '0' of 0 dim",)),
        ("x:bf16[B,j,K]", ("'j' is taken by a loop",)),
        ("x:bf16[M,K]@3", ("alignment of 3", "power of two")),
        ("x:f32[M,K]@2", ("alignment of 2", "4 byte")),
        ("x:bf16[M,K]@0", ("alignment of 0",)),
    ],
)
def test_signature_text(text, fragments):
    with pytest.raises(SignatureError) as caught:
        parse_signature(text)
    for fragment in fragments:
        assert fragment in str(caught.value), str(caught.value)
    assert repr(text) in str(caught.value)


def test_other_signature_errors():
    with pytest.raises(DTypeError, match=r"scalar cannot be bf16.*f32\[\]"):
        parse_signature("s:bf16")


def given(*texts):
    return [parse_signature(text) for text in texts]


@pytest.mark.parametrize(
    ("function", "tensors", "error", "fragment"),
    [
        (lambda x, w: x @ w, given("bf16[M,K]"), SignatureError, "1 arguments are described"),
        (lambda x: x @ x.T, given("bf16[M,K]", "f32[N]"), SignatureError, "takes 1"),
        (lambda x, w: x @ w, given("w:bf16[K,N]", "x:bf16[M,K]"), SignatureError, "in that order"),
        (
            lambda *a: a[0] @ a[1],
            given("q:bf16[M,K]", "q:bf16[K,N]"),
            SignatureError,
            "two arguments",
        ),
        (lambda x, w: x @ w, given("bf16[M,w]", "bf16[w,N]"), SignatureError, "w is both"),
        (lambda x, w, *, b: x @ w, given("bf16[M,K]", "bf16[K,N]"), SignatureError, "keyword-only"),
        (lambda x: x @ x.T, [Tensor("a b", BF16, ("M", "K"))], SignatureError, "not a name"),
        (lambda x: x @ x.T, [Tensor("x", BF16, ("M", 1.5))], SignatureError, "1.5 is not a dim"),
        (lambda x: x @ x.T, [Tensor("x", BF16, ("M", True))], SignatureError, "True is not a dim"),
        (
            lambda x: x @ x.T,
            [Tensor("x", BF16, ("M", "K"), (0, 0))],
            SignatureError,
            "order (0, 0)",
        ),
        (lambda x: x @ x.T, [Tensor("x", BOOL, ("M", "K"))], DTypeError, "x is bool"),
    ],
)
def test_tensors_that_do_not_fit_the_function(function, tensors, error, fragment):
    with pytest.raises(error) as caught:
        build_program(function, "k", "", tensors)
    assert fragment in str(caught.value)


@pytest.mark.parametrize(
    ("text", "column", "fragments"),
    [
        ("gelo(x @ w)", 0, ("unknown function 'gelo'", "Did you mean gelu")),
        ("1 + np.linalg.inv(x @ w)", 4, ("polygen has no `np.linalg.inv`", "reference.md")),
        ("pg.random.uniform(x @ w)", 0, ("expressions have no `pg.random.uniform`", ":FUNCTION")),
        ("x @ w + np.sinc(x)", 8, ("polygen has no `sinc`",)),
        ("x @ ww", 4, ("unknown name 'ww'", "Did you mean w?")),
        ("x @ relu", 4, ("unknown name 'relu'", "relu is a function")),
        ("x @ w if x else w", 0, ("conditional", "`where(x, x @ w, w)`")),
        ("x @ w > 0 and x > 0", 0, ("logical_and",)),
        ("not x", 0, ("logical_not",)),
        ("0 < x @ w < 1", 0, ("chained comparison", "logical_and")),
        ("x @ w // 2", 0, ("//", "`x @ w / 2`")),
        ("x in w", 0, ("In is not part",)),
        ("lambda: x", 0, ("lambda",)),
        ("(y := x) @ w", 1, ("assignment",)),
        ("[v for v in x]", 0, ("ListComp",)),
        ("relu(*x)", 5, ("Starred",)),
        ("x.median()", 0, (".median", "There are sum, prod, max")),
        ("x.shape", 0, (".shape", ".T")),
        ("np.tau * x", 0, ("unknown constant 'tau'", "pi")),
        ("x[y]", 2, ("index that is no constant", "c[:, None]", "v[:, ::2]")),
        ("x[w + 1]", 2, ("index that is no constant", "as x[rows]")),
        ("x[:, 1.5:]", 5, ("index",)),
        ("x[0.5]", 2, ("index",)),
        ("x['a']", 2, ("index",)),
        ("x[True]", 2, ("index",)),
        ("x.mt", 0, (".mt", ".mT")),
        ("x.swapaxes(w, 1)", 0, (".swapaxes takes axes as numbers", ".transpose(0, 2, 1)")),
        ("x.transpose(axes=1)", 0, (".transpose takes axes as numbers",)),
        ("swapaxes(x, 1)", 0, ("swapaxes", "missing")),
        ("x @ w +", 6, ("invalid syntax",)),
        ("x @ (w", 4, ("never closed",)),
        ("x = w", 2, ("syntax",)),
        ("x @ w + 'a'", 8, ("'a' is not a number",)),
        ("x @ w + True", 8, ("True is not a number",)),
        ("x + 1" + "0" * 400, 4, ("too large",)),
        ("relu(x, w)", 0, ("relu", "too many")),
        ("clip(x)", 0, ("clip", "missing", "'lo'")),
        ("clip(x, 0, high=1)", 0, ("high",)),
        ("clip(x, 0, hi=w)", 14, ("keyword's value",)),
        ("x.astype('f99')", 9, ("f99", "Known: f16")),
        ("x.astype(16)", 0, (".astype takes one dtype",)),
        ("__import__('os')", 0, ("unknown function",)),
        ("x.__class__", 0, (".__class__",)),
        ("(relu)(x)(w)", 0, ("cannot be called",)),
        ("x\n@ w", 1, ("more than one line",)),
        ("x + " * 2000 + "x", 4096, ("8001 characters", "FILE.py:FUNCTION")),
        ("é + x", 0, ("unknown name 'é'",)),
        ("x + 'é' + y", 4, ("'é' is not a number",)),
    ],
)
def test_expression_text(text, column, fragments):
    with pytest.raises(ExpressionError) as caught:
        parse_expression(text, ["x", "w"])
    message = str(caught.value)
    for fragment in fragments:
        assert fragment in message, message
    assert caught.value.column == column
    assert isinstance(caught.value, TraceError)
    shown, caret = message.splitlines()[-2:]
    assert caret.strip() == "^" and len(shown) <= 80
    assert shown[len(caret) - 1 :].rstrip("…") in text[column:].replace("\n", "�")


@pytest.mark.parametrize(
    ("text", "column", "fragment"),
    [
        ("x @ w + 1 / 0", 8, "division by zero"),
        ("x @ w + 9 ** 9 ** 9", 8, "cannot compute"),
        ("x @ w + (-8) ** 0.5", 8, "complex"),
        ("x @ w * (1 @ 2)", 9, "cannot compute"),
        ("x @ w * (1).T", 8, "cannot compute"),
    ],
)
def test_arithmetic_of_constants(text, column, fragment):
    function = parse_expression(text, ["x", "w"])
    with pytest.raises(ExpressionError) as caught:
        build_program(function, "k", text, given("bf16[M,K]", "bf16[K,N]"))
    assert fragment in str(caught.value)
    assert caught.value.column == column


def test_evaluate_checks_its_arrays():
    program = build(lambda x, w: x @ w)
    with pytest.raises(ArgumentError, match=r"no array for w.*bf16\[K, N\]"):
        evaluate(program, {"x": np.ones((2, 3))})
    with pytest.raises(ArgumentError, match=r"\(4, 5\).*K = 3"):
        evaluate(program, {"x": np.ones((2, 3)), "w": np.ones((4, 5))})
    with pytest.raises(ArgumentError, match=r"\(3,\)"):
        evaluate(program, {"x": np.ones((2, 3)), "w": np.ones(3)})
    with pytest.raises(ArgumentError, match="M = 7"):
        evaluate(program, {"x": np.ones((2, 3)), "w": np.ones((3, 5))}, {"M": 7})
