"""How ranks may share a program, and which statement waits for a sum: decided by dependences."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import polygen as pg
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Program
from polygen.parallel.cuts import PART, WHOLE, Cut, cuts

X, W = "bf16[M,K]", "bf16[N,K]"


def program(function, *signature: str) -> Program:
    return pg.fuse(function).program(*signature)


def of(found: Program) -> dict[str, Cut]:
    return {cut.dim: cut for cut in cuts(found)}


CASES = {
    "a product": (lambda x, w: x @ w.T, (X, W), ""),
    "a factor": (lambda x, w, r: 2.0 * (x @ w.T) * r, (X, W, "bf16[M,N]"), ""),
    "products of one sum": (lambda x, u, v: -(x @ u.T) - x @ v.T, (X, W, W), ""),
    "a bias": (lambda x, w, b: x @ w.T + b, (X, W, "bf16[N]"), "add(v0[i,j], b[j])"),
    "a residual": (lambda x, w, r: r - x @ w.T, (X, W, "bf16[M,N]"), "sub(r[i,j], v0[i,j])"),
    "a bias and a residual": (
        lambda x, w, b, r: x @ w.T + b - r,
        (X, W, "bf16[N]", "bf16[M,N]"),
        "add(v0[i,j], b[j])",
    ),
    "an activation": (lambda x, w: pg.relu(x @ w.T), (X, W), "maximum(v0[i,j], 0.0)"),
    "two sums multiplied": (lambda x, u, v: (x @ u.T) * (x @ v.T), (X, W, W), "mul(v0"),
    "the sum twice": (lambda x, w, r: (x @ w.T + r) + x @ w.T, (X, W, "bf16[M,N]"), "add(v0"),
    "the sum turned": (lambda x, w, r: (x @ w.T).T + r, (X, W, "bf16[N,M]"), "add("),
    "the sum of a row": (
        lambda x, w, r: (x @ w.T).sum(1)[:, None] + r,
        (X, W, "bf16[M,N]"),
        "add(",
    ),
    "a row's largest": (lambda x, w: pg.softmax(x @ w.T, axis=-1), (X, W), "max over j"),
}
ADDED_ONCE = {"a bias", "a bias and a residual"}  # "a residual" takes the sum away from it


def gathered(found: Program, cut: Cut, ranks: int, values: dict[str, np.ndarray]) -> list:
    """The results of ranks that share a program, put together."""
    sizes = dict.fromkeys(found.sizes, 6)
    shards = []
    for rank in range(ranks):
        own = {
            t.name: np.split(values[t.name], ranks, state)[rank] if isinstance(state, int)
            else values[t.name] for t, state in zip(found.inputs, cut.inputs, strict=True)
        }  # fmt: skip
        local = sizes | {cut.dim: 6 // ranks}
        head = {t.name: own[t.name] for t in cut.head.inputs}
        shards.append((own, local, evaluate(cut.head, head, local, round_outputs=False)))
    if cut.tail is not None:
        sums = [sum(parts) for parts in zip(*(made for _, _, made in shards), strict=True)]
        own, local, _ = shards[0]
        named = dict(zip((t.name for t in cut.tail.inputs), sums, strict=False))
        rest = {t.name: own[t.name] for t in cut.tail.inputs if t.name not in named}
        return list(evaluate(cut.tail, named | rest, local, round_outputs=False))
    results = []
    for state, *parts in zip(cut.outputs, *(made for _, _, made in shards), strict=True):
        if isinstance(state, int):
            results.append(np.concatenate(parts, state))
        else:
            results.append(sum(parts) if state == PART else parts[0])
    return results


@pytest.mark.parametrize("name", CASES)
def test_ranks_that_share_a_program_compute_it(name):
    function, signature, waits = CASES[name]
    found = program(function, *signature)
    by_dim = of(found)
    assert {"M", "K"} <= set(by_dim)
    assert waits in by_dim["K"].waits and bool(waits) == bool(by_dim["K"].waits)
    assert (by_dim["K"].tail is None) == (not waits)
    made = np.random.default_rng(0)
    values = {t.name: made.integers(-3, 4, (6,) * len(t.dims)) * 1.0 for t in found.inputs}
    wanted = evaluate(found, values, dict.fromkeys(found.sizes, 6), round_outputs=False)
    for cut, ranks in itertools.product(by_dim.values(), (2, 3)):
        for one, other in zip(gathered(found, cut, ranks, values), wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)


def test_placements_of_column_and_row_parallel_layers():
    by_dim = of(program(lambda x, w, b: pg.gelu(x @ w.T + b), X, W, "bf16[N]"))
    assert (by_dim["N"].inputs, by_dim["N"].outputs) == ((WHOLE, 0, 0), (1,))
    assert (by_dim["K"].inputs, by_dim["K"].outputs) == ((1, 1, WHOLE), (WHOLE,))
    assert by_dim["K"].waits == "v1[i,j] = add(v0[i,j], b[j]) reads the sum v0"
    assert [t.name for t in by_dim["K"].tail.inputs] == ["v0", "b"]


def test_dims_that_cannot_be_shared():
    """Slices, coordinates, extents, folds that are no sums, and fixed extents have no cut."""
    sliced = program(lambda x, w: x[:, ::2] @ w.T, "bf16[M,8]", "bf16[N,4]")
    assert set(of(sliced)) == {"M", "N"}

    def masked(x, w):
        y = x @ w.T
        i, j = pg.indices(y)
        return pg.where(j <= i, y, 0.0)

    assert set(of(program(masked, X, W))) == {"K"}
    soft = program(lambda x, w: pg.softmax(x @ w.T, axis=-1), X, W)
    assert set(of(soft)) == {"M", "K"}
    mean = program(lambda x, w: pg.mean(x @ w.T, axis=-1), X, W)
    assert set(of(mean)) == {"M", "K"}
    square = program(lambda x, w: x @ w.T, "bf16[M,K]", "bf16[M,K]")
    assert set(of(square)) == {"K"}  # rows and columns are M, and neither is M / 2 alone
    both = program(lambda x, w: (x @ w.T, pg.relu(x @ w.T)), X, W)
    assert set(of(both)) == {"M", "N"}


@pytest.mark.parametrize("name", CASES)
def test_what_only_adds_to_a_sum_may_be_added_by_one_rank(name):
    function, signature, _ = CASES[name]
    found = program(function, *signature)
    cut = of(found)["K"]
    assert cut.once == (name in ADDED_ONCE)
    if not cut.once:
        return
    made = np.random.default_rng(0)
    values = {t.name: made.integers(-3, 4, (6,) * len(t.dims)) * 1.0 for t in found.inputs}
    (wanted,) = evaluate(found, values, dict.fromkeys(found.sizes, 6), round_outputs=False)
    for ranks, adding in ((2, 0), (3, 1)):
        total = 0.0
        for rank in range(ranks):
            own = {
                t.name: np.split(values[t.name], ranks, state)[rank] if isinstance(state, int)
                else values[t.name] for t, state in zip(found.inputs, cut.inputs, strict=True)
            }  # fmt: skip
            computed = found if rank == adding else cut.head
            given = {t.name: own[t.name] for t in computed.inputs}
            sizes = dict.fromkeys(found.sizes, 6) | {cut.dim: 6 // ranks}
            total = total + evaluate(computed, given, sizes, round_outputs=False)[0]
        np.testing.assert_allclose(total, wanted, rtol=1e-12)
