"""Attention kernels on a GPU, beside float64 and beside PyTorch where it is there."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from chain_samples import by_warps, few_rows

import polygen as pg
from polygen.frontend.evaluate import reference
from polygen.hardware.device import device
from polygen.schedule.model import ORDERS, Epilogue, Raster

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")
bf16 = ml_dtypes.bfloat16


def _arch() -> str:
    capability = cupy.cuda.Device().compute_capability
    if capability != "90":
        pytest.skip("chains run on warpgroup instructions")
    return device("sm_90a").name


def _given(seed: int, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(bf16) for shape in shapes]


def _on_gpu(array: np.ndarray):
    """The array on the device; bf16 as the words that hold it."""
    torch = pytest.importorskip("torch")
    if array.dtype == bf16:
        return torch.from_numpy(array.view(np.int16)).cuda().view(torch.bfloat16)
    return torch.from_numpy(array).cuda()


def _of_warps() -> str:
    """A target of this GPU on which warps do everything."""
    capability = cupy.cuda.Device().compute_capability
    if int(capability) < 80:
        pytest.skip("chains begin with sm_80")
    return device(f"sm_{capability}").name


def _run(function, signature, arrays, tolerance=0.02, arch="", **options):
    kernel = pg.fuse(function).compile(*signature, arch=arch or _arch(), **options)
    found = kernel(*map(_on_gpu, arrays))
    found = found if isinstance(found, tuple) else (found,)
    with np.errstate(all="ignore"):
        wanted = reference(function, arrays)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for one, other in zip(found, wanted, strict=True):
        values, known = one.double().cpu().numpy(), np.isfinite(other)
        assert np.abs(values - other)[known].max() <= tolerance * max(1, np.abs(other[known]).max())
    return found


def softmax(q, k, v):
    return pg.softmax((q @ k.mT) * 0.125) @ v


@pytest.mark.parametrize(("kind", "tolerance"), [("tf32", 4e-3), ("f32", 2e-5)])
@pytest.mark.parametrize(("rows", "keys", "depth"), [(1, 1, 64), (257, 513, 64), (300, 200, 128)])
def test_attention_of_wide_types(
    kind: str, tolerance: float, rows: int, keys: int, depth: int
) -> None:
    """By warps: what is made of scores is rounded to tf32, or split, in registers."""
    arrays = [
        np.random.default_rng(seed).standard_normal((2, length, depth)).astype(np.float32)
        for seed, length in enumerate((rows, keys, keys))
    ]
    signature = tuple(f"{kind}[B,{length},{depth}]" for length in "STT")
    for arch in (_arch(), _of_warps()):
        _run(softmax, signature, arrays, tolerance, arch=arch)


@pytest.mark.parametrize("kind", ["tf32", "f32"])
def test_layers_of_wide_types_are_exact(kind: str) -> None:
    """Small whole numbers, which tf32 holds."""
    rng = np.random.default_rng(1)
    shapes = ((1000, 32), (32, 48), (48, 16))
    arrays = [rng.integers(-1, 2, shape).astype(np.float32) for shape in shapes]
    signature = (f"{kind}[M,32]", f"{kind}[32,48]", f"{kind}[48,16]")
    _run(lambda x, u, d: pg.relu(x @ u) @ d, signature, arrays, 0.0, arch=_of_warps())


@pytest.mark.parametrize(
    ("rows", "keys", "depth"), [(1, 1, 64), (257, 513, 64), (1000, 1111, 128), (300, 200, 256)]
)
def test_any_lengths(rows: int, keys: int, depth: int) -> None:
    arrays = _given(rows, (2, 3, rows, depth), (2, 3, keys, depth), (2, 3, keys, depth))
    signature = (f"bf16[B,H,S,{depth}]", f"bf16[B,H,T,{depth}]", f"bf16[B,H,T,{depth}]")
    _run(softmax, signature, arrays)


@pytest.mark.parametrize(
    ("rows", "keys", "depth"),
    [(1, 1, 64), (257, 513, 64), (1000, 1111, 128), (300, 200, 256), (100, 300, 36)],
)
@pytest.mark.parametrize("mask", ["none", "causal", "window"])
def test_warps_that_do_everything(mask: str, rows: int, keys: int, depth: int) -> None:
    def function(q, k, v):
        s = pg.tanh((q @ k.mT) * 0.02) * 6.0
        i, j = pg.indices(s)[-2:]
        if mask == "causal":
            s = pg.where(i >= j, s, -np.inf)
        elif mask == "window":
            s = pg.where(pg.logical_and(i >= j, i - j < 100), s, -np.inf)
        return pg.softmax(s) @ v, pg.logsumexp(s, axis=-1)

    arrays = _given(rows, (2, 3, rows, depth), (2, 3, keys, depth), (2, 3, keys, depth))
    signature = (f"bf16[B,H,S,{depth}]", f"bf16[B,H,T,{depth}]", f"bf16[B,H,T,{depth}]")
    _run(function, signature, arrays, arch=_of_warps())


def test_warps_take_keys_in_parts() -> None:
    arrays = _given(21, (4, 3, 64), (4, 5000, 64), (4, 5000, 64))
    given = ("bf16[B,S,64]", "bf16[B,T,64]", "bf16[B,T,64]")
    _run(softmax, given, arrays, arch=_of_warps(), schedule=by_warps(part=512))


def test_causal_masks_and_log_sums() -> None:
    def function(q, k, v):
        s = (q @ k.mT) * 0.125
        i, j = pg.indices(s)[-2:]
        s = pg.where(i >= j, s, -np.inf)
        return pg.softmax(s) @ v, pg.logsumexp(s, axis=-1)

    arrays = _given(5, (2, 700, 64), (2, 700, 64), (2, 700, 64))
    _run(function, ("bf16[B,S,64]", "bf16[B,S,64]", "bf16[B,S,64]"), arrays)


@pytest.mark.parametrize("matrices", [3, 40, 300])
def test_orders_of_rows_change_no_bit(matrices: int) -> None:
    """Blocks of one tile of rows, tiles of the last matrices together, persistent blocks."""

    def function(q, k, v):
        s = (q @ k.mT) * 0.125
        i, j = pg.indices(s)[-2:]
        return pg.softmax(pg.where(i >= j, s, -np.inf)) @ v

    arrays = _given(matrices, *((matrices, 700, 64),) * 3)
    signature = ("bf16[B,S,64]", "bf16[B,S,64]", "bf16[B,S,64]")
    found = []
    for order in ORDERS:
        schedule = replace(
            few_rows(),
            raster=Raster("m", 1, order=order),
            epilogue=Epilogue("registers", prefetch=2),
        )
        found += _run(function, signature, arrays, schedule=schedule)
    assert all((one == found[0]).all() for one in found)


@pytest.mark.parametrize("launches", [1, 500])
@pytest.mark.parametrize(
    ("matrices", "rows", "keys"), [(1, 70, 64), (40, 700, 100), (300, 513, 512)]
)
def test_ways_of_results_change_no_bit(matrices: int, rows: int, keys: int, launches: int) -> None:
    """From registers, and in panels that the copy engine stores."""

    def function(q, k, v):
        s = (q @ k.mT) * 0.125
        return pg.softmax(s) @ v, pg.logsumexp(s, axis=-1)

    shapes = ((matrices, rows, 128), (matrices, keys, 128), (matrices, keys, 128))
    arrays = _given(matrices, *shapes)
    given = [_on_gpu(a) for a in arrays]
    signature = ("bf16[B,S,128]", "bf16[B,T,128]", "bf16[B,T,128]")
    automatic = pg.fuse(function).compile(
        *signature, arch=_arch(), sizes={"B": 256, "S": 512, "T": 512}
    )
    base, found = automatic.schedule, []
    for through in ("registers", "tma"):
        schedule = replace(base, epilogue=replace(base.epilogue, through=through))
        kernel = pg.fuse(function).compile(*signature, arch=_arch(), schedule=schedule)
        for _ in range(launches):
            results = kernel(*given)
        found.append(results)
    assert all((one == other).all() for one, other in zip(*found, strict=True))


def test_soft_caps() -> None:
    def function(q, k, v):
        return pg.softmax(pg.tanh((q @ k.mT) * 0.125 / 5.0) * 5.0) @ v

    arrays = _given(9, (2, 700, 64), (2, 900, 64), (2, 900, 64))
    _run(function, ("bf16[B,S,64]", "bf16[B,T,64]", "bf16[B,T,64]"), arrays)


def test_heads_in_rows_and_groups_of_heads() -> None:
    def function(q, k, v):
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        return softmax(q, k, v).swapaxes(1, 2)

    arrays = _given(6, (2, 300, 4, 64), (2, 200, 4, 64), (2, 200, 4, 64))
    _run(function, ("bf16[B,S,H,64]", "bf16[B,T,H,64]", "bf16[B,T,H,64]"), arrays)
    arrays = _given(7, (2, 2, 3, 300, 64), (2, 2, 1, 200, 64), (2, 2, 1, 200, 64))
    _run(softmax, ("bf16[B,K,G,S,64]", "bf16[B,K,1,T,64]", "bf16[B,K,1,T,64]"), arrays)


@pytest.mark.parametrize("part", [64, 1024, 4096])
def test_keys_in_parts(part: int) -> None:
    def function(q, k, v):
        s = (q @ k.mT) * 0.088
        return pg.softmax(s) @ v, pg.logsumexp(s, axis=-1)

    signature = ("bf16[B,K,G,1,128]", "bf16[B,K,1,T,128]", "bf16[B,K,1,T,128]")
    arrays = _given(9, (2, 8, 4, 1, 128), (2, 8, 1, 4099, 128), (2, 8, 1, 4099, 128))
    _run(function, signature, arrays, schedule=few_rows(part, columns=128))


def test_many_launches_of_parts_give_the_same_bits() -> None:
    signature = ("bf16[B,K,G,128]", "bf16[B,K,T,128]", "bf16[B,K,T,128]")
    arrays = [_on_gpu(a) for a in _given(10, (2, 8, 4, 128), (2, 8, 4099, 128), (2, 8, 4099, 128))]
    schedule = few_rows(256, columns=128)
    kernel = pg.fuse(softmax).compile(*signature, arch=_arch(), schedule=schedule)
    first = kernel(*arrays)
    for _ in range(2000):
        again = kernel(*arrays)
    assert (first.view(again.dtype) == again).all()


def test_many_launches_give_the_same_bits() -> None:
    arrays = _given(8, (8, 777, 128), (8, 999, 128), (8, 999, 128))
    kernel = pg.fuse(softmax).compile(
        "bf16[B,S,128]", "bf16[B,T,128]", "bf16[B,T,128]", arch=_arch()
    )
    given = [_on_gpu(a) for a in arrays]
    first = kernel(*given)
    for _ in range(2000):
        again = kernel(*given)
    assert (first.view(again.dtype) == again).all()
