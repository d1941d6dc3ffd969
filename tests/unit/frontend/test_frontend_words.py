"""NumPy's statistics, norms, selections and products of vectors: what they mean, and spellings."""

from __future__ import annotations

import numpy as np
import pytest

import polygen as pg
from polygen.errors import ShapeError, TraceError
from polygen.frontend import norms, products, selecting, statistics
from polygen.frontend.build import build_program
from polygen.frontend.dtypes import BF16, F32, S32, TF32
from polygen.frontend.evaluate import evaluate, reference
from polygen.frontend.names import closest, known_names
from polygen.frontend.parse import parse_expression
from polygen.frontend.program import Tensor
from polygen.frontend.steps import steps_of
from polygen.frontend.written import FUNCTIONS

X, W, R = Tensor("x", BF16, ("M", "K")), Tensor("w", BF16, ("N", "K")), Tensor("r", F32, ("M", "N"))
STACK = Tensor("x", BF16, ("B", "M", "K")), Tensor("w", BF16, ("B", "K", "N"))
SIZES = {"M": 5, "N": 6, "K": 8, "B": 2, "L": 4}
PLACES = Tensor("t", S32, ("M",))
# NumPy has them from 2.2 on.
MATVEC, VECMAT = getattr(np, "matvec", pg.matvec), getattr(np, "vecmat", pg.vecmat)


def arrays_for(tensors, seed=5):
    generator = np.random.default_rng(seed)
    shapes = [tuple(SIZES.get(d, d) for d in tensor.dims) for tensor in tensors]
    return [
        generator.integers(-3, 4, shape).astype(np.int32 if tensor.dtype == S32 else np.float32)
        for tensor, shape in zip(tensors, shapes, strict=True)
    ]


def agree(function, tensors=(X, W), arrays=None, rtol=1e-12):
    """The statements say what NumPy says of the function; eight results at a time."""
    arrays = arrays_for(tensors) if arrays is None else arrays
    given = dict(zip((tensor.name for tensor in tensors), arrays, strict=True))
    with np.errstate(all="ignore"):
        wanted = reference(function, arrays)
    several = isinstance(wanted, tuple)
    wanted, found, made = wanted if several else (wanted,), [], None
    for first in range(0, len(wanted), 8):
        own = (lambda *a, at=first: function(*a)[at : at + 8]) if several else function
        made = build_program(own, "f", "f", tensors)
        with np.errstate(all="ignore"):
            found += evaluate(made, given, round_outputs=False)
    for at, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert one.shape == other.shape, at
        np.testing.assert_allclose(
            one.astype(np.float64), other.astype(np.float64), rtol=rtol, err_msg=str(at)
        )
    return made


@pytest.mark.parametrize("axis", [0, 1, -1, (0, 1), None])
@pytest.mark.parametrize("keepdims", [False, True])
def test_statistics_are_numpys(axis, keepdims):
    def of(x, w):
        v = x @ w.T
        kept = {"axis": axis, "keepdims": keepdims}
        mean = np.mean(v, axis=axis, keepdims=True)
        return (
            np.var(v, **kept), np.var(v, ddof=1, **kept), np.var(v, correction=2.5, **kept),
            np.std(v, axis, None, None, 1, keepdims), v.std(**kept), np.ptp(v, **kept),
            np.var(v, mean=mean, **kept), np.average(v, **kept),
            np.linalg.vector_norm(v, **kept), np.linalg.vector_norm(v, ord=0, **kept),
            np.linalg.vector_norm(v, ord=-np.inf, **kept), np.linalg.vector_norm(v, ord=3, **kept),
            np.count_nonzero(v, axis, keepdims=keepdims) * 1.0,
        )  # fmt: skip

    agree(of)


def test_a_divisor_is_never_below_zero():
    agree(lambda x, w: (np.var(x @ w.T, axis=1, ddof=9), np.std(x @ w.T, axis=0, ddof=5)))


@pytest.mark.parametrize("order", [None, 1, 2, np.inf, -np.inf, 0, 1.5, -2])
def test_norms_of_vectors_are_numpys(order):
    agree(lambda x, w: np.linalg.norm(x @ w.T + 0.5, order, axis=1))
    agree(lambda x, w: np.linalg.norm(x @ w.T + 0.5, ord=order, axis=-2, keepdims=True))


def test_norms_of_matrices_are_numpys():
    def of(x, w):
        v = x @ w
        return (
            np.linalg.norm(v), np.linalg.norm(v, axis=(0, 2)), np.linalg.norm(v, "fro", (1, -1)),
            np.linalg.matrix_norm(v), np.linalg.matrix_norm(v, keepdims=True),
        )  # fmt: skip

    agree(of, STACK)


def test_averages_are_numpys():
    rows, columns = Tensor("c", F32, ("M",)), Tensor("b", F32, ("N",))

    def of(x, w, r, c, b):
        v = x @ w.T
        one, total = np.average(v, axis=0, weights=c, returned=True)
        return np.average(v, 1, b), one, total, np.average(v, weights=r), np.average(v, 1, r)

    agree(of, (X, W, R, rows, columns), [a + 4 for a in arrays_for((X, W, R, rows, columns))])
    agree(lambda x, w: np.average(x @ w.T, axis=1, returned=True))
    agree(lambda x, w, a: np.average(x @ w, axis=(1, 2), weights=a, keepdims=True),
          (*STACK, Tensor("a", F32, ("M", "N"))))  # fmt: skip


def test_chosen_elements_are_numpys():
    def of(x, w, r, t):
        v = x @ w.T + r
        return (
            np.take_along_axis(v, t[:, None], axis=1), np.take_along_axis(v, t[:, None], -1)[:, 0],
            np.take_along_axis(v, np.argmin(v, axis=0)[None], 0),
        )  # fmt: skip

    tensors = (X, W, R, PLACES)
    x, w, r, _ = arrays_for(tensors)
    r[1], r[:, 2] = np.nan, np.inf
    agree(of, tensors, [x, w, r, np.array([0, -1, 5, -6, 2], np.int32)])


def test_what_names_no_element_is_nan():
    made = build_program(
        lambda x, w, t: np.take_along_axis(x @ w.T, t[:, None], axis=1), "f", "f", (X, W, PLACES)
    )
    x, w, _ = arrays_for((X, W, PLACES))
    (found,) = evaluate(made, {"x": x, "w": w, "t": np.array([0, 6, -7, 5, -6])})
    assert np.isnan(found[[1, 2]]).all() and not np.isnan(found[[0, 3, 4]]).any()


@pytest.mark.parametrize("offset", [-2, 0, 1])
def test_traces_are_numpys(offset):
    agree(lambda x, w: np.trace(x @ w.T, offset))
    agree(lambda x, w: np.trace(x @ w, offset, axis1=0, axis2=2), STACK)
    agree(lambda x, w: np.linalg.trace(x @ w, offset=offset), STACK)


def test_diagonals_are_numpys():
    tall, wide = Tensor("x", BF16, (7, "K")), Tensor("w", BF16, (3, "K"))
    agree(lambda x, w: (x @ w.T).diagonal(), (tall, wide))
    agree(lambda x, w: np.diagonal(w @ x.T), (tall, wide))
    agree(lambda x, w: np.diagonal(x @ w, axis1=1, axis2=2),
          (STACK[0], Tensor("w", BF16, ("B", "K", "M"))))  # fmt: skip
    square = Tensor("x", BF16, (3, 3, "K")), Tensor("w", BF16, (3, "K", 4))
    agree(lambda x, w: np.diagonal(x @ w, axis1=1, axis2=0), square)


def test_products_of_vectors_are_numpys():
    fixed = Tensor("x", BF16, ("M", 8)), Tensor("w", BF16, ("N", 8))
    agree(lambda x, w, r: (np.vdot(x @ w.T, r), np.vecdot(x @ w.T, r), np.inner(x @ w.T, 2.0),
                           np.vecdot(x @ w.T, r, axis=0), np.linalg.vecdot(x @ w.T, r)),
          (X, W, R))  # fmt: skip
    agree(lambda x, w: (np.inner(x, w), np.linalg.matmul(x, w.T), pg.inner(x, w),
                        np.linalg.tensordot(x, w, axes=(1, 1)),
                        x @ w.T + np.outer(x[:, 0], w[:, 1]),
                        x @ w.T + np.linalg.outer(x[:, 0], w[:, 1])), fixed)  # fmt: skip
    agree(lambda x, b: MATVEC(x, b), (fixed[0], Tensor("b", BF16, (8,))))
    agree(lambda x, w: MATVEC(x, w), (STACK[0], Tensor("w", BF16, ("B", "K"))))
    agree(lambda w, b: VECMAT(b, w.T), (fixed[1], Tensor("b", BF16, (8,))))


def test_products_of_several_matrices_are_numpys():
    chain = tuple(Tensor(n, TF32, d) for n, d in zip("xwr", ((5, 8), (8, 3), (3, 9)), strict=True))
    made = agree(lambda x, w, r: np.linalg.multi_dot([x, w, r]), chain)
    assert str(made.contractions[0]) == "v0[i,j] += x[i,k] * w[k,j]"
    wide = tuple(Tensor(n, TF32, d) for n, d in zip("xwr", ((9, 3), (3, 8), (8, 2)), strict=True))
    made = agree(lambda x, w, r: np.linalg.multi_dot((x, w, r)), wide)
    assert str(made.contractions[0]) == "v0[i,j] += w[i,k] * r[k,j]"
    named = (
        Tensor("x", TF32, ("M", "K")),
        Tensor("w", TF32, ("K", "N")),
        Tensor("r", TF32, ("N", "L")),
    )
    made = agree(lambda x, w, r: np.linalg.multi_dot([x, w, r]), named)
    assert str(made.contractions[0]) == "v0[i,j] += x[i,k] * w[k,j]", "from the left"
    ends = Tensor("x", TF32, (3,)), wide[1], Tensor("r", TF32, (8,))
    agree(lambda x, w, r: np.linalg.multi_dot([x, w, r]) * 1.0, ends)
    square = (Tensor("x", TF32, ("B", 4, 4)),)
    for n, count in ((2, 1), (3, 2), (5, 3), (8, 3)):
        made = agree(lambda x, n=n: np.linalg.matrix_power(x, n), square)
        assert len(made.contractions) == count


@pytest.mark.parametrize(
    ("function", "error", "says"),
    [
        (lambda x, w: np.linalg.multi_dot([x]) @ w, ShapeError, "multi_dot of 1 array"),
        (lambda x, w: np.linalg.multi_dot([x, w[0], x]), ShapeError, "array 1 of multi_dot has 1"),
        (lambda x, w: np.linalg.multi_dot([x, w], out=x), TraceError, "multi_dot with out="),
        (lambda x, w: np.linalg.multi_dot([x, w.T]), ShapeError, "8"),
        (lambda x, w: np.linalg.matrix_power(x, 0) @ w, TraceError, "matrix_power to 0"),
        (lambda x, w: np.linalg.matrix_power(x, -1) @ w, TraceError, "matrix_power to -1"),
        (lambda x, w: np.linalg.matrix_power(x, 2.0) @ w, TraceError, "matrix_power to 2.0"),
        (lambda x, w: np.linalg.matrix_power(w, 2), ShapeError, r"matrix_power of \[8, 3\]"),
    ],
)
def test_products_of_several_matrices_that_are_none(function, error, says):
    operands = Tensor("x", TF32, (8, 8)), Tensor("w", TF32, (8, 3))
    with pytest.raises(error, match=says):
        build_program(function, "f", "f", operands)


def test_a_vector_behind_a_product_is_a_fold():
    """No second product is made: what has no columns of its own meets elements in f32."""
    vector = Tensor("b", BF16, ("N",))
    for function in (
        lambda x, w, b: pg.relu(x @ w.T) @ b,
        lambda x, w, b: np.einsum("mn,n->m", pg.relu(x @ w.T), b),
        lambda x, w, b: MATVEC(pg.relu(x @ w.T), b),
    ):
        made = agree(function, (X, W, vector))
        assert len(made.contractions) == len(made.folds) == 1


@pytest.mark.parametrize("text", ["ij->i", "ij->", "...j->...", "ji->i"])
def test_an_einsum_of_what_a_product_makes_is_a_fold(text):
    made = agree(lambda x, w: np.einsum(text, x @ w.T))
    assert len(made.folds) == 1


SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -2.5], np.float32)


@pytest.mark.parametrize("out", ["f32", "f16", "bf16"])
def test_questions_and_signs_are_numpys(out):
    """Of every pair of special values."""

    def of(x, w, r):
        v = (x @ w.T) * 0 + r
        yes = pg.where(np.isnan(v), 1.0, 0.0)
        return (
            yes, pg.where(np.isinf(v), v, 1.0), pg.where(np.isfinite(v), v, 1.0), np.sign(v),
            np.copysign(1.5, v), np.logaddexp(v, r.T), np.nan_to_num(v),
            np.nan_to_num(v, nan=2.0, posinf=3.0, neginf=-4.0), np.copysign(v, -0.0),
        )  # fmt: skip

    r = np.broadcast_to(SPECIAL, (7, 7)).astype(np.float32)
    tensors = Tensor("x", BF16, (7, 8)), Tensor("w", BF16, (7, 8)), Tensor("r", F32, (7, 7))
    arrays = [np.ones((7, 8), np.float32), np.ones((7, 8), np.float32), r]
    with np.errstate(all="ignore"):
        wanted = reference(lambda *given: tuple(v.astype(out) for v in of(*given)), arrays)
    for at, other in enumerate(wanted):
        made = build_program(lambda *a, n=at: of(*a)[n], "f", "f", tensors, out_dtypes=out)
        with np.errstate(all="ignore"):
            (one,) = evaluate(made, dict(zip("xwr", arrays, strict=True)))
        np.testing.assert_array_equal(one.astype(np.float64), other, err_msg=str(at))
        numbers = ~np.isnan(other)
        signs = np.signbit(one.astype(np.float64))[numbers], np.signbit(other)[numbers]
        np.testing.assert_array_equal(*signs, err_msg=str(at))


def test_truth_values_are_asked_for():
    made = build_program(lambda x, w: np.isnan(x @ w.T), "f", "f", (X, W))
    assert made.outputs[0].dtype.name == "bool"


def test_spellings_are_one_program():
    spelled = {
        "var": (lambda x, w: np.var(x @ w.T, axis=1), lambda x, w: pg.var(x @ w.T, 1),
                lambda x, w: (x @ w.T).var(axis=-1)),
        "norm": (lambda x, w: np.linalg.norm(x @ w.T, axis=1), lambda x, w: pg.norm(x @ w.T, 2, 1)),
        "np.linalg.norm": (lambda x, w: np.linalg.norm(x @ w.T, np.inf, 1),
                           lambda x, w: np.max(abs(x @ w.T), axis=1)),
    }  # fmt: skip
    texts = {
        "var": "var(x @ w.T, axis=1)", "norm": "norm(x @ w.T, axis=1)",
        "np.linalg.norm": "np.linalg.norm(x @ w.T, np.inf, axis=1)",
    }  # fmt: skip
    for name, functions in spelled.items():
        functions = (*functions, parse_expression(texts[name], ("x", "w")))
        first, *others = (build_program(f, "f", "f", (X, W)).statements for f in functions)
        assert all(other == first for other in others), name


def test_expressions_take_arrays_by_keywords():
    read = parse_expression("average(x @ w.T, axis=1, weights=b), x.std(ddof=1)", ("x", "w", "b"))
    x, w = arrays_for((X, W))
    weights = np.arange(1.0, 7.0)
    average, deviation = read(x, w, weights)
    np.testing.assert_array_equal(average, np.average(x @ w.T, axis=1, weights=weights))
    assert deviation == x.std(ddof=1)


def test_every_word_is_known_everywhere():
    """In Python, in expressions, and to those who misspell it."""
    words = {**statistics.PUBLIC, **norms.PUBLIC, **selecting.PUBLIC, **products.PUBLIC}
    for name, function in words.items():
        assert getattr(pg, name) is function and name in pg.__all__ and name in FUNCTIONS
        assert name in known_names()
        assert closest(name, method=True) == f"It is a function: `pg.{name}(…)`"


def test_arrays_are_numpys_own():
    (v,) = arrays_for((X,))
    for name, given in {
        "var": (1,), "std": (None,), "ptp": (0,), "count_nonzero": (1,), "average": (1,),
        "trace": (), "diagonal": (1,), "nan_to_num": (), "inner": (v,), "vdot": (v,),
        "outer": (v,), "vecdot": (v,),
    }.items():  # fmt: skip
        np.testing.assert_array_equal(getattr(pg, name)(v, *given), getattr(np, name)(v, *given))
    np.testing.assert_array_equal(pg.norm(v, 1, 0), np.linalg.norm(v, 1, 0))
    np.testing.assert_array_equal(pg.matvec(v, v[0]), v @ v[0])
    np.testing.assert_array_equal(pg.vecmat(v[:, 0], v), v[:, 0] @ v)
    assert pg.log_softmax(v).sum() < 0


# --- einsums of several operands -----------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("bi,oij,bj->bo", "02:bij 31:bo"),
        ("bi,i,oi->bo", "01:bi 32:bo"),
        ("ij,ij,jk->ik", "01:ij 32:ik"),
        ("bk,nk,n->bn", "01:bn 32:bn"),
        ("bk,nk,b,n->bn", "01:bn 42:bn 53:bn"),
        ("ij,jk,kl->il", "01:ik 32:il"),
        ("ab,bc,cd,de->ae", "01:ac 42:ad 53:ae"),
        ("i,oij,j->o", "02:ij 31:o"),
        ("i,j,k->ijk", "01:ij 32:ijk"),
        ("ij,jk,ki->", "01:ik 32:"),
        ("ij,jk->ik", "01:ik"),
        ("ij->ji", ""),
        ("ij,,jk->ik", "02:ik 31:ik"),
    ],
)
def test_the_order_of_steps(text, steps):
    inputs, output = text.split("->")
    found = steps_of([tuple(term) for term in inputs.split(",")], tuple(output))
    assert " ".join(f"{s.first}{s.second}:{''.join(s.output)}" for s in found) == steps


@pytest.mark.parametrize(
    ("text", "dims"),
    [
        ("bi,oij,bj->bo", ("MK", "NKL", "ML")),
        ("bi,i,oi->bo", ("MK", "K", "NK")),
        ("ij,ij,jk->ik", ("MK", "MK", "KN")),
        ("bk,nk,n->bn", ("MK", "NK", "N")),
        ("...k,nk,...->n...", ("BMK", "NK", "BM")),
        ("mk,nk,mn->m", ("MK", "NK", "MN")),
        ("mk,nk,mn->", ("MK", "NK", "MN")),
        ("bi,ij,bj->b", ("MK", "KN", "MN")),
        ("mk,nk,m,n,mn->nm", ("MK", "NK", "M", "N", "MN")),
    ],
)
def test_einsums_of_several_operands_are_numpys(text, dims):
    """One product each, whatever is scaled by what."""
    tensors = [Tensor("abcde"[at], F32, tuple(own)) for at, own in enumerate(dims)]
    made = agree(lambda *given: np.einsum(text, *given), tensors)
    assert len(made.contractions) == 1
    again = build_program(lambda *given: pg.einsum(text, *given), "f", "f", tensors)
    assert again.statements == made.statements
