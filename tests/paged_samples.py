"""Attention over caches in pages: functions, and arrays for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import polygen as pg

bf16 = ml_dtypes.bfloat16


def decoding(keys: int = -1, *, heads_first: bool = False, scale: float = 0.125) -> Callable:
    """Attention of the heads of groups, a row each, over keys in pages, as long as sequences are.

    Args:
        keys: of a sequence, as many as its pages have; -1: whatever that is.
        heads_first: whether a page is [heads, page, depth], and not [page, heads, depth].
        scale: of scores.
    """

    def function(q, k_pages, v_pages, table, length):
        k, v = (_sequences(pages[table], keys, heads_first) for pages in (k_pages, v_pages))
        s = (q @ k.mT) * scale
        j = pg.indices(s)[-1]
        s = pg.where(j < length[:, None, None, None], s, -np.inf)
        return pg.softmax(s) @ v

    return function


def sums_of_whole_numbers(keys: int = -1, *, heads_first: bool = False) -> Callable:
    """The same without a softmax, whose results are exact: scores are numbers from 0 to the depth.

    Args:
        keys: as of `decoding`.
        heads_first: likewise.
    """

    def function(q, k_pages, v_pages, table, length):
        k, v = (_sequences(pages[table], keys, heads_first) for pages in (k_pages, v_pages))
        s = pg.relu(q @ k.mT)
        j = pg.indices(s)[-1]
        s = pg.where(j < length[:, None, None, None], s, 0.0).astype("bf16")
        return (s @ v).astype("f32")

    return function


def _sequences(pages: Any, keys: int, heads_first: bool) -> Any:
    """[B,J,P,K,D], or [B,J,K,P,D] -> [B,K,T,D]."""
    if heads_first:
        pages = pages.swapaxes(2, 3)
    batch, _, _, heads, depth = pages.shape
    return pages.reshape(batch, keys, heads, depth).swapaxes(1, 2)


def signature(
    page: int, count: int | str, *, heads: int = 2, depth: int = 64, heads_first: bool = False
) -> tuple[str, ...]:
    """Of `decoding`, with so many pages to a sequence, or a name for that."""
    one = f"{heads},{page}" if heads_first else f"{page},{heads}"
    pages = f"bf16[N,{one},{depth}]"
    return (f"bf16[B,{heads},G,{depth}]", pages, pages, f"s32[B,{count}]", "s32[B]")


def arrays(
    page: int,
    lengths: list[int],
    count: int,
    *,
    rows: int = 4,
    heads: int = 2,
    depth: int = 64,
    spare: int = 3,
    heads_first: bool = False,
    whole: bool = True,
) -> list[np.ndarray]:
    """Small whole numbers, pages in an order of their own, and NaN where no key is read.

    Args:
        page: keys of one.
        lengths: of the sequences.
        count: pages of each.
        rows: of queries.
        heads: of keys.
        depth: of a head.
        spare: pages that no sequence has.
        heads_first: as of `decoding`.
        whole: whether numbers are whole; else normal.
    """
    rng = np.random.default_rng(sum(lengths) + page)
    batch = len(lengths)
    total = batch * count + spare

    def numbers(*shape: int) -> np.ndarray:
        found = rng.integers(-2, 3, shape) if whole else rng.standard_normal(shape)
        return found.astype(np.float32)

    table = rng.permutation(total)[: batch * count].reshape(batch, count).astype(np.int32)
    k, v = numbers(total, page, heads, depth), numbers(total, page, heads, depth)
    unused = np.setdiff1d(np.arange(total), table)
    k[unused] = v[unused] = np.nan
    if heads_first:
        k, v = (one.swapaxes(1, 2) for one in (k, v))
    made = [numbers(batch, heads, rows, depth), k, v]
    return [*(np.ascontiguousarray(one.astype(bf16)) for one in made), table, np.int32(lengths)]
