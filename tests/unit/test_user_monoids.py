"""Folds by monoids of one's own: what they mean, in kernels and NumPy, and what is none."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import polygen as pg
from polygen.comparison import compare, meanings
from polygen.errors import PolygenError, TraceError, UnsupportedProgram
from polygen.frontend.monoids import MONOIDS
from polygen.frontend.user_monoids import by_users
from polygen.tune.task import describe

ROWS = ("bf16[M,K]", "bf16[N,K]")

two_largest = pg.monoid(
    "two_largest",
    terms=("value", -np.inf),
    identity=(-np.inf, -np.inf),
    combine=lambda a, b: (
        np.maximum(a[0], b[0]),
        np.maximum(np.minimum(a[0], b[0]), np.maximum(a[1], b[1])),
    ),
    finish=lambda first, second: first - second,
)
spread = pg.monoid(
    "spread",
    terms=("value", "value"),
    identity=(-np.inf, np.inf),
    combine=lambda a, b: (np.maximum(a[0], b[0]), np.minimum(a[1], b[1])),
    finish=lambda largest, least: largest - least,
)
# Of (value, place) the smallest value's, of equal ones the last.
last_smallest = pg.monoid(
    "last_smallest",
    terms=("value", "index"),
    identity=(np.inf, -1.0),
    combine=lambda a, b: (
        np.minimum(a[0], b[0]),
        pg.where(a[0] == b[0], np.maximum(a[1], b[1]), pg.where(a[0] < b[0], a[1], b[1])),
    ),
    finish=lambda value, place: place,
)


def rescaled(a, b):
    largest = np.maximum(a[0], b[0])
    one, two = (np.exp(pg.where(c[0] == largest, 0.0, c[0] - largest)) for c in (a, b))
    return largest, a[1] * one + b[1] * two, a[2] * one + b[2] * two


entropy = pg.monoid(
    "entropy",
    terms=("value", 1.0, "value"),
    identity=(-np.inf, 0.0, 0.0),
    combine=rescaled,
    finish=lambda largest, total, weighted: largest + np.log(total) - weighted / total,
)


def of_entropy(z):
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return -(p * np.log(np.maximum(p, 1e-300))).sum(1)


def margin(z, axis=1):
    order = np.sort(z, axis)
    return np.take(order, -1, axis) - np.take(order, -2, axis)


CASES = {
    "rows": (lambda x, w: pg.fold(x @ w.T, two_largest, axis=1), margin),
    "columns": (
        lambda x, w: pg.fold(x @ w.T, two_largest, axis=0, keepdims=True),
        lambda z: margin(z, 0)[None],
    ),
    "all": (lambda x, w: pg.fold(x @ w.T, two_largest), lambda z: margin(z.reshape(1, -1))[0]),
    "places": (
        lambda x, w: pg.fold(x @ w.T, last_smallest, axis=1),
        lambda z: z.shape[1] - 1 - np.argmin(z[:, ::-1], 1),
    ),
    "beside elements": (
        lambda x, w: (x @ w.T) * pg.fold(x @ w.T, spread, axis=1, keepdims=True),
        lambda z: z * np.ptp(z, 1)[:, None],
    ),
    "rounded": (lambda x, w: pg.fold(x @ w.T * 0.25, entropy, axis=1), lambda z: of_entropy(z / 4)),
}


def given():
    generator = np.random.default_rng(0)
    return [generator.integers(-2, 3, (n, 24)).astype(ml_dtypes.bfloat16) for n in (37, 50)]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", CASES)
def test_folds_of_ones_own(name, arch):
    function, meaning = CASES[name]
    fused = pg.fuse(function, name="f")
    kernel = fused.compile(*ROWS, arch=arch, out_dtype="f32")
    x, w = given()
    wanted = meaning(x.astype(float) @ w.astype(float).T)
    bound = 1e-5 if name == "rounded" else 0
    np.testing.assert_allclose(kernel.emulate(x, w), wanted, atol=bound)
    np.testing.assert_allclose(fused.reference(x, w), wanted, atol=bound * 1e-3)
    report = kernel.check()
    assert report.ok, str(report)


def test_folds_of_operands():
    function = pg.fuse(lambda x, w: (x @ w.T) * pg.fold(x, spread, axis=1)[:, None], name="f")
    x, w = given()
    a, b = x.astype(float), w.astype(float)
    found = function.compile(*ROWS, arch="sm_90a", out_dtype="f32").emulate(x, w)
    np.testing.assert_array_equal(found, a @ b.T * np.ptp(a, 1)[:, None])


def test_arrays_are_folded_as_they_are():
    z = np.random.default_rng(1).normal(size=(3, 5, 7))
    found = pg.fold(z, spread, axis=(0, 2), keepdims=True)
    np.testing.assert_allclose(found, np.ptp(z, (0, 2), keepdims=True))
    np.testing.assert_allclose(pg.fold(z, two_largest, axis=-1), margin(z, -1))


def test_names_say_what_is_meant():
    """Two of one name are two, and one that is defined again is the same."""

    def made(number):
        return pg.monoid(
            "again",
            terms=("value",),
            identity=(0.0,),
            combine=lambda a, b: (a[0] + b[0],),
            finish=lambda total: total * number,
        )

    first, other, again = made(2.0), made(3.0), made(2.0)
    assert first.name == again.name != other.name
    assert MONOIDS[other.name].finish(5.0) == 15.0 and first.finish(5.0) == 10.0
    program = pg.fuse(lambda x, w: pg.fold(x @ w.T, other, axis=1)).program(*ROWS)
    assert f"{other.name} over j" in str(program)
    with pytest.raises(TraceError, match=r"no monoid is called again_0.*Define it by pg.monoid"):
        MONOIDS["again_0"]


def added(a, b):
    return (a[0] + b[0],)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"combine": lambda a, b: (a[0] - b[0],)}, r"identity combined with it: .* not"),
        ({"identity": (1.0,)}, "combined with the identity"),
        ({"combine": lambda a, b: (a[0] + b[0] + a[0] * b[0] * b[0],)}, "in the other order"),
        (
            {"combine": lambda a, b: (a[0] + b[0] + (a[0] * b[0]) ** 2,)},
            "in another order of three",
        ),
        ({"terms": (1.0,)}, 'Say "value" once'),
        ({"terms": ("val",)}, 'the component .*val.* "index" or a number'),
        ({"terms": ("value", "value")}, "2 terms and 1 components of the identity"),
        ({"terms": (), "identity": ()}, "0 terms and 0 components.* 1 to 8"),
        ({"identity": ("none",)}, "the component .*none"),
        ({"combine": lambda a, b: (a[0], b[0])}, "2 components come of 1.*Return 1"),
        ({"combine": lambda a, b: (1 / 0,)}, "ZeroDivisionError"),
        ({"combine": lambda a, b: (pg.sum(a[0]),)}, "has no axis"),
        ({"combine": lambda a, b: (a[0].astype("bf16") + b[0],)}, "no pointwise function"),
        ({"name": "two words"}, "called .*two words.* Use letters"),
        ({"name": "gr\u00f6\u00dfe"}, "Use letters and digits"),
        ({"identity": (-10.0,), "combine": lambda a, b: (np.maximum(a[0], b[0]),)}, "identity"),
        (
            {
                "terms": ("value", 1.0),
                "identity": (-np.inf, 0.0),
                "combine": lambda a, b: (
                    np.maximum(a[0], b[0]),
                    a[1] * np.exp(a[0] - np.maximum(a[0], b[0]))
                    + b[1] * np.exp(b[0] - np.maximum(a[0], b[0])),
                ),
            },
            r"the identity combined with itself: \(-inf, nan\)",
        ),
    ],
)
def test_what_is_no_monoid(changed, said):
    whole = {"name": "bad", "terms": ("value",), "identity": (0.0,), "combine": added} | changed
    with pytest.raises(TraceError, match=said):
        pg.monoid(whole.pop("name"), **whole)


first_largest = pg.monoid(
    "first_largest",
    terms=("value", "index"),
    identity=(-np.inf, np.inf),
    combine=lambda a, b: (
        np.maximum(a[0], b[0]),
        pg.where(a[0] == b[0], np.minimum(a[1], b[1]), pg.where(a[0] > b[0], a[1], b[1])),
    ),
    finish=lambda value, place: place,
)


def test_what_one_order_decides_otherwise_excuses_nothing_else():
    fused = pg.fuse(lambda x, w: pg.fold(-np.abs(x @ w.T * 0.1 - 0.15), first_largest, axis=1))
    program, sizes = fused.program(*ROWS), {"M": 37, "N": 50, "K": 24}
    x, w = given()
    arrays = {"x": x, "w": w}
    (wanted,), *others = meanings(program, arrays, sizes)
    (tensor,) = program.outputs
    assert compare(tensor, wanted, wanted, False, *(one for (one,) in others))[0] is None
    for wrong in (np.zeros_like(wanted), wanted + 7, wanted * -2):
        finding, _ = compare(tensor, wrong, wanted, False, *(one for (one,) in others))
        assert finding is not None and finding.count > 5


def test_odd_ones_are_combined_with_no_identity():
    z = np.random.default_rng(3).normal(size=(4, 13)) - 100
    np.testing.assert_allclose(pg.fold(z, spread, axis=1), np.ptp(z, 1))


def test_long_definitions():
    def squared(a, b):
        total = a[0] + b[0]
        for _ in range(2000):
            total = total + 0.0 * total
        return (total,)

    made = pg.monoid("long", terms=("value",), identity=(0.0,), combine=squared)
    assert pg.fold(np.arange(5.0), made) == 10.0


def test_what_does_not_know_it():
    fused = pg.fuse(lambda x, w: pg.fold(x @ w.T, spread, axis=1), name="f")
    with pytest.raises(UnsupportedProgram, match=r"a fold by spread_.*with pg.max"):
        describe(fused, ROWS, sizes={"M": 64, "N": 64, "K": 64}, arch="sm_90a")
    error = by_users(spread.name)
    assert "spread_" in str(error) and "Fold by pg.sum" in str(error)


def test_folds_by_something_else():
    with pytest.raises(TraceError, match=r"fold by .*max.*pg.monoid"):
        pg.fuse(lambda x, w: pg.fold(x @ w.T, max, axis=1)).program(*ROWS)
    with pytest.raises(PolygenError, match="along 2 axes"):
        pg.fuse(lambda x, w: pg.fold(x @ w.T, last_smallest)).program(*ROWS)
    with pytest.raises(PolygenError, match="axis 2"):
        pg.fuse(lambda x, w: pg.fold(x @ w.T, spread, axis=2)).program(*ROWS)
