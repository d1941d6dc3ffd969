"""Every pointwise function on a GPU, within the error that is recorded for it."""

from __future__ import annotations

import numpy as np
import pytest
from pointwise_kernels import BLOCK, STORED, TYPES, arguments, beyond_record, compiled, every

from polygen.frontend.functions import INTERNAL, TABLE

pytestmark = pytest.mark.gpu
CALLS = [(name, TABLE[name].defaults) for name in sorted(TABLE) if name not in INTERNAL | {"clip"}]
CALLS += [("clip", (-1.5, 2.5)), ("pow", (2.5,)), ("pow", (-3.0,)), ("pow", (-0.5,))]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_a_gpu_keeps_the_recorded_error(call, dtype):
    cupy = pytest.importorskip("cupy")
    name, constants = call
    x = every(4001)
    x = x[: len(x) // BLOCK * BLOCK]
    args = arguments(name, x)[: len(TABLE[name].parameters) - len(constants)]
    module = cupy.cuda.function.Module()
    module.load(compiled(name, constants, dtype != "f32", dtype).encode())
    arrays = [cupy.asarray(arg) for arg in (*args, *args[:1] * 3)[:3]]
    stored = cupy.empty(len(x) * np.dtype(STORED[dtype]).itemsize, np.uint8)
    module.get_function("k")((len(x) // BLOCK,), (BLOCK,), (*arrays, stored))
    found = beyond_record(call, args, dtype, stored.get().view(STORED[dtype]))
    assert not found, (len(found), found[:8])
