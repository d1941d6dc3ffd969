"""More matrices than a grid has along z: they are taken in rounds, one behind the other along x."""

from __future__ import annotations

import numpy as np
import pytest

import polygen as pg
from polygen.hardware.device import common_facts
from polygen.lower import launch

LAYERS = 3

BATCHED = {
    "products": (lambda x, y: x @ y, ("f32[B,M,K]", "f32[B,K,N]"), {}),
    "of two axes": (lambda x, y: x @ y, ("f16[B,H,M,K]", "f16[H,K,N]"), {"H": 2}),
    "folded": (lambda x, y: (x @ y).sum(axis=(0, 1)), ("f32[B,M,K]", "f32[B,K,N]"), {}),
    "rows": (lambda x, y: pg.softmax(x @ y), ("bf16[B,M,K]", "bf16[B,K,N]"), {}),
    "one number of each": (lambda x, y: np.trace(x @ y, axis1=1, axis2=2),
                           ("f32[B,M,K]", "f32[B,K,M]"), {}),
    "chains": (lambda x, y: x @ y @ np.swapaxes(x, 1, 2), ("f16[B,M,16]", "f16[B,16,16]"), {}),
    "doubles": (lambda x, y: x @ y, ("f64[B,M,K]", "f64[B,K,N]"), {}),
}  # fmt: skip


@pytest.fixture
def three_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grids with room for three matrices along z."""
    monkeypatch.setattr(launch, "common_facts", lambda: {**common_facts(), "grid_z": LAYERS})


@pytest.mark.parametrize("count", [1, 3, 4, 7])
@pytest.mark.parametrize("name", list(BATCHED))
def test_every_matrix_is_taken_once(three_deep: None, name: str, count: int) -> None:
    made, operands, more = BATCHED[name]
    every = {"B": count, "M": 70, "N": 37, "K": 40, **more}
    sizes = {name: size for name, size in every.items() if name in "".join(operands)}
    kernel = pg.fuse(made, name="f").compile(*operands, arch="sm_80", sizes=sizes, single=True)
    named = {size: sizes[size] for size in kernel.program.sizes}
    x, _, z = kernel.passes.plan.launch.grid(named)
    matrices = count * more.get("H", 1)
    assert z == min(matrices, LAYERS) and x % -(-matrices // LAYERS) == 0
    report = kernel.check(sizes=named)
    assert report.ok, str(report)


def test_of_numbers_that_fit_there_is_one_round(three_deep: None) -> None:
    made = pg.fuse(lambda x, y: x @ y, name="f")
    few, many = (
        made.compile(f"f32[{count},16,16]", f"f32[{count},16,16]", arch="sm_80")
        for count in (LAYERS, LAYERS + 1)
    )
    assert few.passes.plan.launch.layers == 0 and "beside" not in few.source
    plan = many.passes.plan
    assert plan.launch.layers == LAYERS
    assert "every matrix is in one round" in " ".join(map(str, plan.proofs))


def test_more_than_any_grid_has_along_z() -> None:
    count = 65_535 + 6
    kernel = pg.fuse(lambda x, y: x @ y, name="f").compile(
        "f32[B,4,4]", "f32[B,4,4]", arch="sm_80", sizes={"B": count}
    )
    random = np.random.default_rng(0)
    x, y = (random.integers(-4, 5, (count, 4, 4)).astype(np.float32) for _ in range(2))
    np.testing.assert_array_equal(kernel.emulate(x, y), x @ y)
