"""Sizes that a program has to know as numbers become constants where they are given."""

from __future__ import annotations

import numpy as np
import pytest

import polygen as pg
from polygen.errors import PolygenError, ShapeError, UnsupportedProgram
from polygen.tune.task import describe

GROUPS = ("bf16[M,K]", "i4[N,K]", "bf16[N,G]")
SIZES = {"M": 64, "N": 256, "K": 512, "G": 4}


@pg.fuse
def four_bits(x, q, s):
    return x @ (q.astype("bf16") * pg.repeat(s, 128, axis=1)).T


@pg.fuse
def attention(q, k, v):
    return pg.softmax(q @ k.mT, axis=-1) @ v


@pg.fuse
def backwards(x, w):
    return (x @ w.T)[::-1]


def dims(fused, *signature, **options):
    return [t.dims for t in fused.program(*signature, **options).inputs]


def test_those_that_have_to_be_numbers_are_taken_from_sizes_and_no_others():
    assert dims(four_bits, *GROUPS, sizes=SIZES) == [("M", 512), ("N", 256), ("N", 4)]
    assert dims(backwards, "bf16[M,K]", "bf16[N,K]", sizes=SIZES) == [(64, "K"), ("N", "K")]
    heads = ("bf16[B,S,D]", "bf16[B,T,D]", "bf16[B,T,D]")
    known = {"B": 2, "S": 64, "T": 64, "D": 64}
    assert dims(attention, *heads, sizes=known) == [("B", "S", 64), *[("B", "T", 64)] * 2]


def test_without_them_nothing_becomes_a_number():
    plain = pg.fuse(lambda x, w: x @ w.T)
    assert dims(plain, "bf16[M,K]", "bf16[N,K]", sizes=SIZES) == [("M", "K"), ("N", "K")]


def test_the_kernel_is_that_of_the_numbers():
    own = four_bits.compile(*GROUPS, arch="sm_80", sizes=SIZES)
    same = four_bits.compile(
        "bf16[M,512]", "i4[N,512]", "bf16[N,4]", arch="sm_80", sizes={"M": 64, "N": 256}
    )
    assert own.source == same.source
    assert own.check().ok


def test_pitches_stay_beside_constants():
    own = four_bits.compile(*GROUPS, arch="sm_80", sizes=SIZES | {"x.pitch": 1024})
    assert own.program.inputs[0].dims == ("M", 512)


def test_the_tuner_takes_them_too():
    found = describe(four_bits, GROUPS, sizes=SIZES, arch="sm_80")
    assert found.program.inputs[0].dims == ("M", 512)
    assert found.sizes == {"M": 64, "N": 256}


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"M": 64}, r'make it one: static=\("K",\)'),
        (SIZES | {"K": 511}, "an even number in the place of 511"),
        (SIZES | {"K": "512"}, "sizes are whole numbers"),
        (SIZES | {"K": True}, "sizes are whole numbers"),
        (SIZES | {"G": 0}, "at least 1"),
        (SIZES | {"Q": 5}, "no dim is called 'Q'"),
        (SIZES | {"G": 5}, "Sizes must be equal"),
    ],
)
def test_what_they_cannot_be_is_refused(sizes, message):
    with pytest.raises(PolygenError, match=message):
        four_bits.compile(*GROUPS, arch="sm_80", sizes=sizes)


def test_two_names_of_one_size_stay_two():
    with pytest.raises(ShapeError, match=r"inner dim K, w\.T has inner dim J"):
        pg.fuse(lambda x, w: x @ w.T).compile(
            "bf16[M,K]", "bf16[N,J]", arch="sm_80", sizes={"M": 8, "N": 8, "K": 8, "J": 8}
        )


def test_invariant_dims_are_no_constants():
    with pytest.raises(PolygenError, match="M, whose number is known only at run time"):
        backwards.program("bf16[M,K]", "bf16[N,K]", sizes=SIZES, invariant="M")
    found = four_bits.program(*GROUPS, sizes=SIZES, invariant="M")
    assert found.invariant == ("M",)


def test_a_head_dim_without_a_size_is_asked_for():
    with pytest.raises(UnsupportedProgram, match="Give D as a number"):
        attention.compile(*["bf16[B,S,D]"] * 3, arch="sm_90a", sizes={"B": 1, "S": 64})


def test_numpy_integers_are_numbers():
    sizes = {name: np.int64(size) for name, size in SIZES.items()}
    assert dims(four_bits, *GROUPS, sizes=sizes)[0] == ("M", 512)
