"""Random numbers of elements: the generator, its kernels, dropout."""

import numpy as np
import pytest

import polygen as pg
from polygen.errors import ShapeError, TraceError
from polygen.frontend.evaluate import evaluate
from polygen.frontend.philox import philox
from polygen.schedule.load import load_schedule, schedules_folder

TWO = ("f16[M,K]", "f16[N,K]")
WAYS = [("sm_80", "128x64x64_w64x32_s4"), ("sm_90a", "cooperative_64x64x64")]


# The test vectors that the authors publish for philox4x32-10.
@pytest.mark.parametrize(
    "counter, key, words",
    [
        (0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (0xFFFFFFFF, 0xFFFFFFFF, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ],
)
def test_the_generator_gives_what_its_authors_publish(counter, key, words):
    assert tuple(int(word) for word in philox((counter,) * 4, (key,) * 2)) == words


def test_the_published_words_of_pi():
    counter = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    words = philox(counter, (0xA4093822, 0x299F31D0))
    assert [int(w) for w in words] == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@pytest.mark.parametrize("arch, schedule", WAYS)
def test_kernels_draw_the_numbers_of_the_reference(arch, schedule):
    def noisy(x, w, s):
        v = x @ w.T
        return (v + pg.random.uniform(v, seed=s)).astype("f32"), pg.dropout(v, 0.25, seed=7)

    fused = pg.fuse(noisy, name="noisy")
    sizes = {"M": 72, "N": 136, "K": 64}
    path = schedules_folder() / arch / f"{schedule}.toml"
    kernel = fused.compile(*TWO, "f32", arch=arch, sizes=sizes, schedule=load_schedule(path))
    random = np.random.default_rng(0)
    x, w = (random.integers(-3, 4, (n, 64)).astype(np.float16) for n in (72, 136))
    noise, kept = kernel.emulate(x, w, np.float32(12345))
    wanted, dropped = fused.reference(x, w, 12345.0)
    np.testing.assert_array_equal(noise, wanted.astype(np.float32))
    np.testing.assert_allclose(kept, dropped, rtol=2**-10)
    share = (np.asarray(kept)[np.asarray(x @ w.T) != 0] == 0).mean()
    assert abs(share - 0.25) < 0.02


def test_numbers_do_not_depend_on_the_shape_around_them():
    few, many = (np.asarray(pg.random.uniform(np.zeros(s), seed=3)) for s in ((4, 5), (40, 50)))
    np.testing.assert_array_equal(few, many[:4, :5])
    other = np.asarray(pg.random.uniform(np.zeros((40, 50)), seed=4))
    assert (other == many).mean() < 0.01
    assert many.min() >= 0 and many.max() < 1
    assert abs(many.mean() - 0.5) < 0.03


def test_programs_and_functions_agree():
    fused = pg.fuse(lambda x, w: pg.dropout(x @ w.T, 0.5, seed=1), name="f")
    program = fused.program(*TWO)
    x, w = np.ones((6, 4)), np.ones((8, 4))
    (found,) = evaluate(program, {"x": x, "w": w}, round_outputs=False)
    np.testing.assert_array_equal(found, fused.reference(x, w))
    assert set(np.unique(found)) == {0.0, 8.0}


def test_nothing_is_dropped_at_zero():
    values = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(pg.dropout(values, 0.0, seed=0), values)


@pytest.mark.parametrize("seed", [-1, 2**24 + 1, 0.5, "one", None])
def test_a_seed_is_a_number_that_f32_holds(seed):
    with pytest.raises(TraceError, match="from 0 to 16777216"):
        pg.random.uniform(np.zeros((2, 2)), seed=seed)


@pytest.mark.parametrize("p", [-0.1, 1, 1.5, "half", None, True])
def test_a_share_is_below_one(p):
    with pytest.raises(TraceError, match="from 0, up to but not including 1"):
        pg.dropout(np.zeros((2, 2)), p, seed=0)


def test_five_axes_are_more_than_the_counter_has_words():
    with pytest.raises(ShapeError, match="fewer axes"):
        pg.random.uniform(np.zeros((1,) * 5), seed=0)
