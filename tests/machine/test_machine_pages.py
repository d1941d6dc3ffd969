"""Attention over caches in pages on the PTX machine: every form of pages, exact, and mistakes."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
from chain_samples import arrays_of, few_rows, run
from generated import edited
from machine.conftest import ptx_of
from paged_samples import arrays, bf16, decoding, signature, sums_of_whole_numbers

import polygen as pg
from polygen.emulated import emulate
from polygen.frontend.evaluate import reference
from polygen.schedule.model import Roles


@pytest.mark.parametrize(
    ("page", "keys", "part"),
    [
        (16, 32, 0),  # several pages to a tile, the last of which has fewer
        pytest.param(8, 48, 96, marks=pytest.mark.slow),
        pytest.param(96, 32, 64, marks=pytest.mark.slow),  # several tiles to a page
    ],
)
def test_every_key_comes_from_its_page(page: int, keys: int, part: int) -> None:
    count = max(2, 200 // page)
    lengths = [1, 40, page * count]
    given = arrays(page, lengths, count)
    given[0] = np.sign(given[0].astype(np.float32)).astype(bf16)
    given[1] = np.sign(given[1].astype(np.float32)).astype(bf16)
    few = few_rows(part, keys=keys)
    run(sums_of_whole_numbers(), signature(page, "J"), given, tolerance=0.0, schedule=few)


def test_decoding_with_heads_in_front_of_pages() -> None:
    given = arrays(16, [1, 30, 80], 5, heads_first=True, whole=False)
    named = signature(16, 5, heads_first=True)
    run(decoding(80, heads_first=True), named, given, schedule=few_rows(keys=32))


def test_numbers_of_pages_that_are_none_are_kept_inside() -> None:
    given = arrays(16, [32, 20], 2, spare=0)
    wild = given[3].copy()
    wild[0, 0], wild[1, 1] = -5, 2**31 - 1
    kept = np.clip(wild, 0, len(given[1]) - 1)
    wanted = reference(sums_of_whole_numbers(), [*given[:3], kept, given[4]])
    few = few_rows(keys=32)
    kernel = pg.fuse(sums_of_whole_numbers()).compile(
        *signature(16, "J"), arch="sm_90a", schedule=few
    )
    done = kernel.emulation(*given[:3], wild, given[4])
    assert done.report.findings == ()
    np.testing.assert_array_equal(done.results, wanted)


@pytest.mark.slow
def test_slots_of_sequences_and_tables_of_one() -> None:
    """A page that has all keys of a sequence; and one sequence, whose table is a vector."""
    q, k, v = arrays_of(1, (2, 5, 64), (7, 70, 64), (7, 70, 64))

    def slots(q, k, v, t):
        return pg.softmax((q @ k[t].mT) * 0.125) @ v[t]

    few = few_rows(64, keys=64)
    given = [q, k, v, np.int32([4, 1])]
    run(slots, ("bf16[B,S,64]", *["bf16[N,T,64]"] * 2, "s32[B]"), given, schedule=few)

    def one(q, k, v, t):
        k, v = (x[t].reshape(96, 64) for x in (k, v))
        return pg.softmax((q @ k.mT) * 0.125) @ v

    q, k, v = arrays_of(2, (5, 64), (9, 32, 64), (9, 32, 64))
    given = [q, k, v, np.int32([4, 1, 8])]
    run(one, ("bf16[S,64]", *["bf16[N,32,64]"] * 2, "s32[3]"), given, schedule=few)


@pytest.mark.slow
def test_prompts_over_pages_of_two_tables() -> None:
    """Rows of a sequence's last tokens, each of which sees those before; keys and values apart."""

    def function(q, k, v, table, other, length):
        k, v = (x[t].reshape(q.shape[0], 128, 64) for x, t in ((k, table), (v, other)))
        s = (q @ k.mT) * 0.125
        i, j = pg.indices(s)[-2:]
        seen = pg.logical_and(j <= i + 40, j < length[:, None, None])
        return pg.softmax(pg.where(seen, s, -np.inf)) @ v, pg.logsumexp(
            pg.where(seen, s, -np.inf), axis=-1
        )

    q, k, v = arrays_of(3, (2, 70, 64), (20, 16, 64), (9, 32, 64))
    rng = np.random.default_rng(3)
    table = rng.permutation(20)[:16].reshape(2, 8).astype(np.int32)
    other = rng.permutation(9)[:8].reshape(2, 4).astype(np.int32)
    given = [q, k, v, table, other, np.int32([110, 128])]
    named = ("bf16[B,S,64]", "bf16[N,16,64]", "bf16[M,32,64]", "s32[B,8]", "s32[B,4]", "s32[B]")
    run(function, named, given)


@pytest.mark.slow
def test_prompts_whose_rows_say_how_many_keys_they_have() -> None:
    """Heads of groups, and a row of the array of last keys for each token."""

    def function(q, k_pages, v_pages, table, last):
        k, v = (
            pages[table].reshape(q.shape[0], -1, 2, 64).swapaxes(1, 2)[:, :, None]
            for pages in (k_pages, v_pages)
        )
        s = (q @ k.mT) * 0.125
        s = pg.where(pg.indices(s)[-1] <= last[:, None, None, :, None], s, -np.inf)
        return pg.softmax(s) @ v

    _, k, v, table, _ = arrays(16, [40, 80], 5, whole=False)
    (q,) = arrays_of(4, (2, 2, 2, 20, 64))
    last = np.int32([np.arange(20) + 20, np.arange(20) + 60])
    pages = "bf16[N,16,2,64]"
    named = ("bf16[B,2,H,S,64]", pages, pages, "s32[B,J]", "s32[B,S]")
    few = replace(few_rows(keys=32), roles=Roles("cooperative", 32, 224))
    run(function, named, [q, k, v, table, last], schedule=few)


# --- mistakes ------------------------------------------------------------------------------------
_FIND = "page_b[0] = page_at(row + (k_first + k) * 2 + 0"
_LOOP = "          find_b(i, k);\n          wait_empty_ring_b(i, k);\n          fill_b(i, k);\n"
BROKEN = {
    "the page of another tile": [(_FIND, _FIND.replace("* 2", "* 1"))],
    "the other page of a tile": [("z1, 0, page_b[1]", "z1, 0, page_b[0]")],
    "the pages of another sequence": [("table + (long long)z0 *", "table + (long long)z1 *")],
    "another row of a page": [("z1, 0, page_c[1]", "z1, 1, page_c[1]")],
    "pages that are found too late": [
        (_LOOP, "".join(f"{line}\n" for line in (*_LOOP.splitlines()[1:], _LOOP.splitlines()[0])))
    ],
    "no wait for the slot that a page comes into": [
        (_LOOP, _LOOP.replace("wait_empty_ring_b(i, k);", ""))
    ],
    "pages behind the last one of a sequence": [(" < 5, N)", " < 6, N)")],
    "numbers that are not kept inside": [("min(max(__ldg(at), 0), pages - 1)", "__ldg(at)")],
}


@functools.cache
def _kernel() -> pg.Kernel:
    return pg.fuse(sums_of_whole_numbers(80)).compile(
        *signature(16, 5), arch="sm_90a", schedule=few_rows(keys=32)
    )


@functools.cache
def _given() -> tuple[np.ndarray, ...]:
    """Sequences of which one fills its pages; the last pages of the array are infinite."""
    given = arrays(16, [80, 70], 5, spare=2)
    given[0], given[1] = (np.sign(one.astype(np.float32)).astype(bf16) for one in given[:2])
    given[3][0, 1] = 2**30  # kept inside: the last page, which has numbers
    given[1][-1], given[2][-1] = 1.0, 2.0
    return tuple(given)


def _right(source) -> bool:
    kernel, given = _kernel(), _given()
    done = emulate(kernel.program, source, ptx_of(source), given)
    kept = np.clip(given[3], 0, len(given[1]) - 1)
    wanted = reference(sums_of_whole_numbers(80), [*given[:3], kept, given[4]])
    return not done.report.findings and np.array_equal(done.results, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_mistakes_are_found(name: str) -> None:
    source = _kernel().passes.source
    assert name != next(iter(BROKEN)) or _right(source)
    assert not _right(replace(source, text=edited(source.text, BROKEN[name])))


@pytest.mark.slow
def test_checks_give_every_row_some_keys() -> None:
    kernel = pg.fuse(decoding()).compile(
        *signature(16, "J"), arch="sm_90a", schedule=few_rows(keys=32)
    )
    report = kernel.check({"B": 2, "G": 3, "N": 9, "J": 5})
    assert report.ok, report
