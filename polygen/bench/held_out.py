"""Draws the rows of the suite `held-out` from the sizes of public models.

    python -m polygen.bench.held_out [--seed 20261122] [--each 17] [--out FILE]

1. ``models.toml`` has the layers of models, and how many rows their calls have. A layer and a
   number of rows make a product; its class follows from its size alone (`class_of`).
2. A size that any other suite or any shipped tuned schedule has is drawn again: what was fitted,
   tuned or looked at is no judge.
3. Of each class so many rows are drawn, layers first, so that a model with many sizes counts as
   often as one with few; no two rows of a class have the same size. The operation is drawn too.

The file is committed before anything is measured. Tuning refuses its rows.
"""

from __future__ import annotations

import argparse
import random
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from polygen.bench.operations import FOLDER
from polygen.bench.rows import suite, suite_names
from polygen.hardware.device import devices
from polygen.runtime.files import write_text_atomic
from polygen.schedule.tuned import tuned

MODELS = Path(__file__).parent / "models.toml"
NAME = "held-out"
FILE = FOLDER / "held_out.toml"
SEED, EACH = 20261122, 17
CLASSES = ("small K", "large", "odd", "few rows")
OPERATIONS = (
    "mm", "mm_nn", "bias", "bias_relu", "bias_gelu", "residual", "bias_residual_relu", "silu_mul",
    "bias_silu_mul",
)  # fmt: skip

_FEW_ROWS = 128
_SMALL_K = 512
_ALIGNED = 8  # elements of 16 bytes
_SHORT_RESULT = 1024  # rows or columns of a large product, at least
_LARGEST = 1 << 31  # bytes of one matrix: what measures holds several, in float64 too


@dataclass(frozen=True, slots=True)
class Size:
    """One product of one model."""

    model: str
    layer: str
    m: int
    n: int
    k: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """M, N, K."""
        return self.m, self.n, self.k


def class_of(size: Size) -> str | None:
    """The class of a product, the first that fits in the order of the goals; None: no class.

    Few rows are at most 128. Odd ones have operands or results whose rows are no multiples of 16
    bytes. Small K is at most 512. Large ones have at least 1024 rows and columns.
    """
    if size.m <= _FEW_ROWS:
        return "few rows"
    if size.n % _ALIGNED or size.k % _ALIGNED:
        return "odd"
    if size.k <= _SMALL_K:
        return "small K"
    if min(size.m, size.n) >= _SHORT_RESULT:
        return "large"
    return None


def sizes() -> Iterator[Size]:
    """Every product of every model that fits a device."""
    found = tomllib.loads(MODELS.read_text(encoding="utf-8"))
    for name, model in found["model"].items():
        for layer, (n, k) in model["layers"].items():
            for m in (*model["rows"], *found["decoding"]["rows"]):
                if 8 * max(m * n, m * k, n * k) <= _LARGEST:
                    yield Size(name, layer, m, n, k)


def known() -> set[tuple[int, int, int]]:
    """Sizes that other suites or shipped tuned schedules have."""
    found = {(r.m, r.n, r.k) for name in suite_names() if name != NAME for r in suite(name).rows}
    return found | {(p.m, p.n, p.k) for device in devices() for p in tuned(device)}


def drawn(seed: int, each: int) -> dict[str, list[tuple[Size, str]]]:
    """Rows by class, each a size and the name of an operation.

    Args:
        seed: of the draw.
        each: rows of a class.
    """
    chance, seen = random.Random(seed), known()
    layers: dict[str, dict[tuple[str, str], list[Size]]] = {name: {} for name in CLASSES}
    for size in sizes():
        kind = class_of(size)
        if kind is not None:
            layers[kind].setdefault((size.model, size.layer), []).append(size)
    found: dict[str, list[tuple[Size, str]]] = {}
    for kind in CLASSES:
        taken: dict[tuple[int, int, int], tuple[Size, str]] = {}
        while len(taken) < each:
            model = chance.choice(sorted({model for model, _ in layers[kind]}))
            layer = chance.choice(sorted(key for key in layers[kind] if key[0] == model))
            size = chance.choice(layers[kind][layer])
            if size.shape in seen:
                continue
            taken.setdefault(size.shape, (size, chance.choice(OPERATIONS)))
        found[kind] = list(taken.values())
    return found


def text(seed: int, each: int) -> str:
    """The suite as TOML, classes by turns, so that a run that ends early has met them all."""
    rows = drawn(seed, each)
    lines = [
        f"# {len(CLASSES) * each} rows drawn by `python -m polygen.bench.held_out --seed {seed} "
        f"--each {each}`",
        "# from the sizes of polygen/bench/models.toml, before any of them was measured.",
        "# They judge what ships: nothing is fitted to them, and tuning refuses them.",
        'title = "Held out: products of public models that nothing was fitted to"',
        "held_out = true",
    ]
    for turn in range(each):
        for kind in CLASSES:
            size, op = rows[kind][turn]
            lines += [
                "", "[[group]]", f'of = "{kind}: {size.model}, {size.layer}"', f'ops = ["{op}"]',
                f"shapes = [[{size.m}, {size.n}, {size.k}]]",
            ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Run the command; 0 when the file is written."""
    parser = argparse.ArgumentParser(prog="python -m polygen.bench.held_out", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seed", type=int, default=SEED, help=f"default: {SEED}")
    parser.add_argument("--each", type=int, default=EACH, help="rows of a class")
    parser.add_argument("--out", type=Path, default=FILE, help="the suite")
    options = parser.parse_args(arguments)
    write_text_atomic(options.out, text(options.seed, options.each))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
