"""Keys in pages in a plan: what is shown of them, and plans that read other pages."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
from chain_samples import few_rows
from paged_samples import decoding, signature

import polygen as pg
from polygen.errors import VerifyError
from polygen.fit_chain import decide_chain
from polygen.frontend.build import build_for
from polygen.hardware.device import device
from polygen.lower.verify import verify
from polygen.lower.work import FindPages, Move


@functools.cache
def _kernel() -> pg.Kernel:
    return pg.fuse(decoding()).compile(
        *signature(16, "J"), arch="sm_90a", schedule=few_rows(keys=32)
    )


def test_show_explains_pages() -> None:
    plan = _kernel().show("plan")
    assert "find_b[i,k]: table[z0, floor(k/16)] -> page_b" in plan
    assert "2 pages of 16 keys to a tile" in plan
    assert "proved: every key of a tile is brought from its row of the page that the table" in plan
    assert "k_pages[table[b,floor(j/16)],(j mod 16),c,i]" in _kernel().show("program")
    assert "row i has the keys j <= length[i] - 1" in _kernel().show("rewrite")


def test_pages_are_found_before_the_slot_is_waited_for() -> None:
    loops = next(p for p in _kernel().passes.plan.places if p.name == "producer").loops
    text = str(loops)
    assert text.index("find_b") < text.index("wait_empty_ring_b") < text.index("fill_b")


def test_pages_of_a_call_become_numbers() -> None:
    """Of arrays the keys of a page are known, which a reshape asks for; any number of pages."""
    names = [pg.fuse(decoding(80)).program(*signature(16, 5)).tensors[name] for name in
             ("q", "k_pages", "v_pages", "table", "length")]  # fmt: skip
    dims = (("B", "K", "G", "D"), ("N", "P", "K", "D"), ("N", "P", "K", "D"), ("B", "J"), ("B",))
    given = [replace(one, dims=own) for one, own in zip(names, dims, strict=True)]
    sizes = {"B": 3, "K": 2, "G": 4, "D": 64, "N": 20, "P": 16, "J": 5}
    made = build_for(decoding(), "decoding", "", given, sizes)
    assert made.tensors["table"].dims == ("B", "J") and made.tensors["k_pages"].dims[:2] == (
        "N",
        16,
    )
    assert made.sizes == ("B", "K", "G", "D", "N", "J")


def test_all_keys_of_a_table_are_counted() -> None:
    sizes = {
        one.dim: one.largest for one in _kernel().passes.source.conditions if one.kind == "size"
    }
    assert sizes["J"] == sizes["N"] // 16
    assert (
        f"J > {sizes['J']}" in _kernel().source and "const int keys = (16 * J)" in _kernel().source
    )


def test_producers_have_registers_for_pages() -> None:
    program, target = pg.fuse(decoding()).program(*signature(16, "J")), device("sm_90a")
    few = decide_chain(program, target, "auto", sizes={"G": 4}).schedule.roles
    many = decide_chain(program, target, "auto", sizes={"G": 400}).schedule.roles
    assert (few.producer_registers, few.consumer_registers) == (32, 224)
    assert (many.producer_registers, many.consumer_registers) == (32, 160)


def test_few_sequences_have_their_pages_in_parts() -> None:
    program = pg.fuse(decoding()).program(*signature(16, "J", heads=8, depth=128))

    def chosen(batch: int) -> str:
        sizes = {"B": batch, "G": 4, "N": 5000, "J": 4096}
        return decide_chain(program, device("sm_90a"), "auto", sizes=sizes).schedule.name

    assert chosen(1).startswith("chain_64x128x64_r1_p") and chosen(32) == "chain_64x128x64_r1"


def _changed(kind: type, **fields):
    """The plan with other fields in the first work of a kind that brings keys."""
    plan = _kernel().passes.plan
    leaf = next(
        one
        for one in plan.leaves
        if isinstance(one.work, kind) and one.statement in ("find_b", "fill_b")
    )
    if kind is Move:
        fields = {"boxes": (replace(leaf.work.boxes[0], **fields),)}
    changed = replace(leaf, work=replace(leaf.work, **fields))
    return replace(plan, leaves=tuple(changed if one is leaf else one for one in plan.leaves))


def _places(text: str) -> tuple[str, ...]:
    return tuple(text.format(box) for box in range(2))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (FindPages, {"places": _places("(k_first + k) * 2 + 1 - {}")}),
        (FindPages, {"places": _places("k * 2 + {}")}),
        (FindPages, {"count": 5}),
        (FindPages, {"extent": 80}),
        (FindPages, {"base": ()}),
        (FindPages, {"base": ("(long long)z1 * table_stride0",)}),
        (FindPages, {"step": "2"}),
        (FindPages, {"registers": "page_c"}),
        (Move, {"pages": "page_c"}),
        (Move, {"pages": ""}),
        (Move, {"corner": ("page_c[piece]", "0", "z1", "0")}),
        (Move, {"corner": ("page_b[piece]", "k", "z1", "0")}),
        (Move, {"corner": ("page_b[piece]", "0", "z0", "0")}),
        (Move, {"pieces": 1}),
    ],
)
def test_plans_that_read_other_pages_are_refused(kind: type, fields: dict) -> None:
    verify(_kernel().passes.plan)
    with pytest.raises(VerifyError):
        verify(_changed(kind, **fields))
