"""Texts of leaves with a mistake are refused where they are written, or do the same.

Every number, name and sign of a text is changed, and every term and condition left out. Threads
that make the same calls with the same numbers, and leave the same in registers, do the same;
others that are accepted are listed with the reason why they are no mistakes. No PTX is run.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from chain_samples import few_rows
from fragment_samples import computed, loaded, paired, scaled
from matrix import roles, small
from plan_samples import sample
from stream_samples import streamed
from text_mutants import tried

import polygen as pg
from polygen.emit.c_text import read, read_value
from polygen.emit.leaf import table
from polygen.emit.leaf.table import UNPROVED, before, kind_of, prove, proved
from polygen.emit.run_text import State
from polygen.emit.text_functions import FUNCTIONS, run
from polygen.errors import ScheduleError, UndecidedText, VerifyError
from polygen.lower.plan import KernelPlan
from polygen.poly import register_operands
from polygen.schedule.load import load_schedule
from polygen.schedule.model import Epilogue

# What is changed, and in which text: why those that are accepted are no mistakes.
EQUIVALENT = {
    r"tiles_m = 1, tiles_n = 1;: 1 -> \d$": "every section has its own",
    r"slot = shared \+ 0 .*: (\+ -> -|without 0 \+)$": "it is the first of the rings",
    r"for \(int i = p \* 2; .*: (2 -> \d|without p \+)$": "the tile is copied in one part",
    r"const float x_0 = from_u8": "bytes of halves are not computed with themselves",
    r"if \(realign_first \+ chunk .*: (<= -> <|/ -> %|128 -> (129|256)|8 -> (9|16))$": (
        "chunks are read one by one"
    ),
    r"if \(left >= \d+\) \{: (>= -> >|8 -> (9|16)|4 -> (5|8))$": "they are read by elements",
    r"else if \(left > 0\).*: (> -> >=|without if \(left > 0\))$": "nothing is left to be read",
    r"read_spaced<(2, \d>.*: 2 -> [34]|4, \d>.*: 4 -> [58]|8, \d>.*: 8 -> (9|16))$": (
        "words that the next one fills"
    ),
    r"read_spaced<(4, 4>.*: 4 -> 3|8, 4>.*: 8 -> 7)$": "the last element is behind the end",
    r"read_run<\d+, 16>.*: 16 -> 32$": "words are read one by one",
    r"for \(int u = 0; u < 4; \+\+u\) \{: (< -> <=|4 -> [58])$": "chunks behind the row's last",
    r"store_computed\(.*max\(.*: 0 -> 1$": "there is one element at least",
    r"int (section = 0, )?b_m = 0.*: 0 -> 1$": "places that are found before anybody reads them",
    r"b_m = b_m \* 2 \+ rank % 2, .*: (2 -> [34]|\+ -> -)$": "a cluster is two blocks below each "
    "other",
    r"\[\d+\](;|,| = \{).*: \d+ -> \d+$": "registers that nobody uses",
    r"combine_.*: (\d+ -> \d+|% -> /)$": "which of a place's registers takes a term: all are "
    "combined behind",
    r"if \(own_row < 64 && thread % 128 % 16 == 0\) \{: (16 -> 17|0 -> 1)$": (
        "another of the lanes that share a row, of each row one, and all of them have the result"
    ),
    r"load_shared.*: \d+ -> \d+$": "chunks of a row are read in another order, each once; terms "
    "are added up",
    r"if \(count >= 2\) \{: 2 -> 4$": "pairs are finished one by one",
    r"if \(first_column - .* <= N\)": "what reads at the edge reads right everywhere",
    r"min\(column, N - 1\).*: 1 -> 2$": "columns end behind a pair",
    r"read_sum\(.*: (M -> N|1 -> 0)$": "what is read in rows outside is not stored",
    r"if \(count >= 2\) \{: (2 -> 3|>= -> >)$": "pairs are finished one by one",
    r"row = .*, (column|e) = .*(: (thread -> lane|128 -> \d+|\* -> \+)|without i \* 128 \+)$": (
        "pieces of a row change among the threads that have the row"
    ),
    r"for \(int j = 0; j < (\d+); j \+= \1\) .*: \d+ -> \d+$|int i = j \+ r;: without j \+$": (
        "there is one turn"
    ),
    r"first \+ before >= 0 .*: (0 -> 1|8 -> \d+|<= -> <|>= -> >|\+ -> -)$|offset > 0.*: > -> >=$": (
        "chunks at the ends of rows are read element by element"
    ),
    r"\((offset|head) \* 2\) & [84] .*: (8 -> 9|4 -> 5)$": (
        "elements of two bytes are shifted by even numbers"
    ),
    r"= __funnelshift_r\(.*: (4 -> 5|< -> <=)$": "a word that nobody reads",
    r"beside = min\(column \+ (8|16), \d+\);: (48|56) -> \d+$": (
        "no chunk has a byte of what is beside it"
    ),
    r"int lap = 0; .*: (1 -> 2|2 -> [34]|64 -> (65|128)|< -> <=)$": (
        "behind the last lap nothing is inside"
    ),
    r"max\(left - head, 0\) / (8|16) .*: 0 -> 1$": "neither is a chunk",
    r"bool at_ends = .*: < -> <=$|: without if \(at_ends\)$": "ends are looked for everywhere",
    r"held\[r\]\[4 \* h \+ 0\] = (part.x|piece\[0\]);: \+ -> -$": "0 is subtracted",
    r"bool whole = .*: (< -> (<=|>)|M -> N)$": "of the second reading, of chunks that were read",
    r"const int offset = .*: 16 -> 32$": "bits of a whole chunk are not looked at",
    r"unsigned (short|char)\* const from = .*: \+ -> -$|to_column = before;: without r_0_row \+$": (
        "panels begin at whole chunks of all rows"
    ),
    r"(read|write)_portion.*: (16 -> 15|1 -> [02]|2 -> 4|>> -> <<|\+ -> -)$": (
        "portions are whole chunks, and what is behind the start of one is 0"
    ),
    r"barrier_expect\(full, .*: (0 -> 1|128 -> 129)$": "another thread of the group announces them",
    r"const float q_0 = from_u8\(": "halves of a byte are computed with, not it",
    r"bool whole = .*: \d+ -> \d+$|without if \(whole\)": (
        "tiles of keys at the end are right everywhere"
    ),
    r"part.x, from.*: \+ -> -$": "0 is subtracted",
    r"words\[i\] = \(shift\) & [84] \?.*: (8 -> 9|4 -> 5)$": (
        "elements of two bytes are shifted by even numbers"
    ),
    r"if \(whole && .*: without b_m \* 128 \+$": "tiles are masked that need not be",
    r"\(parts \+ 1LL .*: (127 -> 12[68]|128 -> 129)$": "as many parts of so many keys",
    r"if \(const int row = .*: (64 -> \d+|16 -> \d+|\+ -> -|w_m -> w_n)$": (
        "there is one tile of rows in a block, or one instruction in a tile"
    ),
    r"_unmasked\(.*at\d_first .*: (\d+ -> \d+|[*+] -> [-+])$|_unmasked.*: without \w+ [*+]": (
        "without a mask nobody reads where a score is"
    ),
    r"const int column = b_n \* 64 \+ w_n .*: (64 -> \d+|w_n -> w_m|\+ -> -|lane -> thread)$": (
        "there is one tile of columns"
    ),
    r"(const int (row|column) = b_.*|row < S\) \{): without (\w_\w|m) \* (64|16) \+$": (
        "there is one tile of columns, or of rows in a block"
    ),
    r"if \((\(lane & \d+\)|lane) == 0.*: 0 -> 1$": "another of the lanes that all have the same",
    r"if \(2 \* \(lane % 4\) == 0\) \{: (2 -> \d|lane -> thread)$": "0 is 0 times as much",
    r"if \(fold_own \+ \d <= fold_elements\) \{: \d -> \d+$": "words at the end go one by one",
    r"if \(fold_own \+ fold_v < fold_elements\) \{: ": "what a word has behind the end stays there",
    r"for \(int fold_v = 0; .*: (4 -> 3|4 -> 5|4 -> 8|< -> <=)$": "of a row's last word, which is "
    "no whole one, and behind which nothing is",
    r"for \(int n = 0; n < 8; \+\+n\) \{: |if \(column < 64\) .*: (< -> <=|64 -> \d+)$": (
        "what lies behind the columns is not stored, and they end with the tile"
    ),
    r"whole = whole && (k|b_.) \* 64 .* <= [KMN];: (64 -> (65|128)|8 -> 16)$": (
        "chunks that are whole are read in the other way, which reads what is inside"
    ),
    r"whole = whole && .* <= 4096;: ": "all chunks are whole",
}
# What these proofs do not see.
UNSEEN = {
    r"whole = whole && b_. \* 64 .* <= [MN];: 64 -> 63$": "tiles of blocks far from the first",
    r"(left >= 8.*: 8 -> 7|read_spaced<4, 2>.*: 4 -> 3)$": "rows end behind fewer elements",
    r"read_run<\d+, 2>.*: 2 -> [14]$": "how rows are aligned is proved of accesses",
    r"else if \(left > 0\).*: 0 -> 1$": "rows end behind more than one element of a chunk",
    r"if \(const int row = .* \(lane / 4\); row < S\) \{: < -> <=$": "rows end in another half",
    r"min\(k \* 64 .*, K - 2\);: 2 -> \d$": "words begin at multiples of their size",
    r"left < 64 \? 2 : 1.*: 64 -> 63$": "panels of which one column is outside",
    r"if \(b_m .* < M && b_n .* <= N\) \{: ": "tiles elsewhere, that end inside or outside",
    r"if \(count >= 8 && first_row \+ 7 < M\) \{: (8 -> 16|7 -> 14)$": "rows inside go one by one",
    r"bool at_ends = .*: \d+ -> \d+$": "panels elsewhere; `polygen.lower.shifted` proves it of all",
}
SIZES = {"M": 4099, "N": 4093, "K": 1031}
FEW = {"M": 2, "N": 4096, "K": 4096}
REGISTERS = small(epilogue=Epilogue(through="registers"))
SHIPPED = Path(__file__).parents[3] / "schedules/sm_90a"
SCALED = load_schedule(SHIPPED / "cooperative_128x64x64.toml")
FILLED = ("filled", "filled across", "filled of both", "filled of halves", "filled in part")
SHARED = {
    "shared sums": load_schedule(SHIPPED / "cooperative_64x64x64_s11_k4.toml"),
    "shared last round": load_schedule(SHIPPED / "cooperative_128x128x64_w64_s5_k2x16last.toml"),
    "columns that leave": load_schedule(SHIPPED / "cooperative_128x64x64.toml"),
    "in clusters": load_schedule(SHIPPED / "pingpong_128x128x64_c2x1.toml"),
    "scaled sums": SCALED,
    "scaled in turns": replace(SCALED, pipeline=replace(SCALED.pipeline, overlap=4)),
}
FILLING = roles("one", 64, 64)
FILLING = replace(FILLING, roles=replace(FILLING.roles, producer_registers=128))
OF_80 = replace(FILLING, tile=roles("one", 80, 64).tile)  # of which threads fill a part at last
WARPS = load_schedule(SHIPPED.parent / "sm_80/64x64x32_w32x32_s4.toml")
BEFORE = replace(WARPS, name="before", roles=replace(WARPS.roles, computes="before"))
SHARED["computed by warps"] = WARPS
SHARED |= dict.fromkeys(FILLED, FILLING) | {"filled in part": OF_80}
SHARED |= dict.fromkeys(("made", "made of batches", "made of halves", "made across"), BEFORE)


def distances(x, w):
    return (x @ w.T) / np.sqrt(np.sum(x * x, axis=1, keepdims=True))


def of_columns(x, w):
    return (x @ w.T) / np.sqrt(np.sum(w * w, axis=1))


def leaving(x, d):
    return (x.T @ d).astype("bf16"), np.sum(d, axis=0)


def beside(x, w, g):
    return (x @ w.T) / np.max(x * g, axis=1, keepdims=True)


def gated(x, w, r, c, g):
    return (x @ w.T) * r[:, None] + g * c


def folded(x, w):
    v = x @ w.T
    return pg.softmax(v), np.max(v, axis=0), np.sum(v, axis=0), np.max(v, axis=1) + 1


def in_halves(x, w, c):
    """Elements that use folds of their rows, in two parts of one output."""
    a, b = (x @ one.T for one in (w[:40], w[40:]))
    a, b = (one - np.max(one, axis=1, keepdims=True) for one in (a, b))
    return np.concatenate([a * c - b, b * 2 + a], axis=1)


def beside_results(x, w, b, s):
    return np.max(x @ w.mT, axis=2) * s + b


def of_everything(x, w, b):
    v = x @ w.T
    return np.mean(v * v) * b, np.argmax(v, axis=0)


def covered(x, w):
    return pg.log_softmax(x @ w.T)


def largest(x, w):
    v = x @ w.T
    return pg.relu(v), np.max(v, axis=1)


def at_once(x, w, r):
    v = x @ w.T + r[:, None]
    return np.argmin(v, axis=1), pg.logsumexp(v, axis=1), np.sum(v, axis=1)


def attended(q, k, v):
    s = (q @ k.mT) * 0.125
    return pg.softmax(s) @ v, pg.logsumexp(s, axis=-1)


def causal(q, k, v):
    s = (q @ k.mT) * 0.125
    i, j = pg.indices(s)[-2:]
    return pg.softmax(pg.where(j <= i, s, -np.inf)) @ v


def biased(q, k, v, b):
    return pg.softmax(np.tanh((q @ k.mT) * 0.125) * 30 + b) @ v


def returned(x, a, b):
    h = pg.relu(x @ a)
    return h @ b, h


def layered(x, a, g, u, c, d, e, r):
    h = pg.relu(x @ a + e)
    return pg.relu((pg.silu(h @ g) * (h @ u) + r) @ c) @ d


def beside_odd(x, w, r):
    return pg.gelu(x @ w.T) + r


def of_bytes(x, w, r):
    return beside_odd(x, w, r).astype("e4m3")


def narrow(x, w, g):
    return ((x @ w.T) * g).astype("e4m3")


def product(x, w):
    return x @ w.T


def normed(x, m, s, w):
    return ((x - m) * s) @ w


def halves(x, w):
    return pg.unpack(x, "i4").astype("bf16") @ w


def covariance(x, m):
    return (x - m).T @ (x - m)


def scaled_sums(x, s, w, t):
    rows = pg.repeat(pg.repeat(t, 128, axis=0), 128, axis=1)
    return (x * pg.repeat(s, 64, axis=1)) @ (w * rows).T


def scaled_rows(x, s, w, t):
    return (x * pg.repeat(s, 128, axis=1)) @ (w * pg.repeat(t, 128, axis=1)).T


def scaled_wholly(x, s, w, t):
    return (x * pg.repeat(s, 128, axis=0)) @ (w * pg.repeat(t, 128, axis=1)).T


def shifted_columns(x, g, w):
    return (x + g).T @ w


def of_both(x, w, r):
    return pg.gelu(x * r[:, None]) @ pg.relu(w)


def weights(x, w):
    return x @ pg.relu(w).T


def groups_of_halves(x, q, s):
    return x @ (pg.unpack(q, "i4").astype("bf16") * pg.repeat(s, 128, axis=1)).T


def both(q, k, x, w):
    return q @ k.mT, x @ w.T


def two_outputs(x, w, u):
    return x @ w.T, x @ u.T


def across(x, w):
    return x @ w


def slid(x, w):
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    return pg.einsum("nchwrs,ocrs->nohw", windows, w)


LAYERS = (
    "f16[M,64]", "f16[64,56]", "f16[56,40]", "f16[56,40]", "f16[40,N]", "f16[N,16]", "f16[M,56]",
    "f16[M,40]",
)  # fmt: skip
PAIR, GATED = ("bf16[M,K]", "bf16[N,K]"), ("f16[M,K]", "f16[N,K]", "f32[M]", "bf16[N]", "f16[M,N]")
KERNELS = {
    "distances": (distances, PAIR, "sm_90a"),
    "distances by warps": (distances, PAIR, "sm_80"),
    "of columns": (of_columns, ("e4m3[M,K]", "e4m3[N,K]"), "sm_90a"),
    "columns that leave": (leaving, ("bf16[M,K]", "bf16[M,N]"), "sm_90a"),
    "beside": (beside, ("f16[M,K]", "f16[N,K]", "f16[K]"), "sm_80"),
    "gated": (gated, GATED, "sm_80"),
    "folded": (folded, PAIR, "sm_80"),
    "in halves": (in_halves, ("bf16[M,K]", "bf16[80,K]", "f32[M,40]"), "sm_80"),
    "at once": (at_once, (*PAIR, "f32[M]"), "sm_80"),
    "beside results": (
        beside_results,
        ("bf16[B,M,K]", "bf16[B,N,K]", "f16[B,M]", "f32[]"),
        "sm_80",
    ),
    "of everything": (of_everything, (*PAIR, "f32[]"), "sm_90a"),
    "covered": (covered, ("bf16[M,K]", "bf16[256,K]"), "sm_80"),
    "covered in double": (covered, ("f64[M,K]", "f64[64,K]"), "sm_80"),
    "covered by one": (covered, ("bf16[M,K]", "bf16[256,K]"), "sm_90a"),
    "covered by blocks": (covered, ("bf16[M,K]", "bf16[1024,K]"), "sm_90a"),
    "gated panels": (gated, GATED, "sm_90a"),
    "largest": (largest, PAIR, "sm_90a"),
    "staged": (gated, GATED, "sm_80"),
    "attended": (attended, tuple(f"bf16[B,H,{rows},128]" for rows in "STT"), "sm_90a"),
    "attended by warps": (attended, tuple(f"f16[B,H,{rows},64]" for rows in "STT"), "sm_80"),
    "causal": (causal, tuple(f"bf16[B,H,{rows},128]" for rows in "STT"), "sm_90a"),
    "biased": (biased, (*(f"bf16[B,H,{rows},64]" for rows in "STT"), "bf16[S,T]"), "sm_80"),
    "in tf32": (attended, tuple(f"tf32[B,H,{rows},64]" for rows in "STT"), "sm_80"),
    "in f32": (attended, tuple(f"f32[B,H,{rows},64]" for rows in "STT"), "sm_80"),
    "keys in parts": (attended, tuple(f"bf16[B,H,{rows},64]" for rows in "STT"), "sm_90a"),
    "layers": (layered, LAYERS, "sm_80"),
    "returned": (returned, ("bf16[M,24]", "bf16[24,N]", "bf16[N,16]"), "sm_80"),
    "returned by elements": (
        returned,
        [f"f16[{one}]@2" for one in ("M,24", "24,N", "N,16")],
        "sm_80",
    ),
    "realigned": (product, ("bf16[M,K]@2", "bf16[N,K]@2"), "sm_90a"),
    "turned": (across, ("e4m3[M,K]", "e4m3[K,N]"), "sm_90a"),
    "channels first": (slid, ("f16[B,C,7,9]", "f16[16,C,3,3]"), "sm_80"),
    "by lanes": (product, PAIR, "sm_90a"),
    "odd rows": (beside_odd, ("bf16[M,K]@2", "bf16[N,K]@2", "bf16[M,N]@2"), "sm_90a"),
    "rows of bytes": (of_bytes, ("e4m3[M,K]", "e4m3[N,K]", "e4m3[M,N]@4"), "sm_90a"),
    "copied": (product, PAIR, "sm_80"),
    "shared sums": (product, PAIR, "sm_90a"),
    "shared last round": (product, PAIR, "sm_90a"),
    "in clusters": (product, PAIR, "sm_90a"),
    "made": (normed, ("bf16[M,K]", "f32[K]", "f32[M,1]", "bf16[K,N]"), "sm_80"),
    "computed by warps": (normed, ("bf16[M,K]", "f32[K]", "f32[M,1]", "bf16[K,N]"), "sm_80"),
    "made of batches": (normed, ("s8[B,M,K]", "f32[K]", "f32[B,M,1]", "f16[B,K,N]"), "sm_80"),
    "made of halves": (halves, ("u8[M,2962]", "bf16[5924,N]"), "sm_80"),
    "made across": (covariance, ("f32[M,K]", "f32[K]"), "sm_80"),
    "batched": (across, ("bf16[B,H,M,K]", "bf16[B,H,K,N]"), "sm_90a"),
    "two outputs": (two_outputs, (*PAIR, "bf16[L,K]"), "sm_90a"),
    "batches and one": (both, ("bf16[B,M,K]", "bf16[B,N,K]", "bf16[M,K]", "bf16[N,K]"), "sm_90a"),
    "copied with rows that end anywhere": (product, ("bf16[M,K]@4", "bf16[N,K]@4"), "sm_80"),
    "copied across": (across, ("f16[M,K]", "f16[K,N]"), "sm_80"),
    "copied by words": (product, ("bf16[M,K]@2", "bf16[N,K]@2"), "sm_80"),
    "copied by chunks": (product, ("f16[M,K]", "f16[N,K]@2"), "sm_75"),
    "distances in double": (beside, ("f64[M,K]", "f64[N,K]", "f64[K]"), "sm_90a"),
    "folded in double": (at_once, ("f64[M,K]", "f64[N,K]", "f64[M]"), "sm_80"),
    "narrow": (narrow, ("e4m3[M,K]", "e4m3[N,K]", "e4m3[M,N]"), "sm_90a"),
    "scaled sums": (
        scaled_sums,
        ("e4m3[M,256]", "f32[M,4]", "e4m3[256,256]", "f32[2,2]"),
        "sm_90a",
    ),
    "scaled in turns": (
        scaled_sums,
        ("e4m3[M,512]", "f32[M,8]", "e4m3[256,512]", "f32[2,4]"),
        "sm_90a",
    ),
    "scaled rows": (scaled_rows, ("e4m3[M,512]", "f32[M,4]", "e4m3[N,512]", "bf16[N,4]"), "sm_90a"),
    "scaled wholly": (
        scaled_wholly,
        ("e4m3[M,512]", "f32[4]", "e4m3[N,512]", "f32[N,4]"),
        "sm_90a",
    ),
    "scaled by warps": (
        scaled_rows,
        ("e4m3[M,512]", "f32[M,4]", "e4m3[N,512]", "f32[N,4]"),
        "sm_120",
    ),
    "f32 in parts": (across, ("f32[M,K]", "f32[K,N]"), "sm_90a"),
    "filled": (normed, ("bf16[M,K]", "f32[K]", "f32[M,1]", "bf16[K,N]"), "sm_90a"),
    "filled across": (shifted_columns, ("f16[K,M]", "f32[M]", "f16[K,N]"), "sm_90a"),
    "filled of both": (of_both, ("f16[M,K]", "f16[K,N]", "f32[M]"), "sm_90a"),
    "filled in part": (weights, PAIR, "sm_90a"),
    "filled of halves": (groups_of_halves, ("bf16[M,4096]", "u8[N,2048]", "bf16[N,32]"), "sm_90a"),
}
MADE_OF = {"computed": computed, "loaded": loaded, "paired": paired, "scaled": scaled}
MADE_OF |= {name: partial(sample, name) for name in ("held rows", "left layers")}
STREAMED = {
    "columns alone": ("columns", "elements_64x256_w16x256_b4", False),
    "exponentials alone": ("exponentials", "elements_128x64_w32x64_b4", False),
    "rows alone": ("rows", "elements_32x256_w8x256_b4", True),
    "all alone": ("all", "elements_64x256_w16x256_b4", False),
}
PROMOTED = (
    "scaled sums", "scaled in turns", "scaled rows", "scaled wholly", "scaled by warps",
    "f32 in parts",
)  # fmt: skip
FOLDED = ("folded", "beside results", "of everything")
FOLLOWING = ("combine_parts", "give_folds", "take_folds", "finish_folds", "store_results")
# Kernel, and which of its leaves.
CASES = [
    ("distances", "share"), ("distances by warps", "share"), ("of columns", "share"),
    ("beside", "share"), ("distances in double", "share"), ("computed", "make"),
    ("columns that leave", "share"), ("columns that leave", "leave"),
    ("loaded", "make"), ("gated", "edge"),
    ("paired", "make"), ("scaled", "make"),
    ("gated", "store_pairs"), ("folded", "edge"), ("folded", "store_pairs"),
    ("at once", "store_pairs"), ("folded in double", "store_pairs"),
    ("gated panels", "finish"), ("largest", "finish"), ("narrow", "finish"),
    *((name, op) for name in FOLDED for op in FOLLOWING),
    ("folded", "unfold"), ("folded", "fold"), ("of everything", "fold"), ("at once", "fold"),
    ("covered", "give"), ("covered", "take"), ("covered in double", "give"),
    ("covered in double", "take"), ("covered by one", "meet"), ("covered by blocks", "take_sent"),
    ("distances", "finish"), ("attended", "finish"), ("folded", "walk_row"),
    ("folded", "elements"), ("in halves", "elements"), ("held rows", "walk_row"),
    ("held rows", "hold_row"), ("held rows", "over held"), ("held rows", "elements"),
    ("attended by warps", "store_rows_of_states"), ("odd rows", "fetch"), ("odd rows", "store"),
    ("rows of bytes", "fetch"), ("rows of bytes", "store"), ("staged", "store_rows"),
    ("copied", "move"), ("copied with rows that end anywhere", "move"), ("copied across", "move"),
    ("copied by words", "move"), ("copied by chunks", "write_chunks"),
    ("shared sums", "send"), ("shared sums", "combine"), ("shared last round", "send"),
    ("shared last round", "combine"), ("attended by warps", "advance"),
    ("attended by warps", "weigh"), ("causal", "advance"), ("causal", "weigh"),
    ("biased", "advance"), ("biased", "weigh"), ("attended", "rescale"), ("attended", "convert"),
    ("attended", "complete"), ("keys in parts", "store_parts"), ("keys in parts", "merge_keys"),
    ("keys in parts", "finish_keys"), ("realigned", "shift_chunks"), ("turned", "turn_chunks"),
    ("channels first", "turn_chunks"), ("by lanes", "load"),
    ("by lanes", "multiply"), ("by lanes", "store"), ("by lanes", "zero"),
    ("copied by chunks", "multiply"), ("attended by warps", "multiply"),
    ("layers", "weigh"), ("layers", "weigh of both"), ("layers", "convert"), ("layers", "multiply"),
    ("in tf32", "weigh"), ("in tf32", "convert"), ("in f32", "convert"),
    ("returned", "weigh"), ("returned by elements", "weigh"), ("left layers", "weigh"),
    ("left layers", "store_rows_of_states"),
    *((name, "store_streamed") for name in STREAMED),
    *((name, "locate") for name in ("gated panels", "batched", "in clusters", "two outputs")),
    ("batches and one", "locate"),
    ("shared last round", "locate"), ("made", "make_chunks"), ("made of batches", "make_chunks"),
    ("made of halves", "make_chunks"), ("computed by warps", "compute_copy"),
    ("made across", "make_across"),
    *((name, "put") for name in FILLED),
    *((name, "read_scales") for name in PROMOTED[:-1]), *((name, "promote") for name in PROMOTED),
]  # fmt: skip
# Leaves that are not the first ones of what they do.
NAMED = {
    "weigh of both": "weigh_l1",
    "weigh of the last": "weigh",
    "elements": "elements",
    "over held": "walk_1_held",
}
SHORT = (  # texts
    "rescale", "complete", "merge_keys", "finish_keys", "multiply", "zero", "walk_row", "over held",
    "hold_row", "elements", "locate", "unfold", *FOLLOWING,
)  # fmt: skip
EVERY = 12  # of the mutants, one in so many is tried in the fast tests


@cache
def plan(name: str) -> KernelPlan:
    if name in MADE_OF:
        return MADE_OF[name]()
    if name in STREAMED:
        own, stream, rows = STREAMED[name]
        return streamed(own, stream, rows=rows).passes.plan
    function, types, arch = KERNELS[name]
    registers = name in ("gated", "folded", "at once", "in halves")
    schedule = REGISTERS if registers else SHARED.get(name, "auto")
    kernel = pg.fuse(function, name=function.__name__)
    schedule = few_rows(part=128) if name == "keys in parts" else schedule
    sizes = SIZES if types[0].endswith("[M,K]@2") or name == "rows of bytes" else None
    sizes = FEW if name == "by lanes" else sizes
    sizes = {"M": 4096, "K": 512} if name in ("covered by one", "covered by blocks") else sizes
    return kernel.compile(*types, arch=arch, schedule=schedule, sizes=sizes).passes.plan


def leaf_of(name, op):
    of = plan(name)
    every = [one for x in (of, *of.groups, *of.copies) for one in x.leaves]
    if op in NAMED:
        return of, next(one for one in every if one.statement == NAMED[op])
    return of, next(one for one in every if one.op == op and proved(one))


def check(name, op, every, first=0):
    of = tried(*leaf_of(name, op), every, first)
    wrong = [
        one
        for one, same in of.accepted
        if not same and not any(re.search(known, one) for known in (*EQUIVALENT, *UNSEEN))
    ]
    assert not wrong, "accepted, and do something else:\n" + "\n".join(wrong)
    most = of.refused + len(of.accepted) + len(of.undecided)
    assert of.refused > most // 2, f"{of.refused} of {most} are refused"
    assert len(of.undecided) <= max(1, most // 8), of.undecided


@pytest.mark.parametrize(("name", "op"), CASES)
def test_some_mistakes_of_texts_are_refused_or_do_the_same(name, op):
    check(name, op, 1 if op in SHORT else EVERY)


LONG = {("odd rows", "fetch"): 4}  # texts whose mutants are tried in so many parts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "op", "first", "parts"),
    [(*one, n, LONG.get(one, 1)) for one in CASES for n in range(LONG.get(one, 1))],
)
def test_mistakes_of_texts_are_refused_or_do_the_same(name, op, first, parts):
    check(name, op, parts, first)


# What is written, what is written instead, and what the refusal says.
MADE = "is not made of its own numbers"
REGISTER = "of thread 0 is not of the elements that the instruction takes it for: m 0, step 0"
PLACES = "terms of v2 are not of their places"
MISTAKES = [
    # An index is dropped, or is another.
    ("gated panels", "finish", "(g_1_at ^ j << 4", "(g_1_at ^ 0 << 4", f"y0[128, 272] {MADE}"),
    ("gated panels", "finish", "[first_block + j]", "[j]", f"y0[128, 320] {MADE}"),
    ("gated", "store_pairs", "b_n * 32", "b_m * 32", "y0[32, 64] is not written, and 782 more"),
    ("distances", "share", "held[e / 2]", "held[0]", f"of_v3[0] {MADE}"),
    ("copied", "move", "column * 2", "column", "16 bytes are written where they do not"),
    ("copied", "move", "k * 64 + column", "k * 64", "ring_a["),
    ("copied by words", "move", "left > 1 ?", "left > 0 ?", "which is outside of x"),
    ("copied by chunks", "write_chunks", ", staged_a[i]", ", staged_a[0]", MADE),
    ("shared sums", "send", "rank * 4096", "d * 4096", "nothing is called d"),
    ("shared sums", "send", "d * 2 + j", "j", MADE),
    ("shared sums", "combine", "? total[m][j][e] + v[e]", "? v[e]", "is not its own sum and part"),
    ("scaled rows", "read_scales", "n % 2 * 8", "n % 2 * 4", "a number of rows is not of its own"),
    ("scaled rows", "read_scales", "k_of_all / 128", "k_of_all / 64", "factors in thread 0"),
    ("scaled rows", "read_scales", ", N - 1)", ", N)", "which is outside of t"),
    ("scaled rows", "promote", "scales_column[j * 2 + 1]", "scales_column[j * 2]",
     "sum[0][0][1] is not of its own numbers"),
    ("f32 in parts", "promote", "if (k < 1)", "if (k < 2)", "is not of its own numbers, at k = 1"),
    ("f32 in parts", "promote", "[m][j][3] + inner", "[m][j][2] + inner", "sum[0][0][3] is not"),
    ("scaled in turns", "promote", "k % 2]", "k % 4]", "an array of 2 is read or"),
    ("filled in part", "put", "if (part * 128 + own < 640) ", "", "are written besides"),
    ("filled in part", "put", "own < 640", "own < 768", "are written besides"),
    ("scaled sums", "read_scales", "min(b_n", "max(b_n", "a number of columns is not of its own"),
    ("scaled sums", "read_scales", "k_of_all / 128", "k_of_all / 256", "a number of columns is"),
    ("made", "make_chunks", "2, left)", "2, left / 2 * 2)", f"the operand[504, 640] {MADE}"),
    ("computed by warps", "compute_copy", "2, left)", "2, left / 2 * 2)", MADE),
    ("batched", "locate", "matrix % H", "matrix % B", "z1 of item"),
    # A condition is left out, or is another.
    ("gated", "store_pairs", "if (count > 0) ", "", "outside of the results is finished"),
    ("gated panels", "finish", "min(first_row + 8, M - 1)", "first_row + 8", "outside of r:"),
    ("loaded", "make", "step_k + e / 4 % 2 * 8 < K", "all", "nothing is called all here"),
    ("loaded", "make", "* 8 < K ?", "* 8 < 2 * K ?", "is not of the elements that"),
    ("loaded", "make", "step_k + e / 4 % 2 * 8 < K", "step_k < K", "is not of the elements that"),
    ("scaled", "make", "column < K", "column <= K", "which is outside of g"),
    ("scaled", "make", "column < K", "column < (K + 15) / 16 * 16", "which is outside of g"),
    ("scaled", "make", "read_inside<4>", "read_inside<8>", "which is outside of g"),
    ("scaled", "make", "read_inside<4>", "read_inside<5>", "5 bytes are read at once"),
    ("scaled", "make", "read_inside<4>", "read_inside<1>", "which are no whole elements"),
    ("scaled", "make", "column < K", "column + 8 < K", "is not of the elements that"),
    ("scaled", "make", "column < K", "column < 2 * K", "which is outside of g"),
    ("scaled", "make", "column < K", "1", "which is outside of g"),
    # A tile's last keys, a mask, a reference, a part of the keys.
    ("attended", "advance", ">= keys", "> keys", "w5 of row"),
    ("causal", "advance", "if (whole && ", "if (whole || ", "is not made of its own numbers"),
    ("causal", "advance", "+ 127 <= b_m", "+ 63 <= b_m", "the score of row"),
    ("attended", "advance", "combine_max(now[row][0], before);", "", "w5 of row"),
    ("attended", "advance", "now[row][0], 2)", "now[row][0], 4)", "w5 of row"),
    ("attended", "advance", "before == __int_as_float(0xff800000) ? 0.0f", "false ? 0.0f",
     "nothing is called false here"),
    ("attended", "weigh", "w7_out = 0.0f; ", "", "the score of row"),
    ("attended", "weigh", " * correction[m][row]", "", "v5 of row"),
    ("attended", "weigh", ", reference[0],", ", reference[1],", "the score of row"),
    ("attended", "rescale", "correction[m][1] == 1.0f", "correction[m][0] == 1.0f",
     "is not for its row's reference"),
    ("attended", "rescale", "[2] *= correction[m][1]", "[2] *= correction[m][0]",
     "register 2 of sum in thread 0 is not for its row's reference"),
    ("attended", "convert", "s * 2 + 1", "s * 2", "weights[0][0][2] is not of the scores"),
    ("in tf32", "convert", "scores[m][s][1]", "scores[m][s][0]",
     "weights[0][0][2] is not of the scores"),
    ("in f32", "convert", "weights[m][s][4]);", "weights[m][s][5]);",
     "weights[0][0][4] is not of the scores"),
    ("in tf32", "convert", "round_to_tf32(__float_as_uint(scores[m][s][3]))",
     "__float_as_uint(scores[m][s][3])", "weights[0][0][3] is not of the scores"),
    ("layers", "weigh", ">= keys", "> keys", "the score of row"),
    ("layers", "weigh", "scores_l0[m][n][2]", "scores_l0[m][n][0]", "the score of row"),
    ("layers", "weigh of both", "scores_l1_2[m][n][1]", "scores_l1[m][n][1]", "the score of row"),
    ("returned", "weigh", "if (first_row < rows) ", "", "are written besides"),
    ("returned", "weigh", "y1_pair[1] = y1_out", "y1_pair[0] = y1_out", MADE),
    ("returned", "weigh", "y1_second + n * 8, ", "y1_first + n * 8, ", "is not written"),
    ("returned by elements", "weigh", "+ 1 < keys", "< keys", "are written besides"),
    ("left layers", "store_rows_of_states", "scores_l0[m][n][1]", "scores[m][n][1]",
     MADE),
    ("layers", "convert", "scores_l0[m][s * 2 + 1]", "scores_l0[m][s * 2]",
     "weights_l0[0][0][2] is not of the scores"),
    ("attended", "complete", "v5[m][row], 2)", "v5[m][row], 8)", "v5 of row"),
    ("biased", "advance", "fmaxf(sizes[1], fabsf(scores[m][n][1]))", "sizes[1]",
     "short polynomials are not taken where all scores are small"),
    ("in halves", "elements", "+ 40)", "+ 41)", "y0[0] is not written, and 0 more"),
    ("in halves", "elements", "y0_1_result = ", "y0_result = ", f"y0[0] {MADE}"),
    ("in halves", "elements", "to_f32(y0_result)", "to_f32(y0_1_result)", f"y0[0] {MADE}"),
    ("folded", "walk_row", "rounded(", "(", "is not of the terms of each lane's own elements"),
    ("keys in parts", "store_parts", "part * fold_rows + ", "", "is not written"),
    ("keys in parts", "merge_keys", "before == __int", "0.0f == __int", "what a part is worth"),
    ("keys in parts", "finish_keys", "fold_e + lane", "fold_e", "is not written, and"),
    ("realigned", "shift_chunks", "0 < g && ", "", "a chunk is read that is not whole in its row"),
    ("realigned", "shift_chunks", "(shift) & 4", "(shift) & 8", MADE),
    ("turned", "turn_chunks", "column * w_stride0", "column", "which is outside of w"),
    ("turned", "turn_chunks", "e % 4 * 8", "e % 2 * 8", MADE),
    ("turned", "turn_chunks", "column < K", "column <= K", "which is outside of w"),
    ("turned", "turn_chunks", "&& lane < realign_rows", "", "are written besides"),
    ("channels first", "turn_chunks", "z1 * x_stride0", "z0 * x_stride0", MADE),
    ("by lanes", "load", "lane * 8 < K", "lane * 8 <= K", "which is outside of x"),
    ("by lanes", "store", "if (lane == n) ", "", MADE),
    # Parts of folds, and what warps give each other.
    ("folded", "begin_folds", "0xff800000", "0x00000000", "fold_v1_part0 begins with what is not"),
    ("folded", "unfold", "0xff800000", "0x00000000", "v1_part0 begins with what is not nothing"),
    ("folded", "combine_parts", "min(fold_own, fold_parts_0 - 1)", "fold_own", "is no part of it"),
    ("folded", "combine_parts", "kept_end + ", "", "what is read for fold_v1_part0 is no part"),
    ("folded", "combine_parts", "if (fold_own < fold_parts_0) ", "", "is not of the lane's own"),
    ("beside results", "combine_parts", "min(fold_result, fold_results - 1)", "fold_result",
     "fold_v1_part0 is not of the lane's own part, in thread 27."),
    ("beside results", "give_folds", "[16][32]", "[32][16]", "an array of 16 is read or written"),
    ("beside results", "give_folds", "[16]", "[15]", "an array of 15 is read or written behind"),
    ("beside results", "take_folds", "[fold_w][lane]);", "[0][lane]);", "of what all warps have"),
    ("beside results", "finish_folds", "from_f16(", "from_bf16(", "y0_result is not of its own"),
    ("beside results", "finish_folds", "fold_there / M", "fold_there / B", "is outside of b"),
    ("beside results", "store_results", "fold_result < fold_results", "fold_result > 0",
     "5 elements are written besides"),
    ("of everything", "fold", "fold_0, 16));", "fold_0, 8));", "v2_part0[0] is not made of"),
    ("of everything", "fold", "(lane % 4) + 1", "(lane % 4)", "is not written, and"),
    ("of everything", "fold", "if ((lane & 31) == 0) ", "",
     "v2_part0[0] is written more than once"),
    ("covered", "give", "(lane / 4) + 8", "(lane / 4)", "v1[8] is not written, and"),
    ("covered", "take", "(rows_3 ", "(rows_2 ", "v1_known is not of all that lanes"),
    ("covered by blocks", "take_sent", "(rows_1 ", "(rows_0 ", "is not of all that lanes have"),
    # What combines terms, and what they are held in.
    ("folded", "combine_parts", "combine_max", "combine_min", "terms of max are combined by"),
    ("folded", "give_folds", "combine_max(", "combine_sum(", "are combined by combine_sum"),
    ("folded", "take_folds", "combine_max", "combine_min", "are combined by combine_min"),
    ("covered", "give", "combine_max", "combine_min", "are combined by combine_min"),
    ("covered", "take", "combine_max", "combine_sum", "are combined by combine_sum"),
    ("of everything", "fold", "combine_argmax", "combine_argmin", "sum, argmax are combined by"),
    ("beside results", "give_folds", "__shared__ float", "__shared__ int", "of __shared__ int"),
    # A conversion is another.
    ("gated", "edge", "from_bf16(__ldg(c", "from_f16(__ldg(c", f"y0[0, 0] {MADE}"),
    ("distances", "share", "__float_as_uint(row_t1)", "row_t1", f"of_v3[0] {MADE}"),
    # Two are exchanged.
    ("gated", "store_pairs", "[n][0], sum[m][n][1]", "[n][1], sum[m][n][0]", f"y0[0, 0] {MADE}"),
    ("loaded", "make", "made[2 * i], made[2 * i + 1]", "made[2 * i + 1], made[2 * i]", REGISTER),
    # Of terms at once: a column, the lane's first column, those that took turns at an edge.
    ("at once", "store_pairs", "n * 8 + 1;", "n * 8 + 2;", PLACES),
    ("at once", "store_pairs", "+ 2 * (lane % 4)))", "))", PLACES),
    ("at once", "store_pairs", "  combine_argmin(v2_part0[m][1][0], v2_part1[m][1][0], "
     "v2_part0[m][1][1], v2_part1[m][1][1]);", "", PLACES),
    ("distances in double", "share", "held[2 * e]", "held[2 * e + 1]", f"of_v2[0] {MADE}"),
    ("distances in double", "share", "own_row) * 8", "own_row) * 4", "is not written, and"),
    ("folded in double", "store_pairs", "n * 8 + 1;", "n * 8 + 2;", PLACES),
    ("folded in double", "store_pairs", "(double)(b_n", "(double)(b_m", PLACES),
]  # fmt: skip


@pytest.mark.parametrize(("name", "op", "written", "instead", "says"), MISTAKES)
def test_a_refusal_says_what_is_wrong_and_where(name, op, written, instead, says):
    of, leaf = leaf_of(name, op)
    texts = (*before(of, leaf), kind_of(leaf).text(of, leaf).code)
    assert any(written in text for text in texts)
    with pytest.raises(VerifyError, match=re.escape(says)) as caught:
        prove(of, leaf, tuple(text.replace(written, instead) for text in texts))
    assert str(caught.value).startswith(f"{of.entry}: the text of {leaf.statement}: ")


def test_elements_that_are_repeated_are_no_halves_of_others(monkeypatch):
    """Both of a pair are one element: a ring that took it for two was once multiplied."""
    made = load_schedule(SHIPPED / "pingpong_64x256x64_s4_e3p2_f4_made.toml")
    types = ("bf16[M,96]", "bf16[N,192]")
    function = pg.fuse(lambda x, w: (np.repeat(x, 2, axis=1) * 7) @ w.T)
    with pytest.raises(ScheduleError, match="brings the elements of one matrix"):
        function.compile(*types, arch="sm_90a", schedule=made)
    monkeypatch.setattr(register_operands, "_in_halves", lambda *_: True)
    with pytest.raises(VerifyError, match="is not of the elements that the instruction takes"):
        function.compile(*types, arch="sm_90a", schedule=made)


def test_a_text_of_another_leaf_is_refused():
    of = plan("gated panels")
    finish, compute = of.leaf("finish"), of.leaf("compute")
    with pytest.raises(VerifyError, match="nothing is called"):
        prove(of, finish, ("y0_words[0][0] = 1;",))
    with pytest.raises(VerifyError, match="is not written, and"):
        prove(of, finish, (";",))
    assert not proved(compute)


TWICE = "const int left = 1; int left = 2;"
OFTEN = "const int left = 1; { int left = 2; } for (int left = 0; left < 1; ++left) {} int i;"


def test_a_name_that_a_text_declares_twice_is_refused():
    with pytest.raises(VerifyError, match="declares left twice in one scope"):
        read(TWICE)
    with pytest.raises(VerifyError, match="declares left twice in one scope"):
        read(f"for (int i = 0; i < 1; ++i) {{ {TWICE} }}")
    assert len(read(OFTEN)) == 4


def test_what_cannot_be_followed_is_emitted_and_says_so(monkeypatch):
    of, leaf = leaf_of("gated", "edge")
    kind = table._TABLE[leaf.op, leaf.unit]
    assert UNPROVED not in kind.text(of, leaf).comment

    def unknown(*_):
        raise UndecidedText("leaves are not written with 'goto' here")

    monkeypatch.setitem(table._PROOFS, (leaf.op, leaf.unit), ((), unknown))
    assert kind.text(of, leaf).comment.endswith(
        "(not proved: leaves are not written with 'goto' here)"
    )
    monkeypatch.setitem(table._PROOFS, (leaf.op, leaf.unit), ((), lambda *_: int("x")))
    assert (
        "(not proved: what this does is not known: invalid literal" in kind.text(of, leaf).comment
    )


def test_texts_of_golden_kernels_are_followed():
    kernels = sorted((Path(__file__).parents[2] / "golden/kernels").glob("*.cu"))
    assert len(kernels) >= 20
    assert not [one.name for one in kernels if f"({UNPROVED}: " in one.read_text()]


# --- reading and running texts -------------------------------------------------------------------
def value(text, threads=4, **names):
    return read_value(text)(State(dict(names), FUNCTIONS, threads))


def left(text, threads=4, **names):
    return run(read(text), names, threads).names


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1 + 2 * 3", 7), ("(1 + 2) * 3", 9), ("7 / 2 % 2 == 1 && 1 < 2", True),
        ("-7 / 2", -3), ("-7 % 4", -3), ("1 << 3 | 1", 9), ("6 & 3 ^ 1", 3), ("~0 & 0xff", 255),
        ("!(2 > 1) ? 5 : 6", 6), ("(unsigned char)(300)", 44), ("(unsigned)(-1) > 5u", True),
        ("(signed char)(200)", -56), ("min(3, 4) + max(3, 4)", 7), ("16ULL * 2", 32),
        ("(int)0xffffffffu", -1), ("__uint_as_float(__float_as_uint(7))", 7),
    ],
)  # fmt: skip
def test_expressions_mean_what_they_mean_in_c(text, wanted):
    assert value(text) == wanted


def test_threads_take_their_own_branches():
    lane = np.arange(4)
    text = """
      int found = 0;
      for (int i = 0; i < 8; ++i) {
        if (i == lane) continue;
        if (i > lane + 3) break;
        found += i;
      }
      if (found > 5) { found = 100; } else if (lane == 0) found = 7;
    """
    own = [sum(i for i in range(8) if i != t and i <= t + 3) for t in range(4)]
    wanted = [100 if one > 5 else 7 if t == 0 else one for t, one in enumerate(own)]
    assert left(text, lane=lane)["found"].tolist() == wanted


def test_names_inside_of_blocks_are_forgotten():
    found = left("int i = 5; for (int i = 0; i < 2; ++i) { int k = i; } { const int i = 9; }")
    assert found["i"] == 5 and "k" not in found


def test_assignments_may_be_of_assignments():
    found = left("int r[2]; int s = 0; r[0] = r[1] = s = 5; r[lane % 2] = {};", lane=np.arange(4))
    assert found["s"] == 5 and found["r"].base.tolist() == [[0, 5, 0, 5], [5, 0, 5, 0]]


def test_what_stands_behind_a_condition_is_computed_where_it_holds():
    seen = []

    def asked(called):
        seen.append(called.state.who().tolist())
        return np.arange(4) % 2 == 0

    text = read("bool both = lane < 3 && asked(lane), one = lane < 3 || asked(lane);")
    found = run(text, {"lane": np.arange(4)}, 4, {"asked": asked}).names
    assert seen == [[True, True, True, False], [False, False, False, True]]
    assert (
        found["both"].tolist() == [True, False, True, False]
        and found["one"].tolist()[:3] == [1] * 3
    )


def test_floats_are_not_the_numbers_of_their_bits():
    found = left("float a = __uint_as_float(7u); unsigned b = __float_as_uint(a); int c = a == b;")
    assert found["b"] == 7 and found["c"] == 0


def test_registers_are_of_each_thread():
    text = "int r[2][2] = {{1, 2}, {3, 4}}; r[lane % 2][1] += 10; int s[3]; (&s[0])[1] = r[1][0];"
    found = left(text, lane=np.arange(4))
    assert found["r"].base.tolist() == [[1] * 4, [12, 2, 12, 2], [3] * 4, [4, 14, 4, 14]]
    assert found["s"].base[1].tolist() == [3] * 4


def test_lanes_exchange_with_who_is_there():
    lane = np.arange(32)
    found = left("int v = __shfl_xor_sync(0xffffffffu, lane, 4);", 32, lane=lane)
    assert found["v"].tolist() == (lane ^ 4).tolist()
    with pytest.raises(VerifyError, match="not all of them have"):
        left("if (lane < 3) { int v = __shfl_xor_sync(0xffffffffu, lane, 4); }", 32, lane=lane)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("goto end;", "leaves are not written"), ("int x = y;", "nothing is called y"),
        ("int r[2]; r[2] = 1;", "an array of 2 is read or written behind its end"),
        ("int r[2][3]; r[0][3] = 1;", "an array of 3 is read or written behind its end"),
        ("x = 1;", "nothing is called x"),
        ("for (int i = 0; i < 2; i += 0) {}", "a loop has no end"), ("int a = $;", "have no '\\$'"),
        ("int r[2]; int x = r - 1;", "what this does is not known"),
        ("5 = 6;", "cannot be written"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused(text, says):
    with pytest.raises(VerifyError, match=says):
        left(text)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("lead", [(1,), (1, 1), (2, 2), (3, 1, 2)], ids=str)
def test_few_matrices_of_known_number_are_right(lead, arch):
    """Texts are run for a matrix that there is."""
    lead = ",".join(map(str, lead))
    shapes = (f"f16[{lead},5,64]", f"f16[{lead},64,72]", f"f16[{lead},5,72]")
    kernel = pg.fuse(lambda x, w, r: pg.relu(x @ w + r), name="few").compile(*shapes, arch=arch)
    assert "finish" in kernel.source
