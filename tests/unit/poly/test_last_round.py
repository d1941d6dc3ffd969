"""Tiles of the last round, whose sums blocks share: numbers, proofs, and what breaks them."""

from __future__ import annotations

import re

import pytest
from matrix import case, roles
from tile_mutants import CASES, emitted, kernel, mutants

from polygen.emit import last_round as emitting
from polygen.errors import VerifyError
from polygen.lower.formulas import value
from polygen.poly import last_round, mapping
from polygen.poly.last_round import LastRound, prove_last_round
from polygen.poly.refine import refine
from polygen.schedule.model import Cluster
from polygen.schedule.sums import reproducible

SPLIT = 2


def schedule(columns=16, **changes):
    base = roles("one", **changes)
    cluster = Cluster(k=SPLIT, share="last", columns=columns)
    return type(base)(**{f: getattr(base, f) for f in base.__slots__} | {"cluster": cluster})


def build(given=None, epilogue="bias"):
    one = case("last", "nt", "bf16", epilogue, arch="sm_90a", schedule=given or schedule())
    return one.kernel()


def work_of(split, tiles, clusters):
    """(tile, part) of each block, in turn, as a kernel's `locate` finds them; None: the whole."""
    of = LastRound(split)
    own = of.choose(tiles, clusters)
    items = value(of.items("tiles", "own"), {"tiles": tiles, "own": own})
    done = {(c, r): [] for c in range(clusters) for r in range(split)}
    for j in range(items):
        for rank in range(split):
            names = {"j": j, "own": own, "rank": rank}
            alone = j < own
            tile = value(of.own("j", "rank") if alone else of.shared("j", "own"), names)
            done[j % clusters, rank].append((tile, None if alone else rank))
    return done


@pytest.mark.parametrize("split", [2, 3, 4])
def test_every_tile_is_somebodys_and_the_busiest_cluster_is_known(split):
    for clusters in (1, 2, 5):
        for tiles in range(1, 3 * clusters * split + 2):
            done = work_of(split, tiles, min(clusters, tiles))
            every = [one for own in done.values() for one in own]
            whole = {tile for tile, part in every if part is None}
            shared = {tile for tile, part in every if part is not None}
            assert len(every) == len(whole) + split * len(shared)
            assert whole | shared == set(range(tiles)) and not whole & shared
            parts = [sum(1 if p is None else 1 / split for _, p in own) for own in done.values()]
            alone, last = LastRound(split).rounds(tiles, min(clusters, tiles))
            assert max(parts) == pytest.approx(alone + last / split)
            # Never longer than whole tiles alone would take.
            assert alone + last / split <= -(-tiles // (min(clusters, tiles) * split))


@pytest.mark.parametrize("split", [2, 4])
def test_the_kernel_counts_as_the_formulas_do(split):
    lines, items = emitting.counted(split, "8 * tiles_n")
    for stride in (1, 5):
        for tiles_n in range(1, 9):
            names = {"tiles_n": tiles_n, "stride": stride, "first": stride - 1, "k_tiles": 7}
            for line in lines:
                condition = re.match(r"if \((.*)\) (\w+) = (.*);", line)
                declared = re.match(r"(?:const )?int (\w+) = (.*);", line)
                if condition:
                    test, name, to = condition.groups()
                    holds = all(value(one, names) for one in test.split(" && "))
                    names[name] = value(to, names) if holds else names[name]
                elif declared:
                    names[declared[1]] = value(declared[2], names)
            own = LastRound(split).choose(8 * tiles_n, stride)
            assert names["own_items"] == own and names["part_tiles"] == -(-7 // split)
            assert value(items, names) == 8 * tiles_n - (split - 1) * own
            mine = range(stride - 1, value(items, names), stride)
            assert names["own_tiles"] == sum(j < own for j in mine)


@pytest.mark.parametrize(
    ("formula", "broken"),
    [
        ("own", "{item} * 2"),
        ("shared", "{item} + {own_items} + 1"),
        ("items", "{tiles} - 2 * {own_items}"),
        ("whole", "{tiles}"),
    ],
)
def test_formulas_that_miss_or_repeat_tiles_are_refused(monkeypatch, formula, broken):
    def changed(self, *given):
        names = {"own": ("item", "rank"), "shared": ("item", "own_items")}
        names |= {"items": ("tiles", "own_items"), "whole": ("tiles", "quotient")}
        return broken.format(**dict(zip(names[formula], given, strict=True)))

    assert prove_last_round.__wrapped__(SPLIT)
    monkeypatch.setattr(last_round.LastRound, formula, changed)
    with pytest.raises(VerifyError, match="last round"):
        prove_last_round.__wrapped__(SPLIT)


def test_it_is_proved_for_both_kinds_of_tiles_and_the_sums_say_both():
    made = build()
    claims = [str(proof) for proof in made.passes.plan.proofs]
    for words in (
        "k enters a sum in one order, of other tiles: ascending (S0, 16 at a time)",
        "of a tile whose sums blocks share: ascending (S0, 16 at a time in 2 ranges of as many",
        "every output tile is in one work item: a block's own, or one that a cluster shares",
    ):
        assert any(words in claim for claim in claims), words
    (order,) = made.sums.orders
    assert order.fixed and not order.alike and order.parts == ""
    assert str(order).endswith(
        "sums in f32; in tiles of the last round 4*ceil(K/128) group(s), ascending, in parts "
        "2 ranges of as many k tiles, added up one after the other"
    )
    assert made.sums.deterministic
    assert reproducible(made.sums).startswith("deterministic where as many blocks run at once")
    assert "share the sums of a tile of the last round" in made.show("plan")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("- 1*part_tiles", "- 1*part_tiles + 1"),  # the second block begins a tile late
        ("< 1*part_tiles", "<= 1*part_tiles"),  # the first goes on into the second one's range
        ("mod 64)/32", "mod 64)/64"),  # the first block finishes all columns
    ],
)
def test_shares_that_miss_or_repeat_elements_are_refused(monkeypatch, old, new):
    made = mapping.tile_map

    def changed(statements, tiles, *rest):
        text = made(statements, tiles, *rest)
        assert not tiles.last or old in text
        return text.replace(old, new) if tiles.last else text

    monkeypatch.setattr(mapping, "tile_map", changed)
    with pytest.raises(VerifyError):
        _ = build().passes


def test_what_is_shared_takes_no_more_syncs_than_sums_of_all_tiles():
    one = next(c for c in CASES if c.name.startswith("last round"))
    syncs = {sync.name: sync for sync in kernel(one).syncs}
    full = syncs["full_part"]
    assert (full.slots, full.phase, full.arrivals) == (2, 0, 1)
    assert "empty_part" not in syncs and syncs["full_ring"].slots == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    [
        "the last part is not added",
        "the last block sends nothing",
        "the epilogue before the parts are added",
        "parts are added before the own ones are sent",
        "wait_full_part is not emitted",
        "fill without its last k",
    ],
)
def test_broken_trees_are_refused(what):
    """The rest of some 200 such mistakes: tests/unit/poly/test_tile_mutants.py."""
    one = next(c for c in CASES if c.name.startswith("last round"))
    assert refine(emitted(kernel(one)), necessary=False)
    changed = next(made for name, made in mutants(kernel(one)) if name == what)
    with pytest.raises(VerifyError):
        refine(changed, necessary=False)
