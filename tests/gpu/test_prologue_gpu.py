"""Operands that are computed, on a GPU: layers against float64, and every stored number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polygen as pg
from polygen.cli.accuracy import expected
from polygen.hardware.conversion import meaning
from polygen.schedule.load import load_schedule, schedules_folder
from polygen.schedule.model import Launches

pytestmark = pytest.mark.gpu

LAYERS: dict[str, tuple[Any, tuple[str, ...], dict[str, int]]] = {
    "scaled columns": (
        lambda x, w, g: (x * g) @ w.T, ("bf16[M,K]", "bf16[N,K]", "bf16[K]"),
        {"M": 1000, "N": 1024, "K": 1031},
    ),
    "silu": (
        lambda x, w: pg.silu(x) @ w.T, ("bf16[M,K]", "bf16[N,K]"),
        {"M": 512, "N": 777, "K": 2048},
    ),
    "int8 weights": (
        lambda x, q, s: x @ (q.astype("bf16") * s[:, None]).T, ("bf16[M,K]", "s8[N,K]", "f32[N]"),
        {"M": 16, "N": 4096, "K": 4096},
    ),
    "int8 weights in groups": (
        lambda x, q, s: x @ (q.astype("bf16") * pg.repeat(s, 128, axis=1)).T,
        ("bf16[M,4096]", "s8[N,4096]", "bf16[N,32]"), {"M": 64, "N": 1000},
    ),
    "int4 weights in groups": (
        lambda x, q, s: x @ (pg.unpack(q, "i4").astype("bf16") * pg.repeat(s, 128, axis=1)).T,
        ("bf16[M,4096]", "u8[N,2048]", "bf16[N,32]"), {"M": 16, "N": 1000},
    ),
    "both": (
        lambda x, w, r: pg.gelu(x * r[:, None]) @ pg.relu(w), ("f16[M,K]", "f16[K,N]", "f32[M]"),
        {"M": 300, "N": 512, "K": 520},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_within_their_bounds(name: str) -> None:
    cupy = pytest.importorskip("cupy")
    function, signature, sizes = LAYERS[name]
    kernel = pg.fuse(function, name="layer").compile(*signature, sizes=sizes, out_dtype="f32")
    rng = np.random.default_rng(0)
    data: dict[str, Any] = {}
    for tensor in kernel.program.inputs:
        shape = [d if isinstance(d, int) else sizes[d] for d in tensor.dims]
        normal = rng.standard_normal(shape, np.float32)
        if tensor.dtype.name == "s8":
            normal = np.rint(normal * 40).clip(-127, 127)
        if tensor.dtype.name == "u8":
            normal = rng.integers(0, 256, shape).astype(np.float32)
        data[tensor.name] = normal.astype(tensor.dtype.numpy)

    def on_device(tensor: Any) -> Any:
        array = data[tensor.name]
        if tensor.dtype.name != "bf16":
            return cupy.asarray(array)
        torch = pytest.importorskip("torch")
        return torch.from_numpy(array.view(np.int16)).cuda().view(torch.bfloat16)

    shape = (sizes["M"], sizes["N"])
    found = cupy.full(shape, np.nan, np.float32)
    kernel(*map(on_device, kernel.program.inputs), out=found)
    exact = {n: v.astype(np.float64) for n, v in data.items()}
    (bound,) = expected(kernel.program, exact, sizes, kernel.passes.plan.atom.k)
    error, ratio, above = bound.compare(found.get())
    print(f"\n{name}: {kernel.schedule.name}, error {error:.3g}, {ratio:.2f} of the bound at most")
    assert above == 0


@pytest.mark.parametrize("name", ["scaled columns", "silu", "int4 weights in groups"])
def test_operands_that_are_made_first_have_the_bits_of_those_of_the_producer(name: str) -> None:
    cupy, torch = pytest.importorskip("cupy"), pytest.importorskip("torch")
    function, signature, sizes = LAYERS[name]
    plain = pg.fuse(lambda x, w: x @ w.T, name="plain").compile(
        "bf16[4096,4096]", "bf16[4096,4096]", out_dtype="f32"
    )
    if not plain.schedule.specialised:
        pytest.skip("launches before the kernel are for kernels with roles")
    by_lines = replace(plain.schedule.epilogue, through="lines", columns=16)
    schedule = replace(plain.schedule, epilogue=by_lines)
    own = replace(schedule.roles, producer_registers=152, consumer_registers=168)
    before = replace(schedule.roles, computes="before")
    ways = (
        replace(schedule, roles=own),
        replace(schedule, roles=before, launch=Launches(realign=True, dependent=True)),
    )
    torch.manual_seed(0)
    arrays: list[Any] = []
    found = []
    for way in ways:
        kernel = pg.fuse(function, name="layer").compile(
            *signature, sizes=sizes, out_dtype="f32", schedule=way
        )
        for tensor in kernel.program.inputs if not arrays else ():
            shape = [d if isinstance(d, int) else sizes[d] for d in tensor.dims]
            narrow = tensor.dtype.name == "u8"
            whole = torch.randint(0, 256, shape, device="cuda", dtype=torch.uint8)
            real = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
            arrays.append(whole if narrow else real)
        found.append(cupy.full((sizes["M"], sizes["N"]), np.nan, np.float32))
        kernel(*arrays, out=found[-1])
    assert bool((found[0].view(cupy.int32) == found[1].view(cupy.int32)).all())


@pytest.mark.parametrize("name", ["s8", "u8", "e4m3", "e5m2"])
def test_every_stored_number_is_multiplied_as_what_it_is(name: str) -> None:
    cupy = pytest.importorskip("cupy")
    kernel = pg.fuse(lambda x, w: x @ w.astype("f16").T, name="convert").compile(
        "f16[1,1]", f"{name}[256,1]", out_dtype="f32"
    )
    stored = np.arange(256, dtype=np.uint8).reshape(256, 1)
    weights = stored.view(np.int8) if name == "s8" else stored
    found = cupy.zeros((1, 256), np.float32)
    kernel(cupy.ones((1, 1), np.float16), cupy.asarray(weights), out=found)
    np.testing.assert_array_equal(found.get()[0], meaning(name))


@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_pairs_have_the_bits_of_elements_one_by_one(name: str) -> None:
    """Random normal numbers, by consumers and by a launch before the kernel."""
    torch = pytest.importorskip("torch")
    kind = {"bf16": torch.bfloat16, "f16": torch.float16}[name]
    file = schedules_folder() / "sm_90a" / "cooperative_128x256x64_f4_g2_made.toml"
    pairs = load_schedule(file)
    pairs = replace(pairs, pipeline=replace(pairs.pipeline, stages=3))
    before = replace(
        pairs,
        roles=replace(pairs.roles, computes="before"),
        pipeline=replace(pairs.pipeline, fragments=2, together=1),
        launch=Launches(realign=True, dependent=True),
    )
    torch.manual_seed(0)
    x, g, w = (
        torch.randn(*shape, device="cuda", dtype=kind)
        for shape in ((1000, 1032), (1032,), (512, 1032))
    )
    found = []
    for schedule in (pairs, before):
        kernel = pg.fuse(lambda x, g, w: (x * g) @ w.T, name="scaled").compile(
            f"{name}[M,K]", f"{name}[K]", f"{name}[N,K]", out_dtype="f32", schedule=schedule
        )
        assert ("= multiply_pairs(" in kernel.source) == (schedule is pairs)
        found.append(kernel(x, g, w))
    assert bool((found[0] == found[1]).all())
