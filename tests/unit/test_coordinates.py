"""Coordinates of a value in pointwise functions: traced, interpreted, and in kernels."""

from dataclasses import replace

import numpy as np
import pytest

import polygen as pg
from polygen.errors import ShapeError, TraceError, VerifyError
from polygen.frontend.evaluate import evaluate
from polygen.frontend.parse import parse_expression
from polygen.frontend.program import Affine, Coordinate
from polygen.hardware.device import device
from polygen.lower.result_work import Epilogue, Finish
from polygen.lower.verify import verify
from polygen.pipeline import generate
from polygen.schedule.load import load_schedule, schedules_folder
from polygen.tune.reference import sampled

SIZES = {"B": 2, "M": 200, "N": 144, "K": 64}


def causal(x, w):
    s = x @ w.T
    i, j = pg.indices(s)
    return pg.where(i >= j, s, -1.0)


def distance(x, w, b):
    s = x @ w.T + b
    i, j = pg.indices(s)
    return s - abs(i - j) * 0.5


def batches(x, w):
    s = x @ w.mT
    h, i, j = pg.indices(s)
    return s * 2.0 + h * 3.0 + i - j * 2.0


def transposed(x, w):
    s = (x @ w.T).T
    i, j = pg.indices(s)
    return s + i * 2.0 - j


def of_a_slice(x, w):
    """Coordinates of a view are the view's own; sliced coordinates are those of the source."""
    s = x @ w.T
    i, j = pg.indices(s)
    return s[:, 1:129:2] + i[:, 1:129:2] * 2.0 + j[:, 1:129:2]


TWO = ("bf16[M,K]", "bf16[N,K]")
PROGRAMS = {
    "causal": (causal, TWO),
    "distance": (distance, (*TWO, "bf16[N]")),
    "batches": (batches, ("f16[B,M,K]", "f16[B,N,K]")),
    "transposed": (transposed, ("f16[M,K]", "f16[N,K]")),
}
SCHEDULES = {
    "staged": ("sm_80", "128x64x64_w64x32_s4"),
    "panels, in turns": ("sm_90a", "pingpong_128x64x64_s8"),
    "panels, together": ("sm_90a", "cooperative_128x64x64_s8_e4p2"),
    "from registers": ("sm_90a", "pingpong_64x160x64_s6_registers"),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("way", SCHEDULES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_know_where_their_results_are(name, way):
    function, signature = PROGRAMS[name]
    arch, schedule = SCHEDULES[way]
    schedule = load_schedule(schedules_folder() / arch / f"{schedule}.toml")
    fused = pg.fuse(function, name="places")
    sizes = {dim: SIZES[dim] for dim in fused.program(*signature).sizes}
    report = fused.compile(*signature, arch=arch, sizes=sizes, schedule=schedule).check(sizes)
    assert report.ok, str(report)
    assert report.comparison == "equal to NumPy, bit for bit"


@pytest.mark.parametrize("way", ["staged", "panels, in turns"])
def test_a_plan_with_other_coordinates_is_refused(way):
    function, signature = PROGRAMS["causal"]
    arch, name = SCHEDULES[way]
    schedule = load_schedule(schedules_folder() / arch / f"{name}.toml")
    program = pg.fuse(function, name="places").program(*signature)
    plan = generate(program, device(arch), {}, schedule).plan
    assert verify(plan) is plan

    def swapped(epilogue):
        (i, row), (j, column) = epilogue.coordinates
        return replace(epilogue, coordinates=((i, column), (j, row)))

    def changed(work):
        if isinstance(work, Epilogue):
            return swapped(work)
        if isinstance(work, Finish):
            return replace(work, epilogue=swapped(work.epilogue))
        return work

    leaves = tuple(replace(leaf, work=changed(leaf.work)) for leaf in plan.leaves)
    with pytest.raises(VerifyError, match="coordinates are at0 = n"):
        verify(replace(plan, leaves=leaves))
    at = max(n for n, leaf in enumerate(plan.leaves) if leaf.work != leaves[n].work)
    with pytest.raises(VerifyError, match="another epilogue"):
        verify(replace(plan, leaves=(*plan.leaves[:at], leaves[at], *plan.leaves[at + 1 :])))


def test_edges_go_one_by_one():
    fused = pg.fuse(distance, name="places")
    signature, sizes = (*TWO, "bf16[N]"), {"M": 35, "N": 45, "K": 64}
    report = fused.compile(*signature, arch="sm_80", sizes=sizes).check(sizes)
    assert report.ok, str(report)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_mean_what_numpy_computes(name):
    function, signature = PROGRAMS[name]
    program = pg.fuse(function, name="places").program(*signature)
    sizes = {"B": 2, "M": 5, "N": 7, "K": 3}
    random = np.random.default_rng(0)
    arrays = {
        tensor.name: random.integers(-3, 4, [sizes[d] for d in tensor.dims]).astype(float)
        for tensor in program.inputs
    }
    (found,) = evaluate(program, arrays, round_outputs=False)
    np.testing.assert_array_equal(
        found, pg.fuse(function, name="places").reference(*arrays.values())
    )


def test_the_arrays_that_numpy_gives():
    i, j = pg.indices(np.zeros((2, 3)))
    np.testing.assert_array_equal(i, [[0, 0, 0], [1, 1, 1]])
    np.testing.assert_array_equal(j, [[0, 1, 2], [0, 1, 2]])


def test_a_slice_of_coordinates_is_affine():
    program = pg.fuse(of_a_slice, name="places").program("bf16[M,K]", "bf16[144,K]")
    places = {arg.index for s in program.pointwise for arg in s.args if isinstance(arg, Coordinate)}
    assert places == {"i", Affine("j", 2, 1)}
    arrays = {"x": np.ones((4, 3)), "w": np.ones((144, 3))}
    (found,) = evaluate(program, arrays, round_outputs=False)
    i, j = np.indices((4, 64))
    np.testing.assert_array_equal(found, 3 + 2 * i + 2 * j + 1)


def test_an_axis_of_size_one_is_at_zero():
    program = pg.fuse(lambda x, w: x @ w + pg.indices(x)[1], name="f").program(
        "f16[M,1]", "f16[1,1]"
    )
    (place,) = {str(a) for s in program.pointwise for a in s.args if isinstance(a, Coordinate)}
    assert place == "j"
    (found,) = evaluate(program, {"x": np.ones((3, 1)), "w": np.ones((1, 1))})
    np.testing.assert_array_equal(found, np.ones((3, 1)))


def test_expressions_take_coordinates():
    text = "where(indices(x @ w)[0] > indices(x @ w)[1], x @ w, 0)"
    program = pg.fuse(parse_expression(text, ("x", "w"))).program("f16[M,K]", "f16[K,N]")
    x, w = np.ones((4, 2)), np.ones((2, 4))
    (found,) = evaluate(program, {"x": x, "w": w})
    np.testing.assert_array_equal(found, np.tril(x @ w, -1))


def test_rows_that_the_tuner_samples_have_their_own_coordinates():
    program = pg.fuse(distance, name="places").program(*TWO, "bf16[N]")
    random = np.random.default_rng(0)
    arrays = {
        t.name: random.integers(-3, 4, [{"M": 9, "N": 7, "K": 5}[d] for d in t.dims]).astype(
            t.dtype.numpy
        )
        for t in program.inputs
    }
    (whole,) = evaluate(program, arrays, round_outputs=False)
    rows = [1, 8, 3]
    found = sampled(np, program, arrays, rows)
    np.testing.assert_array_equal(found[program.outputs[0].name], whole[rows])


def test_a_number_has_no_coordinates():
    with pytest.raises(ShapeError) as caught:
        pg.fuse(lambda x, w, s: x @ w + pg.indices(s)[0]).program("f16[M,K]", "f16[K,N]", "f32")
    assert "single number" in str(caught.value) and "the product" in str(caught.value)


@pytest.mark.parametrize("k", [-3, 0, 5])
def test_triangles_are_those_of_numpy(k):
    fused = pg.fuse(lambda x, w: (np.tril(x @ w.T, k), pg.triu(x @ w.T, k)), name="triangles")
    kernel = fused.compile("f16[M,16]", "f16[N,16]", arch="sm_90a", sizes={"M": 33, "N": 40})
    rng = np.random.default_rng(k + 9)
    x, w = (rng.integers(-3, 4, (n, 16)).astype(np.float16) for n in (33, 40))
    low, high = kernel.emulate(x, w)
    np.testing.assert_array_equal(low, np.tril(x @ w.T, k))
    np.testing.assert_array_equal(high, np.triu(x @ w.T, k))


def test_triangles_that_are_none():
    with pytest.raises(TraceError, match=r"the diagonal 0.5.*Write a whole number"):
        pg.fuse(lambda x, w: pg.tril(x @ w, 0.5)).program("f16[M,K]", "f16[K,N]")
    with pytest.raises(ShapeError, match=r"a triangle of x @ w \[M\]. It needs rows and columns"):
        pg.fuse(lambda x, w: pg.tril(x @ w)).program("f16[M,K]", "f16[K]")
