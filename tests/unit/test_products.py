"""Batches, vectors, slices and several products in one kernel, each on the PTX machine."""

from dataclasses import replace

import numpy as np
import pytest

from polygen import einsum, fuse, relu, silu
from polygen.errors import UnsupportedProgram
from polygen.schedule.load import load_schedule, schedules_folder

SIZES = {"B": 2, "C": 2, "M": 72, "N": 88, "K": 136, "L": 40, "S": 24, "T": 40, "H": 3}
_XUV = ("bf16[M,K]", "bf16[N,K]", "bf16[N,K]")


def turned(x, w, s):
    """Halves that change places, one of them with the other sign."""
    t = relu(x * s) @ w
    return np.concatenate([-t[:, 32:], t[:, :32]], axis=1)


PROGRAMS = {
    # --- several products
    "gated pair": (lambda x, u, v: silu(x @ u.T) * (x @ v.T), _XUV),
    "two outputs": (lambda x, u, v: (x @ u.T, x @ v.T), _XUV),
    "four operands, sums of two lengths": (
        lambda x, w, y, v: x @ w.T + y @ v.T,
        ("bf16[M,K]", "bf16[N,K]", "bf16[M,L]", "bf16[N,L]"),
    ),
    "a pair with operands stored both ways": (
        lambda x, u, v, b: relu(x @ u.T + b) * (x @ v),
        ("bf16[M,K]", "bf16[N,K]", "bf16[K,N]", "bf16[N]"),
    ),
    "three products": (
        lambda x, u, v, w: (x @ u.T) * 2 + relu(x @ v.T) - x @ w.T,
        (*_XUV, "bf16[N,K]"),
    ),
    "one product is transposed": (
        lambda x, w, y, z: x @ w + (y @ z).T,
        ("bf16[M,K]", "bf16[K,N]", "bf16[N,L]", "bf16[L,M]"),
    ),
    "outputs of both shapes": (
        lambda x, w, y, z: (x @ w, y @ z),
        ("bf16[M,K]", "bf16[K,N]", "bf16[N,L]", "bf16[L,M]"),
    ),
    "interleaved gates": (
        lambda x, w: relu(x @ w[::2].T) * (x @ w[1::2].T),
        ("bf16[M,K]", "bf16[176,K]"),
    ),
    # --- batches
    "batch": (
        lambda x, w, b: relu(x @ w + b),
        ("bf16[B,M,K]", "bf16[B,K,N]", "bf16[N]"),
    ),
    "one weight for all, a bias for each": (
        lambda x, w, b: x @ w + b,
        ("bf16[B,M,K]", "bf16[K,N]", "f32[B,1,N]"),
    ),
    "heads": (
        lambda q, k: einsum("bshd,bthd->bhst", q, k),
        ("bf16[B,S,H,64]", "bf16[B,T,H,64]"),
    ),
    "heads, the other way": (
        lambda p, v: einsum("bhst,bthd->bshd", p, v),
        ("bf16[B,H,S,T]", "bf16[B,T,H,64]"),
    ),
    "two batch dims, one shared": (
        lambda x, w: x @ w,
        ("bf16[B,C,M,K]", "bf16[C,K,N]"),
    ),
    "transposed results": (lambda x, w: (x @ w).mT, ("bf16[B,M,K]", "bf16[B,K,N]")),
    "batches of pairs": (
        lambda x, u, v, r: relu(x @ u) * (x @ v) + r,
        ("bf16[B,M,K]", "bf16[B,K,N]", "bf16[K,N]", "bf16[B,M,N]"),
    ),
    "batch outside, stored inside": (
        lambda x, w: x @ w,
        ("bf16[B,M,K]:102", "bf16[B,K,N]:102"),
    ),
    "one row of each": (lambda x, w: x[:, None] @ w, ("bf16[B,K]", "bf16[B,K,N]")),
    "turned halves of a computed operand": (turned, ("bf16[M,K]", "bf16[K,64]", "bf16[K]")),
    "turned halves in f32": (turned, ("f32[M,K]", "f32[K,64]", "f32[K]")),
    # --- vectors
    "vector on the left": (lambda x, w, b: relu(x @ w + b), ("bf16[K]", "bf16[K,N]", "bf16[N]")),
    "vector on the right": (lambda x, w: x @ w, ("bf16[M,K]", "bf16[K]")),
    "vectors of a batch": (lambda x, w: einsum("bk,bkn->bn", x, w), ("bf16[B,K]", "bf16[B,K,N]")),
    "two vectors": (lambda x, w, b: relu(x @ w + b), ("bf16[K]", "bf16[K]", "f32")),
    "a row and a column that are vectors": (
        lambda x, w: x[None] @ w[:, None], ("bf16[K]", "bf16[K]"),
    ),
    "all elements of two matrices": (lambda x, w: np.vdot(x, w), ("f32[M,K]", "f32[M,K]")),
    "squares of a vector": (lambda x: np.sqrt(np.inner(x, x)), ("f64[K]",)),
    "elements that are multiplied and summed": (
        lambda x, w: (x[:, None, :] * w).sum(-1), ("bf16[M,K]", "bf16[N,K]"),
    ),
    "elements that are cast before": (
        lambda x, w: (x.astype("bf16") * w.astype("bf16")).sum(1), ("s8[M,K]", "bf16[K]"),
    ),
    "elements that are cast twice": (
        lambda x, w: (x.astype("f32").astype("bf16") * w.astype("bf16")).sum(),
        ("s8[M,K]", "u8[M,K]"),
    ),
    # --- slices
    "every second": (lambda x, w: x[:, 1::2] @ w, ("bf16[M,128]", "bf16[64,N]")),
    "every second of tf32": (lambda x, w: x[:, ::2] @ w, ("tf32[M,96]", "tf32[48,N]")),
    "the first part": (lambda x, w: x[..., :64] @ w, ("bf16[M,128]", "bf16[64,N]")),
    "a part that nothing aligns": (lambda x, w: x[..., 3:60] @ w, ("bf16[M,128]", "bf16[57,N]")),
    "backwards": (lambda x, w: x[::-1] @ w, ("bf16[40,128]", "bf16[128,N]")),
    "a rotary embedding's halves": (
        lambda x, w, c: (x @ w) * c[:, ::2] + c[:, 1::2],
        ("bf16[M,K]", "bf16[K,64]", "f32[M,128]"),
    ),
    "one row of an operand": (
        lambda x, w, r: x @ w + r[3], ("bf16[M,K]", "bf16[K,N]", "f32[8,N]"),
    ),
}  # fmt: skip
ROLES = (
    "cooperative_128x64x64_w64_s7_e2p1",
    "pingpong_64x96x64_s10",
    "cooperative_64x64x64_s12_c1x4",
)
IN_BOXES = (
    "gated pair", "two outputs", "four operands, sums of two lengths",
    "a pair with operands stored both ways", "interleaved gates", "batch", "heads",
    "one weight for all, a bias for each", "two batch dims, one shared", "batches of pairs",
    "batch outside, stored inside", "the first part", "vector on the left",
)  # fmt: skip


def checked(name, **options):
    function, signature = PROGRAMS[name]
    fused = fuse(function, name="products")
    sizes = {n: SIZES[n] for n in fused.program(*signature).sizes}
    report = fused.compile(*signature, sizes=sizes, **options).check(sizes)
    assert not report.findings, str(report)


@pytest.mark.sample(5)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_right_on_the_machine(name, arch):
    checked(name, arch=arch)


@pytest.mark.sample(3)
@pytest.mark.parametrize("schedule", ROLES)
@pytest.mark.parametrize("name", IN_BOXES)
def test_a_program_is_right_by_roles(name, schedule):
    one = load_schedule(schedules_folder() / "sm_90a" / f"{schedule}.toml")
    checked(name, arch="sm_90a", schedule=replace(one, pipeline=replace(one.pipeline, stages=4)))


def test_a_shared_operand_is_copied_once():
    function, signature = PROGRAMS["gated pair"]
    plan = fuse(function).compile(*signature, arch="sm_80").passes.plan
    assert [b.name for b in plan.buffers if b.kind == "ring"] == ["ring_a", "ring_b", "ring_b2"]


def test_sums_of_products_of_elements_are_products_where_there_is_no_other():
    vectors = "bf16[K]", "bf16[K]"
    written = [
        str(fuse(one, name="f").program(*vectors)).splitlines()[1:]
        for one in (
            lambda a, b: np.vdot(a, b),
            lambda a, b: np.inner(a, b),
            lambda a, b: a @ b,
            lambda a, b: (a * b).sum(),
        )
    ]
    assert all(one == written[0] for one in written), written
    beside = fuse(lambda x, w: (x @ w.T, np.vecdot(x, x))).program("bf16[M,K]", "bf16[N,K]")
    assert len(beside.contractions) == len(beside.folds) == 1


@pytest.mark.parametrize(
    ("function", "signature", "nearest"),
    [
        (lambda a, b: np.outer(a, b), ("bf16[M]", "bf16[N]"), "Use x @ w in it"),
        (lambda a, b: np.vecdot(a, b), ("bf16[M,K]",) * 2, "would compute one element a row"),
        (lambda a, b: (a * b).sum(0), ("bf16[M,K]", "bf16[K]"), "outside of the kernel, as np.sum"),
        (lambda a, b: (a * 2 * b).sum(), ("bf16[K]",) * 2, "Say how it is rounded"),
        (lambda a, b: (a.astype("f32") * b).sum(), ("f16[K]", "bf16[K]"), "how it is rounded"),
    ],
)
def test_what_sums_no_product_or_would_round_it_is_none(function, signature, nearest):
    with pytest.raises(UnsupportedProgram, match="reads no contraction") as error:
        fuse(function).program(*signature)
    assert nearest in str(error.value)


@pytest.mark.parametrize(
    ("function", "signature"),
    [
        (lambda a, b: (a * 2).astype("bf16") @ b, ("bf16[K]", "bf16[K]")),
        (lambda a, b: a.astype("bf16") @ b, ("f16[K]", "bf16[K]")),
    ],
)
def test_what_is_rounded_as_it_is_said_compiles(function, signature):
    assert not fuse(function).compile(*signature, arch="sm_80").check().findings


# function, signature, shapes
SUMS = {
    "rows of one": (lambda a, b: (a * b).sum(-1), ("f16[1,K]",) * 2, ((1, 71), (1, 71))),
    "of several axes of one": (
        lambda a, b: (a * b).sum(-1, keepdims=True), ("f16[1,1,K]",) * 2, ((1, 1, 40), (1, 1, 40)),
    ),
    "rows of one, with a vector": (
        lambda a, b: (a * b).sum(-1), ("f16[1,K]", "f16[K]"), ((1, 71), (71,)),
    ),
    "all of a matrix and a vector": (
        lambda x, a: (x * a).sum(), ("f16[M,K]", "f16[K]"), ((33, 71), (71,)),
    ),
    "one row": (lambda x, a: (x * a).sum(), ("f16[M,K]", "f16[K]"), ((1, 72), (72,))),
    "a vector and all of a matrix": (
        lambda a, x: (a * x).sum(), ("f16[K]", "f16[M,K]"), ((7,), (3, 7)),
    ),
    "a column": (
        lambda x, a: (x * a).sum(), ("f16[M,K]", "f16[M,1]"), ((33, 71), (33, 1)),
    ),
    "of every pair": (
        lambda x, w: (x[:, None] * w).sum((1, 2)), ("f16[M,K]", "f16[N,K]"), ((33, 40), (9, 40)),
    ),
    "of f32": (lambda x, a: (x * a).sum(), ("f32[M,K]", "f32[K]"), ((33, 71), (71,))),
}  # fmt: skip


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_products_along_other_axes_as_well_are_exact(name):
    function, signature, shapes = SUMS[name]
    rng = np.random.default_rng(len(name))
    kind = "f4" if "f32" in signature[0] else "f2"
    given = tuple(rng.integers(-2, 3, shape).astype(kind) for shape in shapes)
    kernel = fuse(function).compile(*signature, arch="sm_80", out_dtype="f32").fitting(*given)
    wanted = function(*(one.astype("f8") for one in given))
    found = kernel.emulate(*given)
    assert np.shape(found) == np.shape(wanted) and np.array_equal(found, wanted)


@pytest.mark.parametrize(
    ("function", "signature", "what"),
    [
        (lambda a, b, c: (a @ b) * c, ("f16[K]", "f16[K]", "f32[N]"), "is a number"),
        (lambda a, b, c: c + np.vdot(a, b), ("f16[K]", "f16[K]", "f32[M,N]"), "is a number"),
        (lambda a, b, c: (a @ b) * c, ("f16[K]", "f16[K,N]", "f32[M,N]"), "is of [N]"),
        (lambda a, b, c: (a @ b)[:, None] * c, ("f16[M,K]", "f16[K]", "f32[M,N]"), "is of [M]"),
        (lambda a, b, c: (a @ b) * c, ("f16[M,K]", "f16[K,N]", "f32[B,M,N]"), "is of [M, N]"),
    ],
)
def test_a_product_that_is_stretched_is_returned_alone(function, signature, what):
    with pytest.raises(UnsupportedProgram, match="over different output domains") as error:
        fuse(function).compile(*signature, arch="sm_80")
    wanted = f"Return the product of a and b alone, which {what}, and combine it with c outside"
    assert wanted in str(error.value)
    alone = fuse(lambda a, b: a @ b).compile(*signature[:2], arch="sm_80")
    assert not alone.check().findings


def test_products_of_several_types_are_refused():
    with pytest.raises(UnsupportedProgram, match="all products of a kernel run on one instruct"):
        fuse(lambda x, u, y, v: x @ u + y @ v).compile(
            "bf16[M,K]", "bf16[K,N]", "f16[M,K]", "f16[K,N]", arch="sm_80", single=True
        )
