"""Layers that are returned, or read behind the last product, on the PTX machine: exact.

Operands are few and small enough that every sum and what is made of it is a whole number that the
operands' type holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from chain_samples import by_warps, few_rows
from generated import edited
from machine.conftest import ptx_of
from machine.test_machine_layers import arrays_for, same, widths

import polygen as pg
from polygen.emulated import emulate
from polygen.frontend.evaluate import evaluate


def hidden(x, a, b):
    """What training keeps of a perceptron."""
    s = x @ a
    h = pg.relu(s)
    return h @ b, h, s


def biased(x, a, b, c):
    s = x @ a + c
    return pg.relu(s) @ b, s


def residual(x, a, b):
    h = pg.relu(x @ a)
    return h @ b + h


def plain(x, a, b):
    """Sums that are returned, and multiplied themselves."""
    h = x @ a
    return h @ b, h


def scaled(x, a, b):
    h = pg.relu(x @ a).astype(a.dtype)
    return (h @ b) * h, h


def gates(x, a, b, c):
    """Of two products of the same rows both sums leave, and what is made of them."""
    g, u = x @ a, x @ b
    h = pg.relu(g) * u
    return (h @ c) * 2.0 - h, h, g, u


def deep(x, a, b, c, d):
    h = pg.relu(x @ a)
    s = h @ b
    g = pg.relu(s) + h
    return pg.relu(g @ c) @ d + g * h, h, s, g


def folded(x, a, b, c):
    """Rows that use a fold of their own, over what a layer has left as well."""
    h = pg.relu(x @ a)
    y = pg.relu(h @ b) @ c + h
    return y - y.max(axis=-1, keepdims=True), y.max(), h


def turned(x, a, b):
    h = pg.relu(x @ a)
    return h @ b, h.reshape(-1, 4, h.shape[-1] // 4), h.astype("f32")


def square(kind: str, width: int, count: int) -> tuple[str, ...]:
    return widths(kind, *[width] * (count + 1))


CASES: dict[str, tuple[Callable, tuple[str, ...], str]] = {
    "hidden": (hidden, widths("bf16", 32, 48, 16), "sm_80"),
    "hidden, f16": (hidden, widths("f16", 24, 40, 8), "sm_80"),
    "hidden, tf32": (hidden, widths("tf32", 24, 40, 8), "sm_80"),
    "hidden, f32": (hidden, widths("f32", 16, 24, 8), "sm_90a"),
    "hidden, odd rows": (hidden, widths("bf16", 27, 25, 5), "sm_80"),
    "hidden, with roles": (hidden, widths("bf16", 32, 200, 64), "sm_90a"),
    "hidden, f16 with roles": (hidden, widths("f16", 64, 64, 16), "sm_90a"),
    "plain": (plain, widths("bf16", 32, 48, 16), "sm_80"),
    "plain, tf32": (plain, widths("tf32", 24, 40, 8), "sm_80"),
    "plain, tf32 on another": (plain, widths("tf32", 24, 40, 8), "sm_90a"),
    "biased": (biased, (*widths("bf16", 32, 48, 16), "f32[48]"), "sm_80"),
    "biased, with roles": (biased, (*widths("bf16", 32, 72, 16), "f32[72]"), "sm_90a"),
    "residual": (residual, square("bf16", 32, 2), "sm_80"),
    "residual, wide": (residual, square("bf16", 128, 2), "sm_80"),
    "residual, no multiple": (residual, square("f16", 40, 2), "sm_80"),
    "residual, tf32": (residual, square("tf32", 24, 2), "sm_80"),
    "residual, f32": (residual, square("f32", 24, 2), "sm_80"),
    "residual, with roles": (residual, square("bf16", 64, 2), "sm_90a"),
    "residual, wide with roles": (residual, square("f16", 128, 2), "sm_90a"),
    "scaled": (scaled, square("bf16", 48, 2), "sm_80"),
    "scaled, with roles": (scaled, square("f16", 48, 2), "sm_90a"),
    "gates": (gates, square("bf16", 32, 3), "sm_80"),
    "gates, tf32": (gates, square("tf32", 24, 3), "sm_90a"),
    "deep": (deep, square("bf16", 32, 4), "sm_80"),
    "deep, f16": (deep, square("f16", 40, 4), "sm_90a"),
    "deep, f32": (deep, square("f32", 16, 4), "sm_80"),
    "folded": (folded, square("bf16", 32, 3), "sm_80"),
    "turned": (turned, widths("bf16", 32, 48, 16), "sm_80"),
    "turned, with roles": (turned, widths("bf16", 32, 64, 16), "sm_90a"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_layers_make_leaves_and_is_read_behind_all(name: str) -> None:
    function, signature, arch = CASES[name]
    width = int(signature[1].rstrip("]").split(",")[1])
    kernel = pg.fuse(function).compile(*signature, arch=arch)
    assert kernel.passes.plan.schedule.specialised == ("roles" in name)
    same(kernel, arrays_for(signature, {"M": 75}, min(0.3, 3 / width)))


def test_layers_that_share_a_ring_are_returned() -> None:
    def function(x, a, b, c, d, e, f):
        made = []
        for one in (a, b, c, d, e):
            x = pg.relu(x @ one)
            made.append(x)
        return x @ f, *made

    signature = (*square("bf16", 96, 5), "bf16[96,16]")
    kernel = pg.fuse(function).compile(*signature, arch="sm_86")
    same(kernel, arrays_for(signature, {"M": 70}, 0.05))


def test_matrices_of_their_own_in_every_batch() -> None:
    def function(x, a, b):
        h = pg.relu(x @ a)
        return h @ b + h, h

    signature = ("bf16[B,M,32]", "bf16[B,32,32]", "bf16[32,32]")
    kernel = pg.fuse(function).compile(*signature, arch="sm_80")
    same(kernel, arrays_for(signature, {"B": 2, "M": 70}, 0.1))


@pytest.mark.parametrize("keys", [3, 64, 200])
def test_a_width_of_any_number_is_returned(keys: int) -> None:
    signature = ("bf16[M,32]", "bf16[32,N]", "bf16[N,16]")
    arrays = arrays_for(signature, {"M": 70, "N": keys}, 0.1)
    same(pg.fuse(hidden).compile(*signature, arch="sm_80"), arrays)


@pytest.mark.parametrize(
    ("arch", "schedule"),
    [
        ("sm_80", by_warps(2, 16, 32, columns=16, part=64)),
        ("sm_90a", few_rows(part=64, columns=16)),
        ("sm_80", by_warps(1, 32, 16, columns=16, fragments=1, lookahead=0)),
    ],
    ids=["parts by warps", "parts with roles", "one warp"],
)
def test_every_part_of_a_layer_leaves_its_own(arch: str, schedule) -> None:
    signature = widths("f16", 64, 200, 16)
    kernel = pg.fuse(hidden).compile(*signature, arch=arch, schedule=schedule)
    same(kernel, arrays_for(signature, {"M": 40}, 0.1))


def test_scores_are_returned_beside_their_softmax() -> None:
    """Masked ones too: what is returned has all keys."""

    def function(q, k, v):
        s = (q @ k.mT) * 0.5
        i, j = pg.indices(s)[-2:]
        s = pg.where(j <= i, s, -np.inf)
        return pg.softmax(s) @ v, s

    signature = ("bf16[S,64]", "bf16[T,64]", "bf16[T,64]")
    arrays = arrays_for(signature, {"S": 75, "T": 140}, 0.1)
    for arch in ("sm_80", "sm_90a"):
        kernel = pg.fuse(function).compile(*signature, arch=arch)
        done = kernel.emulation(*arrays)
        named = dict(zip((t.name for t in kernel.program.inputs), arrays, strict=True))
        values, scores = evaluate(kernel.program, named)
        assert done.report.findings == ()
        assert np.array_equal(done.results[1].astype(np.float64), scores)
        assert np.abs(done.results[0].astype(np.float64) - values).max() <= 2**-6


# --- mistakes forced into the text ----------------------------------------------------------------
BROKEN = {
    "rows behind the last one": [("if (first_row < rows) {", "if (true) {")],
    "another row": [("y1_second + n * 8", "y1_first + n * 8")],
    "a pair of one": [("y1_pair[1] = y1_out", "y1_pair[1] = y1_pair[0]")],
    "what is multiplied in the place of sums": [("y2_pair[0] = y2_out", "y2_pair[0] = y1_out")],
    "other sums behind": [("= { scores[m][n][0], scores[m][n][1] }",
                           "= { scores[m][n][1], scores[m][n][0] }")],
}  # fmt: skip


def _of_two(x, a, b):
    s = x @ a
    h = pg.relu(s)
    return h @ b + h, h, s


@pytest.mark.parametrize("name", ["nothing", *BROKEN])
def test_mistakes_are_found(name: str) -> None:
    signature = square("bf16", 32, 2)
    kernel = pg.fuse(_of_two).compile(*signature, arch="sm_80")
    source = kernel.passes.source
    edits = [edit for edit in BROKEN.get(name, []) if edit[0] in source.text]
    assert len(edits) == len(BROKEN.get(name, []))
    changed = replace(source, text=edited(source.text, edits))
    arrays = arrays_for(signature, {"M": 69}, 0.1)
    done = emulate(kernel.program, changed, ptx_of(changed), arrays)
    named = dict(zip((t.name for t in kernel.program.inputs), arrays, strict=True))
    wanted = evaluate(kernel.program, named)
    right = all(
        np.array_equal(one.astype(np.float64), other)
        for one, other in zip(done.results, wanted, strict=True)
    )
    assert (right and not done.report.findings) == (name == "nothing")
