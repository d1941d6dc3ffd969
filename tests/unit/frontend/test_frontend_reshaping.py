"""Reshapes as sums of digits: what is traced and interpreted is what NumPy does."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polygen as pg
from polygen.errors import ShapeError, TraceError, UnsupportedProgram
from polygen.frontend.evaluate import evaluate
from polygen.frontend.forms import Digit, Form, composed, inverse

SIZES = {"S": 5, "K": 6, "N": 7}


def integers(tensor, seed=0):
    shape = [SIZES.get(dim, dim) for dim in tensor.dims]
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def rotated(q, angles):
    """Half of a head turned into the other one, as rotary embeddings do."""
    turned = np.concatenate([-q[..., 3:], q[..., :3]], axis=-1)
    return q[..., :3] * angles[:, None] - turned[..., :3]


PROGRAMS = {
    "heads": (
        lambda x, w: (x @ w.T).reshape(x.shape[0], 4, 6).transpose(1, 0, 2),
        ("f16[S,K]", "f16[24,K]"), "y0[floor(j/6),i,(j mod 6)] = cast(v0[i,j])",
    ),
    "heads, and work on them": (
        lambda x, w, r: pg.relu((x @ w.T).reshape(-1, 4, 6) * r[:, None]),
        ("f16[S,K]", "f16[24,K]", "f32[4]"), "mul(v0[i,j], r[floor(j/6)])",
    ),
    "rows in matrices": (
        lambda x, w, r: x.reshape(12, -1) @ w + r.reshape(12, -1),
        ("f16[3,4,K]", "f16[K,N]", "f16[3,4,N]"), "add(v0[b,i,j], r[b,i,j])",
    ),
    "merged results": (
        lambda x, w, r: (x @ w).reshape(12, w.shape[2]) + r,
        ("f16[3,4,K]", "f16[3,K,N]", "f16[12,N]"), "y0[4*b + i,j]",
    ),
    "an axis of operands": (
        lambda q, k: np.einsum("shd,thd->hst", q.reshape(-1, 2, 8), k.reshape(-1, 2, 8)),
        ("f16[S,16]", "f16[N,16]"), "v0[b,i,j] += q[i,8*b + k] * k[j,8*b + k]",
    ),
    "every second row": (
        lambda x, w: (x.reshape(10, -1)[1::2] @ w), ("f16[5,2,K]", "f16[K,N]"),
        "v0[i,j] += x[i,1,k] * w[k,j]",
    ),
    "halves of heads": (
        lambda x, w, r: rotated((x @ w.T).reshape(-1, 4, 6), r),
        ("f16[S,K]", "f16[24,K]", "f32[S,3]"), "v1[b,i,j] += x[b,k] * w[6*i + j+3,k]",
    ),
    "neighbours": (
        lambda x, w: (x @ w.T).reshape(-1, 4, 3, 2)[..., 1],
        ("f16[S,K]", "f16[24,K]"), "* w[6*i + 2*j+1,k]",
    ),
    "one head, and where it is": (
        lambda x, w, r: (pg.relu(x @ w.T + r) * pg.indices(x @ w.T)[1]).reshape(-1, 4, 6)[:, 2],
        ("f16[S,K]", "f16[24,K]", "f32[24]"), "* w[j+12,k]",
    ),
    "the largest of some heads": (
        lambda x, w: np.max((x @ w.T).reshape(-1, 4, 6)[:, 1:3, ::2], axis=(0, 2)),
        ("f16[S,K]", "f16[24,K]"), "* w[6*i + 2*j+6,k]",
    ),
    "heads backwards": (
        lambda x, w: (x @ w.T).reshape(-1, 4, 6)[:, ::-1],
        ("f16[S,K]", "f16[24,K]"), "* w[-6*i + j+18,k]",
    ),
    "there and back": (
        lambda x, w: (x @ w.T).reshape(-1, 2, 3, 4).reshape(-1, 24),
        ("f16[S,K]", "f16[24,K]"), "y0[i,j] = cast(v0[i,j])",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_what_numpy_computes(name):
    function, signature, text = PROGRAMS[name]
    program = pg.fuse(function, name="reshaped").program(*signature)
    assert text in str(program)
    arrays = {t.name: integers(t, seed) for seed, t in enumerate(program.inputs)}
    (found,) = evaluate(program, arrays)
    np.testing.assert_array_equal(found.astype(np.float64), function(*arrays.values()))


@st.composite
def shapes(draw):
    """Two shapes of one array, the second with neighbours merged, or axes split."""
    radices = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=5))

    def grouped():
        found = [1]
        for radix in radices:
            if draw(st.booleans()):
                found.append(1)
            found[-1] *= radix
        return tuple(found)

    return grouped(), grouped()


@settings(max_examples=60, deadline=None)
@given(shapes())
def test_a_value_is_read_where_numpy_puts_it(pair):
    first, second = pair
    numbers = np.arange(math.prod(first))
    function = pg.fuse(lambda x, w, r: (x @ w).reshape(second) * 1 + r, name="read")
    shape = ",".join(map(str, (*first, 2)))
    try:
        made = function.program(f"f16[{shape}]", "f16[2]", f"f32[{','.join(map(str, second))}]")
    except UnsupportedProgram:  # both cut the same numbers at places that do not divide each other
        return
    r = numbers.reshape(second)
    x = np.zeros((*first, 2))
    (found,) = evaluate(made, {"x": x, "w": np.zeros(2), "r": r})
    np.testing.assert_array_equal(found.astype(np.int64), r)


@st.composite
def parts(draw):
    """Some of a value's elements: it is split, permuted and sliced, twice."""
    steps, shape = [], [24]
    for _ in range(2):
        split = [f for dim in shape for f in draw(st.sampled_from(_FACTORS.get(dim, [(dim,)])))]
        order = draw(st.permutations(range(len(split))))
        shape = [split[at] for at in order]
        keys = []
        for dim in shape:
            first = draw(st.integers(0, dim - 1))
            step = draw(st.sampled_from([1, 1, 2]))
            keys.append(draw(st.sampled_from([slice(None), slice(first, None, step)])))
        steps.append((split, order, keys))
        shape = [len(range(dim)[key]) for dim, key in zip(shape, keys, strict=True)]
    return steps


_FACTORS = {24: [(24,), (4, 6), (2, 3, 4), (3, 8)], 8: [(8,), (2, 4)], 6: [(2, 3)], 4: [(2, 2)]}


@settings(max_examples=100, deadline=None)
@given(parts())
def test_some_elements_of_a_value_are_those_that_numpy_takes(steps):
    def taken(x, w, r):
        v = x @ w.T + r + pg.indices(x @ w.T)[1]
        for split, order, keys in steps:
            v = v.reshape(v.shape[0], *split).transpose(0, *(1 + at for at in order))
            v = v[(slice(None), *keys)]
        return v

    program = pg.fuse(taken, name="taken").program("f16[S,K]", "f16[24,K]", "f32[24]")
    arrays = {t.name: integers(t, seed) for seed, t in enumerate(program.inputs)}
    (found,) = evaluate(program, arrays)
    np.testing.assert_array_equal(found.astype(np.float64), taken(*arrays.values()))


def test_digits_that_mix_have_no_form():
    number = Form((Digit(0, 4), Digit(1, 1)))
    extents = {0: 6, 1: 4}
    assert composed(Form((Digit("n", 1, 6),)), {"n": number}, extents) is None
    whole = composed(Form((Digit("n", 1, 8),)), {"n": number}, extents)
    assert str(whole) == "floor(0/2)"
    back = inverse({"n": number}, extents, {"n": 24})
    assert {of: str(form) for of, form in back.items()} == {0: "floor(n/4)", 1: "(n mod 4)"}


REFUSED = {
    "mixed axes": (
        lambda x, w: (x @ w).reshape(6, 4), ("f16[4,K]", "f16[K,6]"), UnsupportedProgram,
        ("reshape of x @ w from [4, 6] to [6, 4]", "mixes axes", "[2, 2, 6]"),
    ),
    "a size without a number": (
        lambda x, w: x.reshape(-1, x.shape[-1]) @ w, ("f16[S,4,K]", "f16[K,N]"), ShapeError,
        ("how many elements S stands for", "x @ w.T"),
    ),
    "other elements": (
        lambda x, w: (x @ w).reshape(5, 5), ("f16[4,K]", "f16[K,6]"), ShapeError,
        ("24 elements are not 25",),
    ),
    "no sizes": (
        lambda x, w: (x @ w).reshape(4, -3), ("f16[4,K]", "f16[K,6]"), ShapeError,
        ("-3 is no size", "one -1"),
    ),
    "steps without a number": (
        lambda x, w: x @ w[::2].T, ("f16[4,K]", "f16[N,K]"), TraceError,
        ("depends on N", "an axis of its own for the steps, […, 2, …]"),
    ),
    "several left": (
        lambda x, w: (x @ w).reshape(-1, -1, 3), ("f16[4,K]", "f16[K,6]"), ShapeError,
        ("several sizes are -1",),
    ),
    "rows by index": (
        lambda x, r, w: x[r].reshape(2, 6, -1) @ w, ("f16[S,K]", "s32[12]", "f16[K,N]"),
        UnsupportedProgram, ("rows by index", "Reshape outside"),
    ),
    "computed operands": (
        lambda x, w: pg.silu(x.reshape(12, -1)) @ w, ("f16[3,4,K]", "f16[K,N]"),
        UnsupportedProgram, ("computed from what is read at (i mod 4)", "no code before"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    function, signature, error, fragments = REFUSED[name]
    with pytest.raises(error) as caught:
        pg.fuse(function, name="reshaped").compile(*signature, arch="sm_80")
    assert all(fragment in str(caught.value) for fragment in fragments), str(caught.value)


def neighbours_turned(x, c, s):
    """Neighbours of an axis turned into each other: parts of a stack, merged."""
    a, b = x[..., ::2], x[..., 1::2]
    return np.stack([a * c - b * s, b * c + a * s], axis=-1).reshape(x.shape)


def test_parts_that_a_reshape_merges_are_chosen_by_their_place():
    """Parts in which no product is are values like others, wherever a reshape puts them."""
    given = ("f16[S,6]", "f16[S,3]", "f16[S,3]", "f16[N,6]")
    fused = pg.fuse(lambda x, c, s, w: neighbours_turned(x, c, s) @ w.T)
    program = fused.program(*given)
    rng = np.random.default_rng(1)
    shapes = {"x": (5, 6), "c": (5, 3), "s": (5, 3), "w": (7, 6)}
    arrays = {name: rng.integers(-3, 4, shape).astype(float) for name, shape in shapes.items()}
    (found,) = evaluate(program, arrays, round_outputs=False)
    x, c, s, w = arrays.values()
    np.testing.assert_array_equal(found, neighbours_turned(x, c, s) @ w.T)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: np.stack([x @ w.T, x @ w.T * 2], axis=-1).reshape(-1, 8),
        lambda x, w: np.concatenate([x[:, :2] * 1, x[:, 2:] * 2], 1).reshape(-1, 3, 2) @ w[0, :2],
    ],
    ids=["products in the parts", "a part that begins elsewhere"],
)
def test_other_parts_are_not_merged(function):
    with pytest.raises(UnsupportedProgram, match="split or merged along axis"):
        pg.fuse(function).program("f16[S,6]", "f16[4,6]")
