"""Products by groups on a real GPU: any table of ends, sentinels around views, graphs, new ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polygen as pg
from polygen.frontend.evaluate import evaluate
from polygen.frontend.groups import routed_ends
from polygen.hardware.device import device
from polygen.kernel import Kernel
from polygen.runtime import environment
from polygen.schedule.load import shipped

pytestmark = pytest.mark.gpu

T, N, K, E = 700, 392, 328, 6
SIZES = {"T": T, "N": N, "K": K, "E": E}
PRODUCT = ("f16[T,K]", "f16[E,K,N]", "s32[E]")
LAYER = (*PRODUCT, "f32[E,N]", "f16[T,N]")
GATED = ("f16[T,K]", "f16[E,K,N]", "f16[E,K,N]", "s32[E]")
TABLES = {
    "empty groups, rows of none": [0, 120, 120, 400, 401, 690],
    "one huge group": [0, 0, T, T, T, T],
    "unsorted, negative": [-5, 300, 20, 650, 1, 660],
    "behind the last row": [1, 2, 3, 4, 5, 10**9],
    "no rows": [0, -1, 0, 0, 0, 0],
    "by chance": list(routed_ends(E, T, 0)),
}
SENTINEL = 1234.0


def product(x, w, ends):
    return pg.grouped_matmul(x, w, ends)


def layer(x, w, ends, b, r):
    return pg.relu(pg.grouped_matmul(x, w, ends) + pg.per_group(b, ends, x)) + r


def gated(x, w, v, ends):
    return pg.grouped_matmul(x, w, ends) * pg.maximum(pg.grouped_matmul(x, v, ends), 0)


FUNCTIONS = {"product": (product, PRODUCT), "layer": (layer, LAYER), "gated": (gated, GATED)}


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture(scope="module")
def kernels():
    made = {}

    def kernel(name, **options):
        key = (name, *sorted(options))
        if key not in made:
            function, signature = FUNCTIONS[name]
            made[key] = pg.fuse(function).compile(*signature, sizes=SIZES, **options)
        return made[key]

    return kernel


def operands(program, ends, sizes=None, seed=0):
    """Small integers: every sum is exact."""
    random, known = np.random.default_rng(seed), sizes or SIZES
    found = {}
    for tensor in program.inputs:
        shape = tuple(known[d] for d in tensor.dims)
        values = random.integers(-1, 2, shape)
        values = np.array(ends) if tensor.name == "ends" else values
        found[tensor.name] = values.astype(tensor.dtype.numpy)
    return found


def expected(program, arrays, known=None):
    (found,) = evaluate(program, arrays, known or SIZES)
    return found


def on_gpu(cupy, arrays):
    return [cupy.asarray(array) for array in arrays.values()]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("table", TABLES)
def test_every_table_is_right_and_rows_of_none_stay(cupy, kernels, name, table):
    made = kernels(name)
    arrays = operands(made.program, TABLES[table])
    wanted = expected(made.program, arrays)
    big = cupy.full((T + 2, N + 24), SENTINEL, "f2")
    out = big[1:-1, 8 : N + 8]
    assert made(*on_gpu(cupy, arrays), out=out) is out
    found = big.get()
    inside = found[1:-1, 8 : N + 8]
    rows = np.isfinite(wanted.astype("f4")).all(axis=1)
    np.testing.assert_array_equal(inside[rows], wanted[rows])
    assert (inside[~rows] == SENTINEL).all()
    found[1:-1, 8 : N + 8] = SENTINEL
    assert (found == SENTINEL).all()


@pytest.mark.parametrize("columns", [70, 71, 8])
def test_columns_of_any_number_stay_inside_their_view(cupy, kernels, columns):
    made = kernels("product")
    sizes = {"T": 133, "N": columns, "K": 72, "E": E}
    arrays = operands(made.program, [0, 40, 41, 41, 120, 131], sizes)
    wanted = expected(made.program, arrays, sizes)
    big = cupy.full((133, 96), SENTINEL, "f2")
    made(*on_gpu(cupy, arrays), out=big[:, :columns])
    found = big.get()
    np.testing.assert_array_equal(found[:131, :columns], wanted[:131])
    assert (found[131:] == SENTINEL).all()
    assert (found[:, columns:] == SENTINEL).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_graph_is_right_for_other_ends_of_the_same_array(cupy, kernels, name):
    made = kernels(name)
    first = operands(made.program, TABLES["by chance"])
    given = dict(zip(first, on_gpu(cupy, first), strict=True))
    out = cupy.full((T, N), SENTINEL, "f2")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        made(*given.values(), out=out)
        stream.synchronize()
        stream.begin_capture()
        made(*given.values(), out=out)
        graph = stream.end_capture()
    for table in (*TABLES.values(), TABLES["by chance"]):
        with stream:
            out.fill(SENTINEL)
            given["ends"][...] = cupy.asarray(table, dtype="i4")
            graph.launch(stream)
        stream.synchronize()
        wanted = expected(made.program, first | {"ends": np.array(table, np.int32)})
        rows = np.isfinite(wanted.astype("f4")).all(axis=1)
        np.testing.assert_array_equal(out.get()[rows], wanted[rows])
        assert (out.get()[~rows] == SENTINEL).all()


def test_direct_calls_take_ends_at_any_address(cupy):
    fused = pg.fuse(layer)
    arrays = operands(fused.program(*LAYER), TABLES["empty groups, rows of none"])
    wanted = expected(fused.program(*LAYER), arrays)
    x, w, ends, b, r = on_gpu(cupy, arrays)
    shifted = cupy.zeros(E + 3, "i4")
    for start in range(4):
        shifted[start : start + E] = ends
        found = fused(x, w, shifted[start : start + E], b, r).get()
        np.testing.assert_array_equal(found[:690], wanted[:690])
    with pytest.raises(pg.PolygenError, match="ends"):
        fused(x, w, ends.astype("i8"), b, r)


def test_tensors_of_pytorch(cupy):
    torch = pytest.importorskip("torch")
    fused = pg.fuse(lambda x, w, ends: pg.grouped_matmul(x, w.mT, ends), name="product")
    ends = torch.tensor(TABLES["by chance"], dtype=torch.int32, device="cuda")
    x = torch.randint(-1, 2, (T, K), device="cuda").bfloat16()
    w = torch.randint(-1, 2, (E, N, K), device="cuda").bfloat16()
    found = fused(x, w, ends)
    first = 0
    for group, end in enumerate(TABLES["by chance"]):
        wanted = x[first:end].float() @ w[group].float().T
        assert torch.equal(found[first:end].float(), wanted.bfloat16().float())
        first = end


def test_a_loaded_kernel_is_the_same(cupy, kernels, tmp_path):
    made = kernels("layer")
    made.save(tmp_path)
    loaded = Kernel.load(next(tmp_path.glob("*.json")))
    arrays = operands(made.program, TABLES["empty groups, rows of none"])
    one, two = (kernel(*on_gpu(cupy, arrays)).get()[:690] for kernel in (made, loaded))
    np.testing.assert_array_equal(one, two)


def test_every_shipped_schedule_that_fits_gives_the_same(cupy, kernels):
    """A sample of the shipped schedules, of either kind."""
    known = device(str(environment.current_arch()))
    arrays = operands(kernels("layer").program, TABLES["unsorted, negative"])
    wanted = expected(kernels("layer").program, arrays)
    rows = np.isfinite(wanted.astype("f4")).all(axis=1)
    tried = 0
    for schedule in shipped(known)[::7]:
        if schedule.specialised:
            schedule = replace(schedule, epilogue=replace(schedule.epilogue, through="lines"))
        try:
            made = pg.fuse(layer).compile(*LAYER, sizes=SIZES, schedule=schedule)
            made.artifact  # noqa: B018
        except pg.PolygenError:
            continue  # tiles that this program, or its registers, do not fit
        found = made(*on_gpu(cupy, arrays)).get()
        np.testing.assert_array_equal(found[rows], wanted[rows])
        tried += 1
    assert tried > 0


def test_many_launches_with_changing_ends(cupy, kernels):
    made = kernels("product")
    arrays = operands(made.program, TABLES["by chance"])
    given = dict(zip(arrays, on_gpu(cupy, arrays), strict=True))
    out = cupy.empty((T, N), "f2")
    wanted = {}
    for launch in range(2000):
        seed = launch % 8
        if seed not in wanted:
            ends = routed_ends(E, T, seed)
            wanted[seed] = cupy.asarray(expected(made.program, arrays | {"ends": ends}))
        given["ends"][...] = cupy.asarray(routed_ends(E, T, seed))
        out.fill(SENTINEL)
        made(*given.values(), out=out)
        assert bool((out == wanted[seed]).all()), launch
