"""The most general program for arrays of given extents."""

from __future__ import annotations

import numpy as np
import pytest

import polygen as pg
from polygen.adapters.forms import Form, most_general
from polygen.adapters.kernels import Kernels, sizes_of, stored
from polygen.errors import PolygenError, ShapeError
from polygen.frontend.build import build_program
from polygen.frontend.dtypes import BF16, F32
from polygen.knobs import scope


def general(function, *shapes, **options):
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    forms = [
        Form(name, BF16 if shape else F32, tuple(shape))
        for name, shape in zip(names, shapes, strict=True)
    ]
    return most_general(lambda ts: build_program(function, "f", "f", ts), forms, **options)


def dims(program):
    return [tensor.dims for tensor in (*program.inputs, *program.outputs)]


def layer(x, w, b):
    return pg.relu(x @ w.T + b)


def test_extents_that_happen_to_be_equal_are_dims_of_their_own():
    other, _ = general(layer, (5, 8), (7, 8), (7,))
    program, sizes = general(layer, (64, 64), (64, 64), (64,))
    assert program == other
    assert dims(program) == [("D0", "D1"), ("D2", "D1"), ("D2",), ("D0", "D2")]
    assert sizes == {"D0": 64, "D1": 64, "D2": 64}


def test_one_is_a_number_because_it_stretches():
    program, sizes = general(layer, (1, 8), (7, 8), (1,))
    assert dims(program) == [(1, "D0"), ("D1", "D0"), (1,), (1, "D1")]
    assert sizes == {"D0": 8, "D1": 7}


def test_batches_are_joined_where_they_broadcast():
    program, sizes = general(lambda q, k: q @ k.mT, (2, 3, 5, 8), (3, 7, 8))
    assert dims(program)[2] == ("D0", "D1", "D2", "D5")
    assert dims(program)[1] == ("D1", "D5", "D3") and sizes["D1"] == 3


def test_results_side_by_side_have_one_domain():
    program, _ = general(lambda x, u, v: (x @ u.T, x @ v.T), (5, 8), (7, 8), (7, 8))
    assert dims(program)[3] == dims(program)[4] == ("D0", "D2")
    apart, _ = general(lambda x, u, v: (x @ u.T, x @ v.T), (5, 8), (7, 8), (9, 8))
    assert dims(apart)[3:] == [("D0", "D2"), ("D0", "D4")]


def test_contractions_by_subscripts_are_joined():
    def heads(q, k):
        return pg.einsum("bshd,bthd->bhst", q, k)

    program, _ = general(heads, (4, 4, 4, 4), (4, 4, 4, 4))
    assert dims(program)[2] == ("D0", "D2", "D1", "D5")


def test_scalars_have_no_dims():
    program, sizes = general(lambda x, w, a: a * (x @ w), (5, 8), (8, 7), ())
    assert dims(program)[2] == () and len(sizes) == 3


@pytest.mark.parametrize(
    ("function", "shapes", "wanted"),
    [
        (
            lambda x, w: x[:, ::2] @ w,
            [(5, 16), (8, 7)],
            [("D0", 16), (8, "D3"), ("D0", "D3")],
        ),
        (
            lambda x, w, r: (x @ w.T)[:, ::2] + r,  # r's rows are those of x, whatever number
            [(5, 8), (14, 8), (5, 7)],
            [("D0", "D1"), (14, "D1"), ("D0", 7), ("D0", 7)],
        ),
        (
            lambda x, y, w: np.concatenate([x, y], 1) @ w.T,
            [(5, 8), (5, 16), (7, 24)],
            [("D0", 8), ("D0", 16), ("D4", 24), ("D0", "D4")],  # rows are joined too
        ),
        (
            lambda x, w: x.reshape(-1, x.shape[-1]) @ w.T,
            [(3, 5, 8), (7, 8)],
            [(3, 5, "D2"), ("D3", "D2"), (15, "D3")],
        ),
    ],
)
def test_sizes_that_have_to_be_numbers_are_and_no_others(function, shapes, wanted):
    program, sizes = general(function, *shapes)
    assert dims(program) == wanted
    assert set(sizes) == set(program.sizes)


def test_extents_that_differ_are_named_by_their_sizes():
    with pytest.raises(ShapeError, match=r"x has inner dim 8, w has inner dim 9"):
        general(lambda x, w: x @ w, (5, 8), (9, 7))


def test_what_is_needed_is_asked_for_and_nothing_else():
    asked = []

    def same(first, second, needed):
        asked.append((first, second, needed))
        return first.upper() == second.upper()

    _, sizes = general(layer, ("m", "k"), ("n", "K"), ("N",), same=same)
    assert asked == [("k", "K", True), ("n", "N", True)]
    assert sizes == {"D0": "m", "D1": "k", "D2": "n"}


def test_names_of_dims_are_apart_from_names_of_arguments():
    program, _ = general(lambda D0, D: D0 @ D, (5, 8), (8, 7))
    assert dims(program) == [("D_0", "D_1"), ("D_1", "D_3"), ("D_0", "D_3")]


def test_kernels_are_shared_by_sizes_and_apart_by_storage():
    kernels = Kernels()
    with scope(arch="sm_80"):
        made = []
        for m, order in ((4096, (0, 1)), (4097, (0, 1)), (4096, (1, 0))):
            program, sizes = general(lambda x, w: x @ w.T, (m, 64), (128, 64))
            program = stored(program, [order, (0, 1)])
            assert sizes_of(program, [(m, 64), (128, 64)]) == sizes
            made.append(kernels.find(program, sizes))
    assert made[0] is made[1] and made[0] is not made[2] and len(kernels) == 2
    assert made[2].program.inputs[0].order == (1, 0)


def test_a_given_schedule_is_the_choice_for_all_sizes():
    kernels = Kernels()
    with scope(arch="sm_80"):
        given = pg.fuse(layer).compile("bf16[M,K]", "bf16[N,K]", "bf16[N]").schedule
        found = []
        for m in (16, 8192):
            program, sizes = general(layer, (m, 64), (128, 64), (128,))
            program = stored(program, [(0, 1), (0, 1), (0,)])
            found.append(kernels.find(program, sizes, given))
    assert found[0] is found[1] and found[0].schedule == given


def test_what_cannot_be_generated_is_refused():
    program, sizes = general(lambda x, w, u: (x @ w) @ u, (5, 8), (8, 7), (7, 6))
    with (
        scope(arch="sm_75"),
        pytest.raises(PolygenError, match="a chain of products of bf16 on sm_75"),
    ):
        Kernels().find(program, sizes)
