"""Random chains of products: masks, scores, results beside the values, folds of these, schedules,
orders of rows.

A seed decides everything. Their arrays are views of larger ones, and so are their results.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from padded_arrays import ALIGNED, OTHERS, laid_out, no_results

import polygen as pg
from polygen.frontend.evaluate import reference
from polygen.kernel import Kernel
from polygen.schedule.model import (
    LONGEST,
    MATRIX,
    PAIRS,
    CtaTile,
    Epilogue,
    Pipeline,
    Raster,
    Roles,
    Schedule,
    Tile,
    WarpTile,
)

# Of row i and key j with a shift d and a width w: which keys a row sees.
MASKS: dict[str, Callable[[Any, Any, int, int], Any]] = {
    "causal": lambda i, j, d, w: i + d >= j,
    "window": lambda i, j, d, w: pg.logical_and(i + d >= j, i + d - j < w),
    "behind": lambda i, j, d, w: j >= i + d,
    "prefix": lambda i, j, d, w: pg.logical_or(i + d >= j, j < w),
}
SCORES: tuple[Callable[[Any, Any, Any], Any], ...] = (
    lambda s, i, j: s,
    lambda s, i, j: s,
    lambda s, i, j: pg.tanh(s * 0.5) * 2,
    lambda s, i, j: s + (j - i) * 0.01,
    lambda s, i, j: pg.where(s > 0.5, s, s * 0.5),
)


def _halves(x: Any) -> Any:
    """Halves of heads turned by a right angle."""
    half = x.shape[-1] // 2
    return np.concatenate([-x[..., half:], x[..., :half] * 1], axis=-1)


def _neighbours(x: Any) -> Any:
    return np.stack([-x[..., 1::2], x[..., ::2] * 1], axis=-1).reshape(x.shape)


def _largest(x: Any) -> Any:
    """Elements of which some are twice as large, by a fold of their rows."""
    return pg.where(x < x.max(axis=-1, keepdims=True), x, x * 2)


# Operands that are computed, so that nothing is rounded.
COMPUTED: tuple[Callable[[Any], Any], ...] = (
    lambda x: pg.maximum(x, -1) * 0.5,
    _largest,
    _halves,
    _neighbours,
    lambda x: _halves(_largest(x)),
    lambda x: _neighbours(_largest(x)),
)
# Of results whose last axis is that of columns; with a result of a row used in it, and without.
FOLDS: tuple[Callable[[Any], Any], ...] = (
    lambda y: y.sum(axis=-1),
    lambda y: y.max(axis=-1),
    lambda y: (y * y).sum(),
    lambda y: y.min(axis=(0, 2)),
    lambda y: y - y.max(axis=-1, keepdims=True),
    lambda y: pg.softmax(y),
    lambda y: pg.rms_norm(y),
)
SIZES = (1, 2, 15, 63, 64, 65, 100, 129, 200)


@dataclass(frozen=True, slots=True)
class Chain:
    """One chain.

    Attributes:
        function: of queries, keys and values.
        signature: of these.
        schedule: of its kernel.
        shapes: of the arrays.
        blocks: persistent ones that run at once.
        folds: of the values, which are results as well.
        inside: whether heads are inside rows.
    """

    function: Callable[..., Any]
    signature: tuple[str, ...]
    schedule: Schedule
    shapes: tuple[tuple[int, ...], ...]
    blocks: int
    folds: tuple[Callable[[Any], Any], ...] = ()
    inside: bool = False

    def kernel(self) -> Kernel:
        """The kernel."""
        return pg.fuse(self.function).compile(
            *self.signature, arch=self.schedule.device, schedule=self.schedule
        )


def chain_program(seed: int, arch: str = "sm_90a") -> Chain:
    """The chain of a seed, with roles on sm_90a, and by warps elsewhere."""
    rng = random.Random(f"chains {seed}")
    name, scored = rng.choice(sorted(MASKS)), rng.choice(SCORES)
    mask = MASKS[name]
    # A prefix is no range of keys: rows have all, and no order.
    order = MATRIX if name == "prefix" else rng.choice([MATRIX, LONGEST, PAIRS, PAIRS])
    shift, width = rng.choice([0, 0, 1, -20, 20, 64, 150, -150]), rng.choice([1, 30, 64, 100])
    inside, turned = rng.random() < 0.4, rng.random() < 0.5  # heads inside rows; rows last
    made = _computed(random.Random(f"operands {seed}"))
    others = random.Random(f"folds {seed}")
    folds = tuple(others.sample(FOLDS, others.choice([0, 1, 2])))

    def function(q: Any, k: Any, v: Any) -> Any:
        if inside:
            q, k, v = (one.swapaxes(1, 2) for one in (q, k, v))
        q, k, v = (one(x) for one, x in zip(made, (q, k, v), strict=True))
        s = (q @ k.mT) * 0.125
        i, j = pg.indices(s)[-2:]
        s = pg.where(mask(i, j, shift, width), scored(s, i, j), -np.inf)
        values, logs = pg.softmax(s) @ v, pg.logsumexp(s, axis=-1)
        more = tuple(fold(values) for fold in folds)
        return values.swapaxes(1, 2) if inside else values, logs.mT if turned else logs, *more

    kind, heads, batch = rng.choice(["bf16", "f16"]), rng.randint(1, 3), rng.randint(1, 2)
    rows, keys = rng.choice(SIZES), rng.choice(SIZES)
    depths, dims = (64, 64, rng.choice([32, 64, 128])), []
    for side, depth in zip("STT", depths, strict=True):
        dims.append(("B", side, "H", str(depth)) if inside else ("B", "H", side, str(depth)))
    sizes = {"B": batch, "H": heads}
    shapes = tuple(
        tuple(sizes.get(dim) or (rows if dim == "S" else keys if dim == "T" else int(dim))
              for dim in one)
        for one in dims
    )  # fmt: skip
    consumers, columns = rng.choice([1, 1, 2]), depths[2]
    schedule = Schedule(
        "random_chain",
        "sm_90a",
        tile=Tile(
            CtaTile(64 * consumers, columns, rng.choice([32, 48, 64])), WarpTile(64, columns)
        ),
        pipeline=Pipeline(stages=rng.choice([2, 3]), in_flight=1),
        roles=Roles("pingpong" if consumers > 1 else "cooperative", 24, 232),
        epilogue=Epilogue("registers", prefetch=rng.choice([1, 2])),
        raster=Raster("m", 1, order=order),
    )
    if arch != "sm_90a":
        order = LONGEST if order == PAIRS else order
        schedule = _by_warps(random.Random(f"warps {seed}"), arch, columns, order)
        if folds:  # which are not made of keys in parts
            schedule = replace(schedule, tile=replace(schedule.tile, part=0))
    signature = tuple(f"{kind}[{','.join(one)}]" for one in dims)
    return Chain(function, signature, schedule, shapes, rng.randint(1, 5), folds, inside)


def _computed(rng: random.Random) -> list[Callable[[Any], Any]]:
    """How each of three operands is computed: of half of all chains none is."""
    some = rng.random() < 0.5
    both = rng.choice(COMPUTED)  # products of turned heads mostly have turned keys
    first, second = rng.choice([(both, both), (both, rng.choice(COMPUTED)), (both, _as_it_is)])
    third = rng.choice([_as_it_is, *COMPUTED[:2]])
    return [first, second, third] if some else [_as_it_is] * 3


def _as_it_is(x: Any) -> Any:
    return x


def _by_warps(rng: random.Random, arch: str, columns: int, order: str) -> Schedule:
    """A schedule without roles."""
    warps, rows, keys = rng.randint(1, 4), rng.choice([16, 32]), rng.choice([16, 32, 48])
    rows = rows if columns <= 64 and keys <= 32 else 16  # more of them may spill
    copy_first, fragments, stages = rng.random() < 0.5, rng.choice([1, 2]), rng.choice([2, 3])
    parts = rng.choice([0, 0, 2, 3])
    return Schedule(
        "random_chain",
        arch,
        tile=Tile(CtaTile(warps * rows, columns, keys), WarpTile(rows, columns), parts * keys),
        pipeline=Pipeline(
            stages=stages,
            distance=rng.randint(1, stages - copy_first),
            order=("copy", "mma") if copy_first else ("mma", "copy"),
            fragments=fragments,
            lookahead=rng.randint(0, fragments - 1),
        ),
        epilogue=Epilogue("registers"),
        raster=Raster("m", 1, order=order),
    )


def layer_program(seed: int) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """Layers in a row of a seed, with gates, residuals, folds of results, and results of layers;
    and their signature.

    The first argument has 70 rows; of it and all others so few elements are no zeros that sums are
    small whole numbers.
    """
    rng = random.Random(f"layers {seed}")
    width, last, count = rng.choice([16, 24, 40]), rng.choice([8, 24, 32]), rng.randint(2, 4)
    gated = [at > 0 and rng.random() < 0.3 for at in range(count)]
    # Which layer before, if any, is read again behind each one.
    again = [rng.choice([None, *range(at)]) if at else None for at in range(count)]
    rounded, fold = rng.random() < 0.3, rng.choice((None, *FOLDS[:2], FOLDS[4]))
    more = random.Random(f"results of layers {seed}")
    # What is returned of each layer: what it makes, or sums in front of that; and which one is read
    # behind the last product.
    returned = [more.choice(["", "", "made", "sums"]) for _ in range(count)]
    behind = more.choice([None, *range(count)]) if more.random() < 0.5 else None
    last = width if behind is not None else last

    def function(x: Any, *matrices: Any) -> Any:
        made, left, results = [], list(matrices), []
        for gate, other, leaves in zip(gated, again, returned, strict=True):
            sums = x @ left.pop(0)
            h = pg.relu(sums)
            h = h * (x @ left.pop(0)) if gate else h
            h = h + made[other] if other is not None else h
            made.append(h.astype("bf16") if rounded else h)
            x = made[-1]
            results += [sums if leaves == "sums" else x] if leaves else []
        y = x @ left.pop(0)
        y = y + made[behind] if behind is not None else y
        return (y, *results) if fold is None else (y, fold(y), *results)

    square = [f"bf16[{width},{width}]"] * (count - 1 + sum(gated))
    return function, ("bf16[70,32]", f"bf16[32,{width}]", *square, f"bf16[{width},{last}]")


def run_layers(seed: int, arch: str) -> str:
    """What is wrong with layers on the PTX machine, whose results are exact; "" if nothing is."""
    function, signature = layer_program(seed)
    names = [f"w{n}" for n in range(len(signature))]
    made: dict[str, Any] = {"function": function}
    exec(f"def layers({', '.join(names)}): return function({', '.join(names)})", made)
    kernel, rng = (
        pg.fuse(made["layers"]).compile(*signature, arch=arch),
        np.random.default_rng(seed),
    )
    arrays = []
    for tensor in kernel.program.operands:
        some = rng.random(tensor.dims) < 2.5 / tensor.dims[-2 if arrays else -1]
        arrays.append((rng.integers(-1, 2, tensor.dims) * some).astype(ml_dtypes.bfloat16))
    done = kernel.emulation(*arrays)
    wanted = reference(made["layers"], arrays)
    found = [*map(str, done.report.findings)]
    both = zip(_each(done.results), _each(wanted), strict=True)
    found += [f"result {n}" for n, (a, b) in enumerate(both) if not np.array_equal(a, b)]
    return "\n".join(found[:4])


def _each(results: Any) -> list[np.ndarray]:
    whole = results if isinstance(results, tuple) else (results,)
    return [np.asarray(one).astype(np.float64) for one in whole]


def run_chain(chain: Chain, seed: int) -> str:
    """What is wrong with a run on the PTX machine; "" if nothing is.

    Rows without a key are 0, and their log-sum-exp is -inf. Folds are those of the
    values, which are rounded to 16 bits where they are stored.
    """
    kernel, rng, ways = chain.kernel(), np.random.default_rng(seed), random.Random(seed)
    program, launch = kernel.program, kernel.passes.source.launch
    kind = np.float16 if chain.signature[0].startswith("f16") else ml_dtypes.bfloat16
    arrays = [rng.standard_normal(shape).astype(kind) for shape in chain.shapes]
    named = zip(program.operands, chain.shapes, strict=True)
    sizes = {d: n for t, shape in named for d, n in zip(t.dims, shape, strict=True)}
    views = [
        laid_out(t, one, replace(ways.choice(ALIGNED), swapped=False))
        for t, one in zip(program.operands, arrays, strict=True)
    ]
    out = tuple(
        laid_out(t, no_results(t, sizes), replace(ways.choice((*ALIGNED, *OTHERS)), swapped=False))
        for t in program.outputs
    )
    kernel = kernel.fitting(*views, out=out)
    if launch.persistent:
        whole = kernel._generated
        few = replace(whole.source.launch, persistent=chain.blocks)
        kernel._generated = replace(whole, source=replace(whole.source, launch=few))
    done = kernel.emulation(*views, out=out)
    with np.errstate(all="ignore"):
        wanted, wanted_logs, *_ = reference(chain.function, arrays)
    values, logs, *more = (np.asarray(one).astype(np.float64) for one in done.results)
    seen, known = np.isfinite(wanted_logs), np.isfinite(wanted)
    found = [*map(str, done.report.findings)]
    off = np.abs(logs[seen] - wanted_logs[seen]).max(initial=0)
    most = np.abs(wanted_logs[seen]).max(initial=1)
    if not np.array_equal(np.isneginf(logs), ~seen) or not off <= 1e-4 * most:
        found.append("log-sum-exp")
    if values[~known].any() or not np.abs(values[known] - wanted[known]).max(initial=0) <= 0.03:
        found.append("values")
    own = values.swapaxes(1, 2) if chain.inside else values
    for number, (fold, one) in enumerate(zip(chain.folds, more, strict=True)):
        right = reference(fold, [own])
        if not np.abs(one - right).max() <= 0.01 * max(1.0, np.abs(right).max()):
            found.append(f"fold {number}")
    return "\n".join(found[:4])
