"""Which tile stores numbers of rows: one agent of one block, behind all terms, or it is refused."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from emitted_mutants import text_mutants
from matrix import roles, small, tiled

import polygen as pg
from polygen import isl
from polygen.errors import VerifyError
from polygen.frontend.dtypes import F32
from polygen.frontend.program import Tensor
from polygen.poly import mapping, ring_tallies, rows_out
from polygen.poly.elements import Along
from polygen.poly.refine import refine
from polygen.poly.ring_folds import RingOutput
from polygen.schedule.model import Epilogue

X_W = ("bf16[M,K]", "bf16[N,K]")
PAIRS = Epilogue(through="registers")
SCHEDULES = {
    "warps": ("sm_80", small(epilogue=PAIRS)),
    "warps below one another": ("sm_80", tiled((64, 32, 32), (16, 16), epilogue=PAIRS)),
    "consumers": ("sm_90a", roles("two", through="registers")),
    "turns": ("sm_90a", roles("pingpong", through="registers")),
}


# Two rings do not depend on each other, what leaves and elements only read, and what waits for the
# numbers of both rings may come earlier for one of them.
HARMLESS = {
    "share_b before share_a", "leave_b before leave_a", "bar_leave_a before share_b",
    "bar_leave_b before leave_a", "store before leave_b",
}  # fmt: skip


def leaving(x, w):
    return x @ w.T, np.sum(x, axis=1), np.max(w, axis=1)


def compile_(schedule, arch="sm_80", function=leaving, signature=X_W):
    with mock.patch.object(pg.pipeline, "synchronised", mapping.derive):
        return pg.fuse(function, name="f").compile(*signature, arch=arch, schedule=schedule)


def emitted(name):
    """What is emitted of a kernel, before it is proved."""
    arch, schedule = SCHEDULES[name]
    found, plain = [], mapping.emitted_of

    def recorded(*given):
        found.append(plain(*given))
        return found[-1]

    with mock.patch.object(mapping, "emitted_of", recorded):
        compile_(schedule, arch)
    return found[0]


@pytest.mark.parametrize("name", SCHEDULES)
def test_trees_that_store_otherwise_are_refused(name):
    """Left out, doubled, or in front of what the number is made of."""
    refused, accepted = [], []
    for what, changed in text_mutants(emitted(name)):
        if "leave_" not in what and "share_" not in what:
            continue
        try:
            refine(changed, necessary=False)
        except VerifyError as error:
            refused.append((what, str(error)))
            continue
        accepted.append(what.partition(": ")[2])
    of = {what.partition(": ")[2] for what, _ in refused}
    assert {f"{one}_{ring} is {how}" for one in ("leave", "share") for ring in "ab"
            for how in ("dropped", "doubled")} <= of  # fmt: skip
    assert set(accepted) <= HARMLESS, accepted
    assert any(what.endswith("is dropped") and "is never executed" in why for what, why in refused)


@pytest.mark.parametrize("name", SCHEDULES)
def test_numbers_that_leave_before_the_last_k_tile_are_refused(name):
    """What shares them stands before the k loop, or what stores them before they are shared."""
    of, tried = emitted(name), set()
    for what, changed in text_mutants(of):
        moved = what.partition(": ")[2]
        if moved.startswith(("share_", "leave_")) and " before " in moved and moved not in HARMLESS:
            tried.add(moved.partition("_")[0])
            with pytest.raises(VerifyError):
                refine(changed, necessary=False)
    assert tried == {"share", "leave"}


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        (" and 1 = 0", "is not executed|is no tile of the program"),  # nobody stores
        ("", "is no tile of the program"),  # all agents that have the rows do
        (" and w mod 2 = 1", "is no tile of the program|is not executed"),  # another one
    ],
)
def test_agents_that_store_are_the_first_of_each_row(conditions, message):
    def first(place, side, tiles):
        return conditions

    with (
        mock.patch.object(ring_tallies, "first_agents", first),
        pytest.raises(VerifyError, match=message),
    ):
        compile_(SCHEDULES["warps"][1], function=lambda x, w: (x @ w.T, np.sum(x, axis=1)))


def test_a_number_that_another_agent_stores_is_refused():
    """The tile program says who stores; elements that are said to be another's are nobody's."""

    def owner(e, tiles, schedule):
        return [f"{tiles.warps[1]}*{e['w_m']} + 1 - {e['w_n']}"]

    with (
        mock.patch.object(rows_out, "_owner", owner),
        pytest.raises(VerifyError, match="is no tile of the program"),
    ):
        compile_(SCHEDULES["warps"][1])


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ((Along("z0"), Along("m")), ""),
        ((Along(""), Along("m")), "is stored by no tile"),
        ((Along("m"), Along("z0")), "is stored by no tile|are stored twice"),
        ((Along("z0"), Along("")), "is stored by no tile"),
    ],
)
def test_every_element_of_an_array_is_stored_once(index, message):
    output = RingOutput(Tensor("y1", F32, ("B", "M"), (0, 1)), 0, index)
    prefix, at = "[B, M] -> ", {"z0": "z0", "m": "m"}
    context = isl.Set(f"{prefix}{{ : B >= 1 and M >= 1 }}")
    domain = "leave_y1[z0,m] : 0 <= z0 < B and 0 <= m < M"
    if not message:
        proof = rows_out._prove_once(prefix, context, domain, output, at)
        assert "stored by one tile" in str(proof)
        return
    with pytest.raises(VerifyError, match=message):
        rows_out._prove_once(prefix, context, domain, output, at)


def test_elements_that_two_instances_store():
    """Rows of all matrices of a batch in which they are the same."""
    output = RingOutput(Tensor("y1", F32, ("M",), (0,)), 0, (Along("m"),))
    prefix = "[B, M] -> "
    context = isl.Set(f"{prefix}{{ : B >= 1 and M >= 1 }}")
    domain = "leave_y1[z0,m] : 0 <= z0 < B and 0 <= m < M"
    with pytest.raises(VerifyError, match="elements of y1 are stored twice"):
        rows_out._prove_once(prefix, context, domain, output, {"z0": "z0", "m": "m"})


def test_blocks_that_store_are_the_first_along_what_rows_do_not_depend_on():
    kernel = pg.fuse(lambda x, w: (x @ w, np.sum(x, axis=1), np.max(w, axis=1)), name="f").compile(
        "bf16[M,K]", "bf16[B,K,N]", arch="sm_80", schedule=small(epilogue=PAIRS)
    )
    tree = kernel.passes.tree.elements
    assert "leave_y1[m] -> leave_a[" in tree and "leave_y2[z0,n] -> leave_b[" in tree
    program = kernel.passes.plan.tile_program
    assert "w mod 2 = 0" in program.statement("leave_a").bounds
    assert "w < 2" in program.statement("leave_b").bounds


def test_two_results_of_a_ring_have_places_of_their_own():
    function = pg.fuse(lambda x, w: (x @ w.T, np.sum(x, axis=1), np.max(x, axis=1)), name="f")
    plan = function.compile(*X_W, arch="sm_80", schedule=small()).passes.plan
    (ring,) = plan.work.ring_folds(plan.match)
    assert [one.number for one in ring.outputs] == [0, 1]
    assert plan.buffer("norms_a").owner_bytes == 2 * 4 * plan.tiles.warp[0]
    swapped = replace(ring, outputs=(replace(ring.outputs[0], number=1), ring.outputs[1]))
    assert swapped != ring
