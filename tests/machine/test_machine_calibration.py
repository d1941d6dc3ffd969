"""The machine against a GPU: the tests of matrix and bulk-copy instructions, run on both.

Every launch those tests make runs on the machine and, when it has no finding, on the GPU with the
same PTX and data; all arrays must agree.
"""

from __future__ import annotations

import inspect
import itertools

import pytest
import test_machine_gemm_cp_async as cp_async
import test_machine_gemm_hopper as hopper
import test_machine_mma as mma
import test_machine_tma as tma
import test_machine_wgmma as wgmma
from gpu_twin import twin
from wgmma_text import wgmma_function

MMA = ("exact", "tf32_ignores_low_bits", "quad_pairs", "ldmatrix_and_stmatrix")
WGMMA = ("widths", "types_and_swizzles", "majors", "a_from_registers", "signs_and_scale")
TMA_IN = ("load_every_rank", "load_swizzles", "fill_with_nan", "linear_copies", "cluster_multicast")
TMA_OUT = ("store_clips", "reduction", "cp_async_arrives_on_an_mbarrier")

pytestmark = pytest.mark.gpu
CHOSEN = [
    (mma, MMA),
    (wgmma, WGMMA),
    (tma, TMA_IN + TMA_OUT),
    (cp_async, ("exact_and_silent",)),
    (hopper, ("exact_and_silent", "wait_that_only_peeks")),
]


def cases():
    """(module, test function, arguments) for every parameter set of the chosen tests."""
    for module, names in CHOSEN:
        for name in names:
            function = getattr(module, f"test_{name}")
            marks = getattr(function, "pytestmark", [])
            axes = []
            for mark in (mark for mark in marks if mark.name == "parametrize"):
                keys = [key.strip() for key in mark.args[0].split(",")]
                rows = [row if len(keys) > 1 else (row,) for row in mark.args[1]]
                axes.append([dict(zip(keys, row, strict=True)) for row in rows])
            for number, combination in enumerate(itertools.product(*axes)):
                arguments = {key: value for part in combination for key, value in part.items()}
                yield pytest.param(module, function, arguments, id=f"{name}-{number}")


@pytest.mark.parametrize("module, function, arguments", list(cases()))
def test_gpu_agrees(module, function, arguments, monkeypatch, compile_ptx, read_kernel):
    cupy = pytest.importorskip("cupy")
    if "sm_90" in inspect.getsource(module) and cupy.cuda.Device().compute_capability != "90":
        pytest.skip("these kernels are built for sm_90")
    monkeypatch.setattr(module, "run", twin(cupy))
    wanted = inspect.signature(function).parameters
    if "source" in wanted:
        name = "gemm_cp_async.cu" if module is cp_async else "gemm_tma_wgmma.cu"
        front = (
            "" if module is cp_async else wgmma_function("multiply_128", 128, 16, "f32.bf16.bf16")
        )
        arguments = {**arguments, "source": front + read_kernel(name)}
    function(compile_ptx=compile_ptx, **arguments)
