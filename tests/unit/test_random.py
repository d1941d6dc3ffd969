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


def test_normal_numbers_have_the_same_bits_in_all_kernels_and_are_those_of_the_reference():
    def drawn(x, w, s):
        v = x @ w.T
        return (pg.random.normal(v, seed=s) + v * 0.0).astype("f32")

    fused = pg.fuse(drawn, name="drawn")
    x, w = np.ones((72, 64), np.float16), np.ones((136, 64), np.float16)
    found = []
    for arch, schedule in WAYS:
        path = schedules_folder() / arch / f"{schedule}.toml"
        kernel = fused.compile(*TWO, "f32", arch=arch, schedule=load_schedule(path))
        found.append(kernel.emulate(x, w, np.float32(7)))
        assert kernel.check(sizes={"M": 40, "N": 24, "K": 64}).ok
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0], fused.reference(x, w, 7.0), rtol=2**-20.5)


def test_normal_numbers_have_their_distribution():
    drawn = np.sort(np.asarray(pg.random.normal(np.zeros((300, 400)), seed=11)).ravel())
    below = 0.5 * np.asarray(pg.erfc(-drawn / np.sqrt(2.0)))
    ranks = (np.arange(drawn.size) + 0.5) / drawn.size
    assert np.abs(below - ranks).max() < 1.63 / np.sqrt(drawn.size)  # Kolmogorov's, at 1 %
    assert abs((drawn**4).mean() - 3.0) < 0.1


def test_the_ends_of_the_normal_numbers_are_finite_and_alike():
    ends = 2.0 * np.array([0.0, 1.0 - 2.0**-24]) - (1.0 - 2.0**-24)
    low, high = np.asarray(pg.erfinv(ends)) * np.sqrt(2.0)
    assert low == -high
    assert 5.41 < high < 5.43


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


def test_other_distributions_are_named():
    with pytest.raises(AttributeError, match="there are uniform and normal"):
        pg.random.exponential(np.zeros(3), seed=0)
