"""Domains, accesses and dependences of small programs, as exact sets."""

from dataclasses import replace

import pytest

from polygen import isl
from polygen.api import fuse
from polygen.frontend.dtypes import F32
from polygen.frontend.parse import parse_expression
from polygen.frontend.program import Access, Pointwise, Program, Tensor
from polygen.poly.scop import clear_name, groups, listed, scop


def model(expression, **signature):
    function = parse_expression(expression, tuple(signature))
    return scop(fuse(function, name="f").program(*signature.values()))


BOX = "0 <= i < M and 0 <= j < N"
SIZES = "[M,K,N] -> "


def test_a_batch_is_one_more_dimension():
    found = model("x @ w", x="bf16[B,M,K]", w="bf16[K,N]")
    point = "0 <= b < B and 0 <= i < M and 0 <= j < N"
    sizes = "[B,M,K,N] -> "
    wanted = isl.UnionSet(
        f"{sizes}{{ Z0[b,i,j] : {point}; S0[b,i,j,k] : {point} and 0 <= k < K; "
        f"P1[b,i,j] : {point} }}"
    )
    positive = isl.Set(f"{sizes}{{ : B >= 1 and M >= 1 and N >= 1 and K >= 1 }}")
    assert found.domain.is_equal(wanted.intersect_params(positive))
    flow = isl.UnionMap(
        f"{sizes}{{ Z0[b,i,j] -> S0[b,i,j,0]; S0[b,i,j,k] -> S0[b,i,j,k+1]; "
        "S0[b,i,j,K-1] -> P1[b,i,j] }"
    )
    assert found.flow.is_equal(flow.intersect_domain(found.domain).intersect_range(found.domain))


def test_times_have_one_length():
    found = model("x @ w + b", x="bf16[B,H,M,K]", w="bf16[K,N]", b="f32[N]")
    assert len(isl.pieces(found.order.range())) == 1


def test_a_slice_reads_the_elements_it_names():
    found = model("x[:, 1::2] @ w", x="bf16[M,64]", w="bf16[32,N]")
    reads = isl.UnionMap(
        "[M,N] -> { S0[i,j,k] -> x[i,2k+1]; S0[i,j,k] -> w[k,j]; S0[i,j,k] -> v0[i,j]; "
        "P1[i,j] -> v0[i,j] }"
    )
    assert found.reads.is_equal(reads.intersect_domain(found.domain))


def test_statements_without_iterators():
    found = model("x @ w", x="bf16[K]", w="bf16[K]")
    flow = isl.UnionMap("[K] -> { Z0[] -> S0[0]; S0[k] -> S0[k+1]; S0[K-1] -> P1[] }")
    assert found.flow.is_equal(flow.intersect_domain(found.domain).intersect_range(found.domain))


def test_a_chain_depends_on_all_of_a_row():
    found = model("(x @ w) @ u", x="tf32[M,K]", w="tf32[K,L]", u="tf32[L,N]")
    wanted = isl.UnionMap("[M,K,L,N] -> { S0[i,l,K-1] -> S1[i,j,l] }")
    within = wanted.intersect_domain(found.domain).intersect_range(found.domain)
    assert within.is_subset(found.flow)
    between = found.flow.intersect_range(isl.UnionSet("[M,K,L,N] -> { S1[i,j,k] }"))
    inner = isl.UnionMap("[M,K,L,N] -> { S1[i,j,k] -> S1[i,j,k+1]; Z1[i,j] -> S1[i,j,0] }")
    assert between.subtract(inner).is_equal(within)


@pytest.fixture(scope="module")
def product():
    return model("relu(x @ w + b)", x="bf16[M,K]", w="bf16[K,N]", b="f32[N]")


def test_domains(product):
    wanted = isl.UnionSet(
        f"{SIZES}{{ Z0[i,j] : {BOX}; S0[i,j,k] : {BOX} and 0 <= k < K; P1_P3[i,j] : {BOX} }}"
    ).intersect_params(isl.Set(f"{SIZES}{{ : M >= 1 and N >= 1 and K >= 1 }}"))
    assert product.domain.is_equal(wanted)
    assert product.parameters == ("M", "K", "N")


def test_reads_and_writes(product):
    """What crosses a group's border; v1 and v2 live and die inside P1_P3."""
    domain = product.domain
    reads = isl.UnionMap(
        f"{SIZES}{{ S0[i,j,k] -> x[i,k]; S0[i,j,k] -> w[k,j]; S0[i,j,k] -> v0[i,j]; "
        "P1_P3[i,j] -> v0[i,j]; P1_P3[i,j] -> b[j] }"
    ).intersect_domain(domain)
    writes = isl.UnionMap(
        f"{SIZES}{{ Z0[i,j] -> v0[i,j]; S0[i,j,k] -> v0[i,j]; P1_P3[i,j] -> y0[i,j] }}"
    ).intersect_domain(domain)
    assert product.reads.is_equal(reads)
    assert product.writes.is_equal(writes)


def test_flow_is_value_flow(product):
    """Only the last addition is seen by the pointwise statements, not all of them."""
    wanted = isl.UnionMap(
        f"{SIZES}{{ Z0[i,j] -> S0[i,j,0]; S0[i,j,k] -> S0[i,j,k+1]; S0[i,j,K-1] -> P1_P3[i,j] }}"
    )
    wanted = wanted.intersect_domain(product.domain).intersect_range(product.domain)
    assert product.flow.is_equal(wanted)


def test_statements_apart_have_dependences_of_their_own():
    function = parse_expression("relu(x @ w + b)", ("x", "w", "b"))
    program = fuse(function, name="f").program("bf16[M,K]", "bf16[K,N]", "f32[N]")
    found = scop(program, apart=True)
    assert [group.name for group in found.groups] == ["S0", "P1", "P2", "P3"]
    wanted = isl.UnionMap(
        f"{SIZES}{{ Z0[i,j] -> S0[i,j,0]; S0[i,j,k] -> S0[i,j,k+1]; S0[i,j,K-1] -> P1[i,j]; "
        "P1[i,j] -> P2[i,j]; P2[i,j] -> P3[i,j] }"
    )
    wanted = wanted.intersect_domain(found.domain).intersect_range(found.domain)
    assert found.flow.is_equal(wanted)


def test_reuse_is_that_of_the_sum(product):
    wanted = isl.UnionMap(f"{SIZES}{{ Z0[i,j] -> S0[i,j,0]; S0[i,j,k] -> S0[i,j,k+1] }}")
    wanted = wanted.intersect_domain(product.domain).intersect_range(product.domain)
    assert product.reuse.is_equal(wanted)
    assert product.dependences.is_equal(product.flow.union(product.reuse))


def test_broadcast_operands_read_index_zero():
    found = model("(x @ w) * c + s", x="f16[M,K]", w="f16[K,N]", c="f32[M,1]", s="f32")
    wanted = isl.UnionMap(f"[M,K,N] -> {{ P1_P3[i,j] -> c[i,0] : {BOX} and K >= 1 }}")
    assert wanted.is_subset(found.reads)
    scalar = isl.UnionMap(f"[M,K,N] -> {{ P1_P3[i,j] -> s[] : {BOX} and K >= 1 }}")
    assert scalar.is_subset(found.reads)


def test_transposition_is_only_an_access_relation():
    found = model("x.T @ w.T + r.T", x="f16[K,M]", w="f16[N,K]", r="f16[N,M]")
    reads = isl.UnionMap(
        "[K,M,N] -> { S0[i,j,k] -> x[k,i]; S0[i,j,k] -> w[j,k]; P1[i,j] -> r[j,i] }"
    ).intersect_domain(found.domain)
    assert reads.is_subset(found.reads)


def test_a_turned_output_reads_the_same_sum():
    found = model("(relu(x @ w), (x @ w).T * 2)", x="f16[M,K]", w="f16[K,N]")
    contraction = isl.UnionSet("[M,K,N] -> { S0[i,j,k] }")
    readers = found.flow.intersect_domain(contraction).range().subtract(contraction)
    assert readers.n_set() == 2


# --- groups ---------------------------------------------------------------------------------------
def members(program):
    return [group.members for group in groups(program)]


def test_neighbours_over_one_domain_are_a_group():
    function = parse_expression("(relu(x @ w), x @ w + r, (x @ w).T * 2)", ("x", "w", "r"))
    program = fuse(function, name="f").program("f16[M,K]", "f16[K,N]", "f32[M,N]")
    assert members(program) == [("S0",), ("P1", "P2", "P3", "P4"), ("P5", "P6")]
    assert [g.name for g in groups(program)] == ["S0", "P1_P4", "P5_P6"]
    assert "P1_P4: P1, P2, P3, P4, one after the other" in str(scop(program))


def test_long_groups_are_printed_short():
    assert listed(("P1", "P2")) == "P1, P2"
    assert listed(tuple(f"P{n}" for n in range(1, 201))) == "P1, P2, …, P200"


def chain(*steps, sizes=("M", "N")):
    """Pointwise statements (written cell, read cells), all over the same domain."""
    domain = tuple(zip(("i", "j"), sizes, strict=True))
    statements = []
    for number, (write, *reads) in enumerate(steps):
        cells = [Access(cell[0], tuple(cell[1:])) for cell in (write, *reads)]
        made = Pointwise(f"P{number}", domain, cells[0], "add", tuple(cells[1:]), F32)
        statements.append(made)
    output = Tensor(steps[-1][0][0], F32, sizes, (0, 1))
    return Program("p", "", (), (output,), tuple(statements))


@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        ((("aij",), ("bij", "aij"), ("cij", "bij", "aij")), [("P0", "P1", "P2")]),
        ((("aij",), ("bij", "aji"), ("cij", "bij")), [("P0",), ("P1", "P2")]),  # read crosswise
        ((("aij",), ("bji", "aij"), ("cij", "aij")), [("P0",), ("P1",), ("P2",)]),  # written so
        ((("bij", "aji"), ("aij",)), [("P0",), ("P1",)]),  # read crosswise, written afterwards
        ((("aij",), ("bij", "aij", "aji")), [("P0",), ("P1",)]),  # both ways
        ((("aij", "rji"), ("bij", "rji", "aij")), [("P0", "P1")]),  # an input, any way
    ],
)
def test_only_values_at_the_own_point_stay_inside_a_group(steps, wanted):
    assert members(chain(*steps, sizes=("M", "M"))) == wanted


def test_other_extents_are_another_group():
    first, second = (chain(("aij",), sizes=s).statements[0] for s in (("M", "N"), ("N", "M")))
    program = Program("p", "", (), (), (first, replace(second, name="P1")))
    assert members(program) == [("P0",), ("P1",)]


def test_a_read_before_the_write_comes_from_outside():
    (group,) = groups(chain(("bij", "aij"), ("aij", "bij"), ("cij", "aij")))
    assert [str(access) for access in group.reads] == ["a[i,j]"]


def test_fixed_sizes_have_no_parameters():
    found = model("x @ w", x="bf16[48,96]", w="bf16[96,40]")
    assert found.parameters == ()
    cube = isl.Set.from_union_set(found.domain.intersect(isl.UnionSet("{ S0[i,j,k] }")))
    assert isl.count(cube) == 48 * 96 * 40


def test_prints_every_relation(product):
    text = str(product)
    for title in ("domain:", "reads:", "writes:", "flow dependences:", "anti and output"):
        assert title in text


def test_the_clearing_statement_is_named_after_its_contraction():
    function = parse_expression("x @ w", ("x", "w"))
    program = fuse(function, name="f").program("f16[M,K]", "f16[K,N]")
    assert clear_name(program.contractions[0]) == "Z0"
