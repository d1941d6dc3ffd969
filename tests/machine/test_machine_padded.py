"""Arrays that are views of larger ones, on the PTX machine: what is between rows is no kernel's.

The machine reports whoever reads or writes there; NaNs there spoil what is computed of them.
"""

from __future__ import annotations

import zlib
from functools import cache

import numpy as np
import pytest
from padded_arrays import (
    ALIGNED,
    OTHERS,
    REPEATED,
    WAYS,
    laid_out,
    mixed,
    small_sizes,
    trouble,
)
from padded_samples import EACH, QUICK, SAMPLES, nt
from random_prologues import FRAGMENTS

import polygen as pg
from polygen.emit import launcher
from polygen.errors import ArgumentError, PolygenError
from polygen.kernel import Kernel


@cache
def quick(name: str) -> Kernel:
    sample = QUICK[name]
    return sample.kernel(sample.archs[0])


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("way", ["padded", "block"])
def test_rows_begin_at_chunks_and_end_anywhere(name: str, way: str) -> None:
    kernel = quick(name)
    assert trouble(kernel, small_sizes(kernel.program), WAYS[way]) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_rows_that_lie_in_any_way(name: str) -> None:
    kernel = quick(name)
    for way in (*ALIGNED, *OTHERS):
        # A schedule that was asked for may not take them, which is said.
        assert _trouble(kernel, small_sizes(kernel.program), way) == "", way.name


def test_what_has_no_value_at_zero_ends_with_its_row() -> None:
    """What consumers compute behind the end of k is no number times zero."""
    kernel = pg.fuse(lambda x, w: (1 / x).astype("bf16") @ w.T).compile(
        "bf16[M,K]", "bf16[N,K]", arch="sm_90a", schedule=FRAGMENTS[1], out_dtype="f32"
    )
    rng, (of_x, of_w) = np.random.default_rng(0), kernel.program.inputs
    x = rng.choice([1, 2, -1, 4, 0.5], (37, 77)).astype(of_x.dtype.numpy)
    w = rng.integers(-2, 3, (45, 77)).astype(of_w.dtype.numpy)
    views = [laid_out(of_x, x, WAYS["padded"]), laid_out(of_w, w, WAYS["padded"])]
    done = kernel.emulation(*views)
    assert done.report.ok, str(done.report)
    np.testing.assert_array_equal(done.results, 1 / x.astype(np.float64) @ w.astype(np.float64).T)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_kernels_that_ask_for_nothing_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults that the conditions on rows are there for show on such arrays."""
    monkeypatch.setattr(launcher, "whole_rows", lambda plan: ())
    monkeypatch.setattr(launcher, "check_row_ends", lambda plan, multiples: None)
    sample = QUICK[name]
    kernel = sample.kernel(sample.archs[0])
    assert trouble(kernel, small_sizes(kernel.program), WAYS["padded"]) != ""


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize(("name", "arch"), EACH)
def test_programs_of_every_kind(name: str, arch: str) -> None:
    sample = SAMPLES[name]
    kernel = sample.kernel(arch)
    sizes = small_sizes(kernel.program, **sample.trial)
    for way in ("padded", "block"):
        assert trouble(kernel, sizes, WAYS[way]) == "", way
    ways = mixed(kernel.program, zlib.crc32(f"{name} {arch}".encode()))
    assert _trouble(kernel, sizes, ways) == "", {one: way.name for one, way in ways.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arch"), [("layers", "sm_80"), ("layers", "sm_75"), ("batches", "sm_80")]
)
def test_rows_that_are_all_the_same_one(name: str, arch: str) -> None:
    kernel = SAMPLES[name].kernel(arch)
    assert trouble(kernel, small_sizes(kernel.program), REPEATED) == ""


def _trouble(kernel: Kernel, sizes: dict[str, int], ways) -> str:
    """As `trouble`; "" where no variant takes such arrays, and says so.

    That may be where a schedule was asked for, and where operands come in boxes alone, or alike.
    """
    try:
        return trouble(kernel, sizes, ways)
    except PolygenError as error:
        plan = kernel.passes.plan
        may = kernel._asked != "auto" or plan.chained is not None or bool(plan.sections)
        return "" if may else str(error)


# --- what emulation takes -------------------------------------------------------------------------
def product() -> tuple[Kernel, list[np.ndarray]]:
    kernel = pg.fuse(nt).compile("f16[M,K]", "f16[N,K]", arch="sm_80")
    x, w = (np.arange(rows * 24).reshape(rows, 24) % 5 - 2 for rows in (9, 16))
    return kernel, [one.astype(np.float16) for one in (x, w)]


def test_a_view_at_another_address_takes_another_variant() -> None:
    kernel, (x, w) = product()
    moved = np.zeros(x.size + 1, np.float16)[1:].reshape(x.shape)
    moved[...] = x
    assert kernel.fitting(x, w) is kernel
    fitting = kernel.fitting(moved, w)
    alignment = dict(fitting.passes.source.alignment)
    assert (alignment["x"], alignment["w"]) == (2, 16)
    done = kernel.emulation(moved, w)
    assert done.report.ok, str(done.report)
    np.testing.assert_array_equal(done.results, nt(x, w))


def test_outputs_lie_as_they_are_given() -> None:
    kernel, (x, w) = product()
    room = np.full((9, 40), 7, np.float16)
    for out in (room[:, 8:24], room[:, 3:19]):
        done = kernel.emulation(x, w, out=(out,))
        assert done.report.ok, str(done.report)
        np.testing.assert_array_equal(done.results, nt(x, w))
    assert (room == 7).all()  # they stay as they are


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (lambda x: (x[:, :16], x[:, :16]), "2 outputs given, 1 expected: y0"),
        (lambda x: (x[:, :15],), r"y0.*15"),
        (lambda x: (x[:, :16].astype(np.float32),), "y0 holds float32, the kernel takes f16"),
        (lambda x: (x[:, :16],), "x and y0 overlap in memory|y0 and x overlap in memory"),
    ],
)
def test_outputs_that_do_not_fit(out, words: str) -> None:
    kernel, (x, w) = product()
    with pytest.raises(ArgumentError, match=words):
        kernel.emulation(x, w, out=out(x))
