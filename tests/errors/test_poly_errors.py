"""Schedules that break a dependence and programs that cannot fuse: refused, with a witness."""

import re
from dataclasses import replace

import numpy as np
import pytest
from block_simulator import breaks, loops_with_every_barrier
from matrix import case, pipeline, small, tiled

from polygen.api import fuse
from polygen.errors import IllegalSchedule, SignatureError, UnsupportedProgram, VerifyError
from polygen.frontend.dtypes import F32
from polygen.frontend.parse import parse_expression
from polygen.frontend.program import Access, Contraction, Pointwise, Program, Tensor
from polygen.poly.fusion import fuse as fuse_statements
from polygen.poly.scop import RESERVED, scop
from polygen.schedule.model import Loops

WITNESS = re.compile(r"(\w+)\[[-\d,]+\] -> (\w+)\[[-\d,]+\] with \w+ = \d+")
DEEP = ((32, 32, 64), (16, 16))  # four MMA steps per k tile

# name -> schedule, the two statements of the witness, the field to change
ILLEGAL = {
    "stages_too_few": (small(pipeline=pipeline(2, 2)), "load_a", "copy_a", "pipeline.stages"),
    "one_stage": (small(pipeline=pipeline(1, 1)), "load_a", "copy_a", "pipeline.stages"),
    "distance_too_large": (
        small(pipeline=pipeline(3, 4, ("mma", "copy"))),
        "load_a", "copy_a", "pipeline.distance",
    ),
    "spread_distance_too_large": (
        small(pipeline=pipeline(3, 3, copies="spread")), "load_a", "copy_a", "pipeline.stages",
    ),
    "no_distance_and_products_first": (
        small(pipeline=pipeline(3, 0, ("mma", "copy"))), "copy_a", "load_a", "pipeline.order",
    ),
    "no_distance_and_spread": (
        small(pipeline=pipeline(3, 0, copies="spread")), "copy_a", "load_a", "pipeline.distance",
    ),
    "backward": (small(loops=Loops(k="backward")), "mma", "mma", "loops.k"),
    "one_fragment_with_lookahead": (
        small(pipeline=pipeline(3, 2, fragments=1, lookahead=1)),
        "mma", "load_a", "pipeline.fragments",
    ),
    "lookahead_as_deep_as_the_fragments": (
        tiled(*DEEP, pipeline=pipeline(3, 2, fragments=2, lookahead=2)),
        "mma", "load_a", "pipeline.lookahead",
    ),
    "steps_inside_with_two_fragments": (
        tiled(*DEEP, pipeline=pipeline(3, 2, lookahead=0), loops=Loops(mma=("m", "k", "n"))),
        "mma", "load_a", "loops.mma",
    ),
    "epilogue_first": (
        small(loops=Loops(phases=("epilogue", "main"))), "mma", "st", "loops.phases",
    ),
    "split_reduction": (small(loops=Loops(grid=("m", "n", "k"))), "S0", "P1", "loops.grid"),
}  # fmt: skip


@pytest.mark.parametrize("name", ILLEGAL)
def test_an_illegal_schedule_is_refused_with_one_concrete_pair(name):
    schedule, source, target, field = ILLEGAL[name]
    with pytest.raises(IllegalSchedule) as caught:
        case("illegal", "nt", "bf16", "bias", schedule=schedule).kernel()
    message = str(caught.value)
    witness = WITNESS.search(message)
    assert witness, message
    assert witness[1].startswith(source), message
    assert witness[2].startswith(target), message
    assert field in message
    assert "  " not in message.replace("\n  ", "")


OF_ONE_BLOCK = [name for name in ILLEGAL if name not in ("backward", "split_reduction")]


@pytest.mark.parametrize("name", OF_ONE_BLOCK)
def test_no_barrier_would_have_saved_it(name):
    """The oracle agrees: with a barrier at every place, the loops still go wrong."""
    schedule = ILLEGAL[name][0]
    loops, shape = loops_with_every_barrier(schedule)
    assert breaks(loops, shape)


def test_the_witness_is_the_smallest_problem():
    schedule = small(pipeline=pipeline(2, 2))
    with pytest.raises(
        IllegalSchedule, match=r"load_a\[0,0,0\] -> copy_a\[0,2,0\] with k_tiles = 3"
    ):
        case("illegal", "nt", "bf16", "bias", schedule=schedule).kernel()


# --- fusion --------------------------------------------------------------------------------------
def program_of(expression, **signature):
    function = parse_expression(expression, tuple(signature))
    return fuse(function, name="f").program(*signature.values())


@pytest.mark.parametrize(
    ("expression", "signature"),
    [
        ("(x @ w) + (x @ w).T", {"x": "f16[M,K]", "w": "f16[K,M]"}),
        ("gelu(x @ w) * gelu(x @ w).T", {"x": "f16[M,K]", "w": "f16[K,M]"}),
        ("(x @ w, relu(x @ w) + (x @ w).T)", {"x": "f16[M,K]", "w": "f16[K,M]"}),
        ("(x @ w) + (x @ w).T", {"x": "f16[8,16]", "w": "f16[16,8]"}),
    ],
)
def test_a_value_used_at_another_output_point_forbids_fusion(expression, signature):
    program = program_of(expression, **signature)
    with pytest.raises(UnsupportedProgram, match="cannot be fused into one kernel") as caught:
        fuse_statements(program, scop(program))
    message = str(caught.value)
    witness = re.search(r"dependence (\w\d)\[(\d+),(\d+)[,\d]*\] -> (\w\d)\[(\d+),(\d+)\]", message)
    assert witness, message
    assert (witness[2], witness[3]) != (witness[5], witness[6])
    assert "used for another; a kernel has a value where it is computed" in message
    assert "as w.T @ x.T for (x @ w).T; or return the product" in message


NOT_YET = {
    "sums of two shapes": (
        'einsum("mkl,lkn", x, w) + a @ b',
        {"x": "f16[M,K,L]", "w": "f16[L,K,N]", "a": "f16[M,K]", "b": "f16[K,N]"},
        ("S0 sums over [K, L], S1 over [K]", "numbered through", "Make two functions"),
    ),
    "a chain over two axes": (
        'einsum("mkl,lkn", x, w) @ u', {"x": "f16[M,2,64]", "w": "f16[64,2,64]", "u": "f16[64,P]"},
        ("sums over 2 axes in a chain", "with these axes merged"),
    ),
    "outer product": (
        "x[:, None] @ w", {"x": "f16[M]", "w": "f16[1,N]"},
        ("v0[i,j] += x[i] * w[k,j] is not a matrix product", "Multiply elementwise"),
    ),
    "products of rows": (
        'einsum("mk,mk->m", x, w)', {"x": "f16[M,K]", "w": "f16[M,K]"},
        ("v0[i] += x[i,k] * w[i,k] is not a matrix product", "Compute it outside of the kernel"),
    ),
    "output with one axis": (
        "(x @ w)[0]", {"x": "f16[M,K]", "w": "f16[K,N]"},
        ("P1 reads v0[0,i]: parts of computed values", "Slice the operands"),
    ),
    "repeated elements of the product": (
        "repeat(x @ w, 2, axis=1)", {"x": "f16[M,K]", "w": "f16[K,64]"},
        ("P1 reads v0[i,floor(j/2)]: parts of computed values", "np.repeat(f(x, w), 2, axis=1)"),
    ),
    "output with three axes": (
        "(x @ w)[..., None] + c", {"x": "f16[M,K]", "w": "f16[K,N]", "c": "f32[2]"},
        ("different output domains", "P1 over [M, N, 2]", "outside"),
    ),
    "a product that is broadcast to another": (
        "x @ w + x @ u", {"x": "f16[M,K]", "w": "f16[K,N]", "u": "f16[K,1]"},
        ("products over different output domains that values join", "S1 over [M, 1]", "Split"),
    ),
    "operand computed in 8 bits": (
        "(x * 2).astype('e4m3') @ w", {"x": "e4m3[M,K]", "w": "e4m3[K,N]"},
        ("operand v1 is computed and rounded to e4m3", 'Write .astype("bf16")'),
    ),
    "operand rounded to 8 bits on its way": (
        "((x * 2).astype('e4m3') + 1) @ w", {"x": "bf16[M,K]", "w": "bf16[K,N]"},
        ("P1 rounds to e4m3", "an operand's statements round to", "bf16"),
    ),
    "chain": (
        "(x @ w) @ u", {"x": "f16[M,K]", "w": "f16[K,N]", "u": "f16[N,P]"},
        ("a product of a chain sums over K", "Give K as a number"),
    ),
    "chain of tf32": (
        "(x @ w) @ u", {"x": "tf32[M,K]", "w": "tf32[K,N]", "u": "tf32[N,P]"},
        ("a product of a chain sums over K", "Give K as a number"),
    ),
    "chain with work between": (
        "x @ u + gelu(x @ w) @ w", {"x": "f16[M,K]", "w": "f16[K,K]", "u": "f16[K,K]"},
        ("S1: v1[i,j] += x[i,k] * w[k,j] has K columns", "Give K as a number"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_YET)
def test_what_is_not_generated_yet_is_refused_by_name(name):
    expression, signature, fragments = NOT_YET[name]
    function = parse_expression(expression, tuple(signature))
    with pytest.raises(UnsupportedProgram) as caught:
        fuse(function, name="f").compile(*signature.values(), arch="sm_90a", single=True)
    message = str(caught.value)
    assert message.startswith("f: "), message
    for fragment in fragments:
        assert fragment in message, message


def test_a_kernel_runs_a_product():
    x, w = (Tensor(name, F32, ("M", "M"), (0, 1)) for name in "xw")
    y = Tensor("y0", F32, ("M", "M"), (0, 1))
    square = (("i", "M"), ("j", "M"))
    total = Pointwise(
        "P2", square, Access("y0", ("i", "j")), "add",
        (Access("v0", ("i", "j")), Access("v1", ("i", "j"))), F32,
    )  # fmt: skip
    empty = Program("f", "", (x, w), (y,), (total,))
    with pytest.raises(UnsupportedProgram, match="nothing to contract"):
        fuse_statements(empty, scop(empty))


@pytest.mark.parametrize(
    ("domain", "lhs", "rhs"),
    [
        ((("i", "M"), ("j", "N"), ("k", "K")), ("i", "k"), ("i", "j")),  # w without k
        ((("i", "M"), ("j", "N"), ("k", "K"), ("l", "K")), ("i", "k"), ("l", "j")),  # two sums
        ((("i", "M"), ("j", "N"), ("k", "K")), ("k", "k"), ("k", "j")),  # a diagonal
    ],
)
def test_what_is_no_matrix_product_is_named(domain, lhs, rhs):
    x, w = (Tensor(name, F32, ("M", "M"), (0, 1)) for name in "xw")
    y = Tensor("y0", F32, ("M", "N"), (0, 1))
    product = Contraction(
        "S0", domain, Access("v0", ("i", "j")), Access("x", lhs), Access("w", rhs), F32
    )
    store = Pointwise(
        "P1", domain[:2], Access("y0", ("i", "j")), "cast", (Access("v0", ("i", "j")),), F32
    )
    program = Program("f", "", (x, w), (y,), (product, store))
    with pytest.raises(UnsupportedProgram, match=r"S0.*(is not a matrix product|sums over 2 axes)"):
        fuse_statements(program, scop(program))


@pytest.mark.parametrize("name", ["mod", "floor", "exists", "k_tiles"])
def test_a_size_may_not_have_a_name_that_isl_reserves(name):
    assert name in RESERVED
    with pytest.raises(SignatureError) as caught:
        scop(program_of("x @ w", x=f"f16[{name},K]", w="f16[K,N]"))
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ["NAN", "Min", "TRUE", "Mod"])
def test_reserved_names_in_any_case(name):
    function = parse_expression("x @ w", ("x", "w"))
    program = fuse(function, name="f").program(f"bf16[{name},K]", "bf16[K,N]")
    with pytest.raises(SignatureError, match=f"{name}.*is reserved"):
        scop(program)


def test_a_product_that_has_lost_an_axis_is_no_program():
    program = fuse(lambda x, w: x @ w.T).program("bf16[M,K]", "bf16[N,K]")
    (product,) = program.contractions
    lost = replace(
        product,
        domain=tuple(pair for pair in product.domain if pair[0] != "j"),
        write=Access(product.write.name, ("i",)),
    )
    broken = replace(
        program, statements=tuple(lost if one is product else one for one in program.statements)
    )
    with pytest.raises(VerifyError, match=r"has w\[j,k\], and no j") as error:
        fuse_statements(broken, scop(program))
    assert "its domain is over i, k" in str(error.value)


def test_zeros_around_a_product_are_put_there_outside():
    padded = fuse(lambda x, w: np.pad(x @ w, 1))
    with pytest.raises(UnsupportedProgram, match=r"reads v0\[i-1,j-1\]: parts of") as error:
        padded.compile("f16[16,K]", "f16[K,64]", arch="sm_80")
    assert "np.pad(f(x, w), 1)" in str(error.value)
