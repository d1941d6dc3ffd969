"""Tangents of scores that become exponents, compiled, on the PTX machine: floats of all sizes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pointwise_kernels import SIGNS, apply, every, off_by, reference

from polygen.emit.primitives import PRIMITIVES

SCALES = (1.0, 0.0029333334, -0.7, 2.0**-16, 2.0**16)
STEP = 9973


def _arguments(scale: float) -> np.ndarray:
    """Floats of all sizes, and many whose tangents are neither 0 nor 1."""
    near = np.linspace(-12, 12, 1 << 14) / scale
    return np.concatenate([every(STEP), near.astype(np.float32)])


def _off(name: str, x: np.ndarray, scale: float, found: np.ndarray) -> np.ndarray:
    wanted = reference(name, x, np.float32(scale))
    absolute, relative = PRIMITIVES[name].error
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    return np.abs(found.astype(np.float64) - wanted) > absolute + relative * np.abs(wanted)


@pytest.mark.parametrize("scale", SCALES)
def test_the_recorded_error_holds(scale: float) -> None:
    x = _arguments(scale)
    for signs in SIGNS:
        with off_by(signs) as note:
            found = apply("tanh_of_score", x, constants=(scale,), note=note)
        assert not _off("tanh_of_score", x, scale, found).any()
        assert (np.abs(found) <= 1).all()


def test_the_recorded_error_is_no_larger_than_it_must_be() -> None:
    x = _arguments(1.0)
    wanted = reference("tanh_of_score", x, 1.0)
    worst = 0.0
    for signs in SIGNS:
        with off_by(signs) as note:
            found = apply("tanh_of_score", x, constants=(1.0,), note=note)
        worst = max(worst, float(np.abs(found - wanted).max()))
    assert worst > PRIMITIVES["tanh_of_score"].error[0] / 2


@pytest.mark.parametrize("scale", SCALES)
def test_small_scores_have_the_same_bits_wherever_they_are(scale: float) -> None:
    """In a tile whose scores are all small, and beside larger ones."""
    x = _arguments(scale)
    x = x[np.abs(x) <= np.float32(0.5) / np.abs(np.float32(scale))]
    assert len(x) > 500
    small = apply("tanh_within", x, constants=(scale,))
    assert not _off("tanh_within", x, scale, small).any()
    assert np.array_equal(small, apply("tanh_of_score", x, constants=(scale,)))


def test_special_values() -> None:
    x = np.array([-math.inf, math.inf, -1e30, 1e30, 0.0, math.nan], np.float32)
    found = apply("tanh_of_score", x, constants=(0.25,))
    np.testing.assert_allclose(found, [-1, 1, -1, 1, 0, math.nan], rtol=2.0**-20)
    assert math.isnan(apply("tanh_within", x, constants=(0.25,))[-1])


# --- with a product and a sum in them ------------------------------------------------------------
def _scaled(scale: float, factor: float, offset: float) -> tuple[np.ndarray, float, np.ndarray]:
    """Arguments, what results may be off by, and what they are."""
    x = _arguments(scale)
    x = x[np.isfinite(x)]
    wanted = reference("scaled_tanh", x, np.float32(scale), np.float32(factor), np.float32(offset))
    absolute, relative = PRIMITIVES["scaled_tanh"].error
    return x, abs(factor) * absolute + relative * np.abs(wanted), wanted


@pytest.mark.sample(2)  # each of both at least twice
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("factor", "offset"), [(43.28085, -43.28085), (-7.5, 3.0), (0.5, -90.0)])
def test_scaled_tangents_have_the_error_of_the_tangent(
    scale: float, factor: float, offset: float
) -> None:
    x, allowed, wanted = _scaled(scale, factor, offset)
    constants = (scale, factor, offset)
    for signs in SIGNS:
        with off_by(signs) as note:
            found = apply("scaled_tanh", x, constants=constants, note=note)
        assert (np.abs(found.astype(np.float64) - wanted) <= allowed).all()
    near = np.abs(x) <= np.float32(0.5) / np.abs(np.float32(scale))
    small = apply("scaled_tanh_within", x[near], constants=constants)
    assert np.array_equal(small, found[near])


def test_scaled_tangents_of_special_values() -> None:
    x = np.array([-math.inf, math.inf, 0.0, math.nan], np.float32)
    found = apply("scaled_tanh", x, constants=(0.25, 2.0, 5.0))
    np.testing.assert_allclose(found, [3, 7, 5, math.nan], rtol=2.0**-20)
