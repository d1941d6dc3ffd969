"""Kernels that run one after another, on a GPU."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from alone_samples import ALONE
from sequence_samples import SAMPLES, Sample, compiled, expected, operands, require_close
from split_samples import SPLIT

import polygen as pg
from polygen.errors import ArgumentError
from polygen.frontend.dtypes import BF16
from polygen.runtime.environment import current_arch
from polygen.runtime.measure import captured, to_gpu, to_host

pytestmark = pytest.mark.gpu


def _kernels(sample: Sample) -> pg.KernelSequence:
    return compiled(sample, current_arch())


def _on_gpu(kernels: pg.KernelSequence, given: tuple[Any, ...]) -> list[Any]:
    return [to_gpu(one) if isinstance(one, np.ndarray) else one for one in given]


def _outputs(result: Any) -> list[Any]:
    return [to_host(one) for one in (result if isinstance(result, tuple) else (result,))]


@pytest.mark.parametrize("name", SAMPLES | ALONE | SPLIT)
def test_results(name: str) -> None:
    sample = (SAMPLES | ALONE | SPLIT)[name]
    kernels, given = _kernels(sample), operands(sample)
    found = _outputs(kernels(*_on_gpu(kernels, given)))
    for one, (value, allowed) in zip(found, expected(sample, kernels.program, given), strict=True):
        require_close(one, value, allowed)


def test_direct_calls_make_them_too() -> None:
    sample = SAMPLES["wide mlp"]
    given = operands(sample)
    fused = pg.fuse(sample.function)
    result = fused(*(to_gpu(one) for one in given))
    kernels = _kernels(sample)
    for one, (value, _) in zip(
        _outputs(result), expected(sample, kernels.program, given), strict=True
    ):
        np.testing.assert_array_equal(one.astype(np.float64), value)


def test_other_sizes_streams_workspaces_and_outputs() -> None:
    import cupy

    sample = SAMPLES["rows of no 16 bytes"]
    kernels = pickle.loads(pickle.dumps(_kernels(sample)))
    for m in (1, 50, 300):
        sizes = sample.sizes | sample.run | {"M": m}
        given = operands(sample, sizes)
        arrays = _on_gpu(kernels, given)
        value, _ = expected(sample, kernels.program, given, sizes)[0]
        out = cupy.empty(value.shape, kernels.program.outputs[0].dtype.numpy)
        room = cupy.empty(kernels.workspace(sizes), "u1")
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.get_current_stream().synchronize()
        assert kernels(*arrays, out=out, stream=stream, workspace=room) is out
        stream.synchronize()
        np.testing.assert_array_equal(to_host(out).astype(np.float64), value)
        out.fill(0)
        replay = captured(lambda queue, a=arrays, o=out: kernels(*a, out=o, stream=queue))
        replay()
        np.testing.assert_array_equal(to_host(out).astype(np.float64), value)


def test_an_output_that_a_later_kernel_would_read_is_refused() -> None:
    sample = SAMPLES["wide mlp"]
    kernels, given = _kernels(sample), operands(sample)
    x, *rest = _on_gpu(kernels, given)
    with pytest.raises(ArgumentError, match="y0 and x overlap"):
        kernels(x, *rest, out=x)


def test_pytorch_and_its_operators() -> None:
    torch = pytest.importorskip("torch")
    import polygen.adapters.torch as pgt

    sample = SAMPLES["decoder block"]
    kernels, given = _kernels(sample), operands(sample)
    (value, allowed), *_ = expected(sample, kernels.program, given)
    tensors = [torch.from_numpy(one.astype(np.float32)).to("cuda", torch.bfloat16) for one in given]
    operator = pgt.op(sample.function, name="decoder_block_of_kernels")
    for found in (kernels(*tensors), operator(*tensors), torch.compile(operator)(*tensors)):
        one = found.float().cpu().numpy()
        require_close(one, value, allowed)


def test_jax() -> None:
    jax = pytest.importorskip("jax")
    import polygen.adapters.jax as pgj

    sample = SAMPLES["wide mlp"]
    kernels, given = _kernels(sample), operands(sample)
    (value, _), *_ = expected(sample, kernels.program, given)
    fused = jax.jit(lambda *arrays: pgj.call(sample.function, *arrays))
    found = np.asarray(fused(*map(jax.numpy.asarray, given)))
    np.testing.assert_array_equal(found.astype(np.float64), value)


def _deep(x: Any, u: Any, d: Any) -> Any:
    """Six layers, up and down in turn, of whole numbers that stay small."""
    for _ in range(3):
        x = (pg.clip(pg.relu(x @ u.T) @ d.T * 2.0**-12, -3, 3)).astype("bf16")
    return x


@pytest.mark.parametrize("rows", [1, 3, 16, 64])
@pytest.mark.parametrize("width", [1024, 4096])
def test_what_begins_early_reads_nothing_that_is_not_there_yet(rows: int, width: int) -> None:
    """The bits of every replay are those of kernels that wait for each other, 200 times."""
    import cupy

    if current_arch() != "sm_90a":
        pytest.skip("nothing is read ahead there")
    signature = ("bf16[M,K]", "bf16[H,K]", "bf16[K,H]")
    sizes = {"M": rows, "K": width, "H": width * 2}
    kernels = pg.fuse(_deep, name="deep").compile(*signature, arch="sm_90a", sizes=sizes)
    early = [one.schedule.launch for one in kernels.kernels[1:]]
    assert any(one.ahead for one in early) and not kernels.kernels[0].schedule.launch.dependent
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> Any:
        return rng.integers(-2, 3, shape).astype(np.float32).astype(BF16.numpy)

    x, u, d = (
        to_gpu(drawn(*one)) for one in ((rows, width), (width * 2, width), (width, width * 2))
    )
    y, room = kernels(x, u, d), cupy.empty(kernels.workspace(), "u1")
    replay = captured(lambda queue: kernels(x, u, d, out=y, stream=queue, workspace=room))
    for turn in range(200):
        x.set(drawn(rows, width))
        known = {"x": x, "u": u, "d": d}
        for one in kernels.kernels:  # each by itself waits for all before it
            found = one(*(known[tensor.name] for tensor in one.program.operands))
            known |= {one.program.outputs[0].name: found}
        replay()
        cupy.cuda.Device().synchronize()
        assert np.array_equal(to_host(y), to_host(found)), turn
