"""What computed operands refuse, and what is said about it."""

import dataclasses

import numpy as np
import pytest

import polygen as pg
from polygen.errors import (
    DTypeError,
    PolygenError,
    ScheduleError,
    ShapeError,
    UnsupportedProgram,
    VerifyError,
)
from polygen.frontend.evaluate import evaluate, reference
from polygen.frontend.program import Access, Affine
from polygen.hardware.device import device
from polygen.pipeline import generate
from polygen.poly.prologue import prologues
from polygen.poly.prologue_proofs import prove_prologues
from polygen.schedule.load import load_schedule, schedules_folder, shipped
from polygen.schedule.model import Cluster

X, Q = "bf16[M,256]", "s8[N,256]"


def scaled(count, axis=1):
    return lambda x, q, s: x @ (q.astype("bf16") * pg.repeat(s, count, axis=axis)).T


REFUSED = {
    "groups that do not divide": (
        scaled(128), (X, Q, "bf16[N,3]"), ShapeError,
        ("repeat(s, 128, axis=1) has 384", "Sizes must be equal"),
    ),
    "scales of other rows": (
        scaled(128), (X, Q, "bf16[M,2]"), ShapeError, ("mul of", "N", "M"),
    ),
    "scales without an axis for groups": (
        scaled(128), (X, Q, "bf16[N]"), ShapeError,
        ("repeat of [N] by 128 along axis 1", "Axes are -1 to 0"),
    ),
    "an image that is computed, with zeros around it": (
        lambda x, w: pg.einsum("npqcrs,krsc->npqk", np.lib.stride_tricks.sliding_window_view(
            np.pad(x + 1, ((0, 0), (1, 1), (1, 1), (0, 0))), (3, 3), axis=(1, 2)), w),
        ("bf16[N,8,8,16]", "bf16[16,3,3,16]"), UnsupportedProgram,
        ("an image with zeros around it", "Compute the image in a function before"),
    ),
    "a scale for every row, along k": (
        lambda x, q, s: x @ (q.astype("bf16") * s).T, (X, Q, "bf16[N]"), ShapeError,
        ("Or did you mean s[:, None]?",),
    ),
    "groups of a symbolic size": (
        scaled(128), ("bf16[M,K]", "s8[N,K]", "bf16[N,G]"), ShapeError,
        ("repeated 128 times", "G, whose number is known only at run time", "static"),
    ),
    "no whole number of times": (
        scaled(1.5), (X, Q, "bf16[N,2]"), ShapeError, ("by 1.5 along axis 1", "128"),
    ),
    "no times": (scaled(0), (X, Q, "bf16[N,2]"), ShapeError, ("by 0 along axis 1",)),
    "an axis that is not there": (
        scaled(128, axis=2), (X, Q, "bf16[N,2]"), ShapeError, ("along axis 2",),
    ),
    "a part of what is repeated": (
        lambda x, q, s: x @ (q.astype("bf16") * pg.repeat(s, 128, axis=1)[:, 1:257]).T,
        (X, Q, "bf16[N,3]"), ShapeError, ("a part of elements", "before repeating"),
    ),
    "groups that end inside what a thread computes": (
        scaled(12), ("bf16[M,252]", "s8[N,252]", "bf16[N,21]"), UnsupportedProgram,
        ("s is repeated 12 times along 252", "8 adjacent elements", "groups of a multiple of 8"),
    ),
    "bytes repeated": (
        lambda x, w: x @ pg.repeat(w, 2, axis=1).T, ("s8[M,64]", "s8[N,32]"),
        UnsupportedProgram, ("s8 are repeated along what is summed", 'Write .astype("bf16")'),
    ),
    "numbers of four bits in another type": (
        lambda x, q: x @ pg.unpack(q, "i4").T, (X, "s8[N,128]"), DTypeError,
        ("unpack of q, which is s8", "Describe it as u8"),
    ),
    "numbers described as packed along an odd size": (
        lambda x, q: x @ q.astype("bf16").T, ("bf16[M,255]", "i4[N,255]"), ShapeError,
        ("argument q [N, 255]: i4 packed along 255", "Write an even number"),
    ),
    "numbers described as packed along a symbolic size": (
        lambda x, q: x @ q.astype("bf16").T, ("bf16[M,K]", "u4[N,K]"), ShapeError,
        ("u4 packed along K", 'static=("K",)'),
    ),
    "numbers of five bits": (
        lambda x, q: x @ pg.unpack(q, "i5").T, (X, "u8[N,128]"), DTypeError,
        ("unpack to 'i5'", "i4 or u4"),
    ),
    "packed numbers of an axis that is odd": (
        lambda x, q: x @ pg.unpack(q, "i4").T, ("bf16[M,255]", "u8[N,128]"), ShapeError,
        ("255", "256"),
    ),
    "packed along a symbolic size": (
        lambda x, q: x @ pg.unpack(q, "i4").T, ("bf16[M,K]", "u8[N,B]"), ShapeError,
        ("repeated 2 times", "B, whose number is known only at run time"),
    ),
    "8-bit operands": (
        lambda x, w: (x * 2).astype("e4m3") @ w.T, ("e4m3[M,K]", "e4m3[N,K]"), UnsupportedProgram,
        ("the operand v1 is computed and rounded to e4m3", "bf16, f16, tf32"),
    ),
    "a sum before the product": (
        lambda x, w: (x / (x @ x.T)) @ w, ("bf16[M,M]", "bf16[M,N]"), UnsupportedProgram,
        ("a product of a chain sums over M", "Give M as a number"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name, arch):
    function, signature, error, fragments = REFUSED[name]
    with pytest.raises(error) as caught:
        pg.fuse(function, name="sample").compile(*signature, arch=arch, single=True)
    for fragment in fragments:
        assert fragment in str(caught.value), str(caught.value)


def test_rows_that_are_repeated_need_no_size_but_their_own():
    """Where k is not innermost a group of any size is whole rows."""
    pg.fuse(lambda x, q, s: x @ (q.T.astype("bf16") * pg.repeat(s, 2, axis=1)).T).compile(
        "bf16[M,64]", "s8[64,N]", "bf16[N,32]", arch="sm_80"
    )


def test_clusters_share_no_operand_that_is_computed():
    one = load_schedule(schedules_folder() / "sm_90a/cooperative_128x64x64.toml")
    one = dataclasses.replace(one, cluster=Cluster(2, 1))
    with pytest.raises(ScheduleError, match="it is computed by the threads of each block, for it"):
        pg.fuse(lambda x, w: pg.silu(x) @ w.T).compile(
            "bf16[M,K]", "bf16[N,K]", arch="sm_90a", schedule=one
        )


def test_a_producer_needs_registers_for_what_it_computes():
    one = load_schedule(schedules_folder() / "sm_90a/cooperative_128x64x64.toml")
    one = dataclasses.replace(one, roles=dataclasses.replace(one.roles, producer_registers=40))
    with pytest.raises(PolygenError, match="an operand is computed, or its rows are none"):
        pg.fuse(lambda x, w: pg.silu(x) @ w.T).compile(
            "bf16[M,K]", "bf16[N,K]", arch="sm_90a", schedule=one
        )


# --- programs that the tracer does not make
def program():
    return pg.fuse(lambda x, w: pg.relu(x) @ w, name="sample").program("bf16[M,K]", "bf16[K,N]")


def edited(number, **changes):
    made = program()
    statements = list(made.statements)
    statements[number] = dataclasses.replace(statements[number], **changes)
    return dataclasses.replace(made, statements=tuple(statements))


def test_values_are_read_at_their_own_point():
    wrong = edited(1, args=(Access("v0", ("j", "i")),))
    with pytest.raises(UnsupportedProgram, match=r"P1 reads v0\[j,i\]: parts of computed values"):
        prologues(wrong)


def test_an_element_that_nobody_computes_is_refused():
    """The statements stop one row early: the proof names an instance that reads beyond."""
    assert prove_prologues(program())
    wrong = edited(2, lhs=Access("v1", (Affine("i", 1, 1), "k")))
    with pytest.raises(VerifyError, match=r"S2 reads what P1 does not compute: S2\["):
        prove_prologues(wrong)


def test_such_a_program_makes_no_kernel():
    wrong = edited(2, lhs=Access("v1", (Affine("i", 1, 1), "k")))
    with pytest.raises(PolygenError):
        generate(wrong, device("sm_80"), {}, "auto")


def test_reference_and_trace_agree_on_repetition():
    function = scaled(4)
    arrays = [np.arange(16.0).reshape(2, 8), np.arange(24.0).reshape(3, 8), np.ones((3, 2))]
    made = pg.fuse(function).program("f16[2,8]", "f16[3,8]", "f16[3,2]", out_dtype="f32")
    (found,) = evaluate(made, dict(zip("xqs", arrays, strict=True)))
    np.testing.assert_array_equal(found, reference(function, arrays))


def test_lanes_multiply_what_they_read():
    fused = pg.fuse(lambda x, w: x @ pg.relu(w).T, name="lanes")
    schedule = next(s for s in shipped(device("sm_80")) if s.by_lanes)
    with pytest.raises(UnsupportedProgram, match=r"is computed .* nothing computes on the way"):
        fused.compile("bf16[M,K]", "bf16[N,K]", arch="sm_80", schedule=schedule)
    kernel = fused.compile(
        "bf16[M,K]", "bf16[N,K]", arch="sm_80", sizes={"M": 1, "N": 4096, "K": 4096}
    )
    assert not kernel.schedule.by_lanes
