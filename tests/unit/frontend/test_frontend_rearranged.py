"""Axes that come, go and change places by NumPy's functions, and elements that are repeated."""

import numpy as np
import pytest

import polygen as pg
from polygen.errors import ShapeError, UnsupportedProgram
from polygen.frontend.evaluate import evaluate
from polygen.frontend.parse import parse_expression
from polygen.small_problem import trial_operands

PAIR = ("bf16[M,K]", "bf16[N,K]")
KEYS = ("bf16[2,6,S,64]", "bf16[2,2,T,64]")


def across(k):
    """Keys of two heads for six, as models that were written for torch have them."""
    wide = np.broadcast_to(k[:, :, None], (2, 2, 3, k.shape[2], 64))
    return wide.reshape(2, 6, k.shape[2], 64)


def in_turns(x, count):
    return np.broadcast_to(x[None], (count, *x.shape)).reshape(-1, *x.shape[1:])


def repeated(k):
    return np.repeat(k, 3, axis=1)


FORMS = {
    "an axis before": (lambda x, w: np.expand_dims(x, 0) @ w, ("bf16[M,K]", "bf16[2,K,N]")),
    "a vector of rows": (lambda x, w, b: x @ w.T + np.expand_dims(b, 1), (*PAIR, "f32[M]")),
    "one less": (lambda x, w: np.squeeze(x @ w[:, None], -1), ("bf16[M,K]", "bf16[K]")),
    "none of one": (lambda x, w: (x @ w[:, None]).squeeze(), ("bf16[M,K]", "bf16[K]")),
    "moved": (lambda x, w: np.moveaxis(x, 0, -1) @ w, ("bf16[K,M]", "bf16[K,N]")),
    "several moved": (
        lambda q, k: np.moveaxis(q, 2, 1) @ np.moveaxis(k, [1, 2, 3], [3, 1, 2]),
        ("bf16[B,S,4,32]", "bf16[B,T,4,32]"),
    ),
    "rows turned": (lambda x, w: x @ np.flip(w, 0).T, ("bf16[M,K]", "bf16[40,K]")),
    "a vector turned": (lambda x, w, b: x @ w.T + np.flip(b), (*PAIR[:1], "bf16[40,K]", "f32[40]")),
    "the sum turned": (lambda x, w: np.flip(x, 1) @ w.T, ("bf16[M,64]", "bf16[N,64]")),
    "a wide vector": (
        lambda x, w, b: x @ w.T + np.broadcast_to(b, (x.shape[0], w.shape[0])),
        (*PAIR, "f32[N]"),
    ),
    "one matrix for all": (
        lambda x, w: x @ np.broadcast_to(w, (3, 64, 48)),
        ("bf16[3,M,64]", "bf16[64,48]"),
    ),
    "heads that share keys": (lambda q, k: q @ repeated(k).mT, KEYS),
    "and their code": (lambda q, k: q @ np.repeat(k * 2, 3, axis=1).mT, KEYS),
    "likewise, broadcast": (lambda q, k: q @ across(k).mT, KEYS),
    "repeated beside others in turns": (
        lambda x, w: in_turns(x, 4) @ np.repeat(w, 4, axis=0),
        ("bf16[2,20,40]", "bf16[2,40,24]"),
    ),
    "one of those that are repeated": (
        lambda x, w: (x @ np.repeat(w, 2, axis=0))[3],
        ("bf16[6,M,K]", "bf16[3,K,N]"),
    ),
    "some of them": (
        lambda x, w: (x @ np.repeat(w, 2, axis=0))[2:5] + 1,
        ("bf16[6,M,K]", "bf16[3,K,N]"),
    ),
    "matrices of both": (
        lambda x, y: np.repeat(x, 2, axis=0) @ np.repeat(y, 3, axis=0),
        ("f16[3,M,K]", "f16[2,K,N]"),
    ),
}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", FORMS)
def test_results_are_numpys(name, arch):
    function, types = FORMS[name]
    kernel = pg.fuse(function, name="f").compile(*types, arch=arch)
    assert kernel.check().ok


@pytest.mark.parametrize("name", FORMS)
def test_they_mean_what_numpy_says(name):
    function, types = FORMS[name]
    program = pg.fuse(function, name="f").program(*types)
    sizes = {"B": 2, "M": 5, "N": 7, "K": 8, "S": 3, "T": 4}
    operands = [one.astype(float) for one in trial_operands(program, sizes, 1)]
    arrays = dict(zip((one.name for one in program.operands), operands, strict=True))
    (found,) = evaluate(program, arrays, sizes)
    np.testing.assert_array_equal(found.astype(float), function(*arrays.values()))


def heads(x, count):
    return x.reshape(2, x.shape[1], count, 64).swapaxes(1, 2)


@pytest.mark.parametrize("shared", [repeated, across])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_attention_of_heads_that_share_keys(shared, inside, arch):
    def attended(q, k, v):
        if inside:
            q, k, v = heads(q, 6), heads(k, 2), heads(v, 2)
        return pg.softmax(q @ shared(k).mT * 0.125) @ shared(v)

    types = (*KEYS, KEYS[1])
    if inside:
        types = ("bf16[2,S,384]", "bf16[2,T,128]", "bf16[2,T,128]")
    kernel = pg.fuse(attended).compile(*types, arch=arch)
    assert isinstance(kernel, pg.Kernel)
    assert kernel.check({"S": 40, "T": 70}).ok


REPEATED = {
    "columns": (lambda x, w: x @ np.repeat(w, 3, axis=0).T, ("bf16[M,K]", "bf16[20,K]")),
    "rows": (lambda x, w: np.repeat(x, 3, axis=0) @ w.T, ("f16[20,K]", "f16[N,K]")),
    "the sum": (lambda x, w: np.repeat(x, 2, axis=1) @ w.T, ("bf16[M,32]", "bf16[N,64]")),
    "of bytes": (
        lambda x, w: np.repeat(x, 2, axis=1).astype("bf16") @ w.T,
        ("s8[M,32]", "bf16[N,64]"),
    ),
    "and code": (lambda x, w: (np.repeat(x, 2, axis=1) * 3) @ w.T, ("bf16[M,32]", "bf16[N,64]")),
    "code": (lambda x, w: x @ np.repeat(w * 2, 3, axis=0).T, ("bf16[M,K]", "bf16[20,K]")),
    "bytes": (lambda x, w: x @ np.repeat(w, 4, axis=0).T, ("s8[M,K]", "s8[16,K]")),
    "bytes across": (lambda x, w: x @ np.repeat(w, 4, axis=1), ("e4m3[M,K]", "e4m3[K,16]")),
    "f32": (lambda x, w: x @ np.repeat(w, 4, axis=1), ("f32[M,K]", "f32[K,16]")),
    "keys": (
        lambda q, k, v: pg.softmax(q @ np.repeat(k, 2, axis=0).T) @ np.repeat(v, 2, axis=0),
        ("bf16[S,64]", "bf16[40,64]", "bf16[40,64]"),
    ),
}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", REPEATED)
def test_what_is_repeated_inside_of_a_matrix_is_made(name, arch):
    function, types = REPEATED[name]
    if arch == "sm_80" and types[0].startswith("e4m3"):
        pytest.skip("it has no products of e4m3")
    assert pg.fuse(function, name="f").compile(*types, arch=arch).check().ok


def test_parts_begin_with_the_first_of_those_that_are_the_same():
    function = pg.fuse(lambda x, w: (x @ np.repeat(w, 2, axis=0))[1:4])
    with pytest.raises(ShapeError, match="a part of elements of w that are repeated 2 times"):
        function.program("bf16[6,M,K]", "bf16[3,K,N]")


def test_bytes_are_not_repeated_along_the_sum():
    function = pg.fuse(lambda x, w: np.repeat(x, 4, axis=1) @ w.T)
    with pytest.raises(UnsupportedProgram, match="s8 are repeated along what is summed"):
        function.compile("s8[M,32]", "s8[N,128]", arch="sm_80")


def test_expressions_have_them_too():
    of = parse_expression("squeeze(expand_dims(x, 0) @ moveaxis(w, 0, 1), 0)", ("x", "w"))
    assert pg.fuse(of, name="f").compile(*PAIR, arch="sm_80").check().ok


@pytest.mark.parametrize("name", ["expand_dims", "squeeze", "moveaxis", "flip", "broadcast_to"])
def test_arrays_are_numpys(name):
    from polygen.frontend.rearranged import PUBLIC

    x = np.arange(6.0).reshape(1, 2, 3)
    arguments = {"moveaxis": (0, 2), "broadcast_to": ((4, 2, 3),)}.get(name, (0,))
    np.testing.assert_array_equal(PUBLIC[name](x, *arguments), getattr(np, name)(x, *arguments))


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x, w: np.squeeze(x @ w.T, 1), r"np\.squeeze of x @ w\.T along axis 1 .* one index"),
        (lambda x, w: np.squeeze(x @ w.T, 2), r"np\.squeeze of .* with axis 2\. .* -2 to 1"),
        (lambda x, w: np.expand_dims(x @ w.T, (0, 0)), r"np\.expand_dims .* axis \(0, 0\)"),
        (lambda x, w: np.moveaxis(x, (0, 1), 0) @ w.T, r"np\.moveaxis of x from .* a place for"),
        (lambda x, w: np.moveaxis(x, 2, 0) @ w.T, r"np\.moveaxis of x with axis"),
        (lambda x, w: np.flip(x, "k") @ w.T, r"np\.flip of x with axis 'k'"),
        (lambda x, w: np.broadcast_to(x, (4, 5)) @ w.T, r"from \[M, K\] to \[4, 5\]"),
        (lambda x, w: np.broadcast_to(x, (4,)) @ w.T, r"from \[M, K\] to \[4\]"),
        (
            lambda x, w: np.broadcast_to(x, (0, x.shape[0], x.shape[1])) @ w.T,
            "_to of x: 0 is no size",
        ),
    ],
)
def test_what_they_cannot_do(function, says):
    with pytest.raises(ShapeError, match=says):
        pg.fuse(function, name="f").program(*PAIR)
