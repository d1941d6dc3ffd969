"""Tiles partition the iteration space."""

import itertools

import pytest
from block_simulator import map_sample, sample_atom
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import LAYOUTS, UNUSUAL, case, small

from polygen.api import fuse
from polygen.frontend.parse import parse_expression
from polygen.poly.fusion import fuse as fuse_statements
from polygen.poly.match import match
from polygen.poly.scop import scop
from polygen.poly.tiling import roles, tiling


def evaluate(expression, **values):
    text = expression.replace("floor(", "int(")
    text = text.replace(" mod ", " % ").replace("/", "//")
    return eval(text, {"int": int}, values)


SCHEDULES = [small(), UNUSUAL["warp_of_48x24"], UNUSUAL["warps_1x8"], UNUSUAL["three_fragments"]]


@settings(max_examples=60)
@given(
    schedule=st.sampled_from(SCHEDULES),
    m=st.integers(0, 500),
    n=st.integers(0, 500),
    k=st.integers(0, 500),
)
def test_tile_coordinates_give_the_point_back(schedule, m, n, k):
    tiles = tiling(schedule, sample_atom())
    at = {name: evaluate(e, m=m, n=n, k=k) for name, e in tiles.expressions("m", "n").items()}
    (cm, cn, ck), (wm, wn), (am, an, ak) = tiles.cta, tiles.warp, tiles.atom
    assert 0 <= m - (at["b_m"] * cm + at["w_m"] * wm + at["a_m"] * am) < am
    assert 0 <= n - (at["b_n"] * cn + at["w_n"] * wn + at["a_n"] * an) < an
    assert 0 <= k - (at["k_tile"] * ck + at["k_step"] * ak) < ak
    assert at["w_m"] * tiles.warps[1] + at["w_n"] < tiles.warp_count
    assert at["a_m"] < tiles.atoms[0]
    assert at["a_n"] < tiles.atoms[1]
    assert at["k_step"] < tiles.k_steps


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: str(s.tile.warp))
def test_every_tile_of_a_block_is_used(schedule):
    tiles = tiling(schedule, sample_atom())
    expressions = tiles.expressions("m", "n")
    used = {
        tuple(
            evaluate(expressions[c], m=m, n=n, k=k) for c in ("w_m", "w_n", "a_m", "a_n", "k_step")
        )
        for m, n, k in itertools.product(
            range(0, tiles.cta[0], tiles.atom[0]),
            range(0, tiles.cta[1], tiles.atom[1]),
            range(0, tiles.cta[2], tiles.atom[2]),
        )
    }
    sizes = (*tiles.warps, *tiles.atoms, tiles.k_steps)
    assert used == set(itertools.product(*map(range, sizes)))


def test_a_tiling_prints_its_levels():
    text = str(tiling(small(), sample_atom()))
    assert text == "block 32x32x32, 2x2 warps of 16x16, instruction 16x8x16"


def test_roles_follow_the_band_through_a_transposed_output():
    function = parse_expression("(x @ w, (x @ w).T)", ("x", "w"))
    program = fuse(function, name="f").program("f16[M,K]", "f16[K,N]")
    model = scop(program)
    fusion = fuse_statements(program, model)
    matched = match(program, fusion)
    found = {r.statement: (r.m, r.n, r.k) for r in roles(model, fusion, matched, [""])}
    assert found == {
        "Z0": ("i", "j", ""), "S0": ("i", "j", "k"), "P1": ("i", "j", ""), "P2": ("j", "i", ""),
    }  # fmt: skip


# --- mappings -----------------------------------------------------------------------------------
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_claims_of_a_mapping_are_listed(layout):
    tree = map_sample(small(), layout=layout)
    claims = " ".join(str(proof) for proof in tree.proofs)
    for part in (
        "two thread blocks", "executed by one tile", "exactly its instances", "arrivals are what",
        "ordered by the emitted trees", "waits for ever", "its own phase", "can be dropped",
    ):  # fmt: skip
        assert part in claims, part


def test_fixed_sizes_are_mapped_too():
    one = case("fixed", "nn", "bf16", "plain")
    kernel = one.fused().compile("bf16[48,96]", "bf16[96,40]", arch="sm_80")
    assert kernel.passes.plan.extents == (("m", 48), ("n", 40), ("k", 96))
