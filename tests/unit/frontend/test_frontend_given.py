"""What `fuse` is given: every callable that can be a kernel, its name, parameters and text."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import polygen as pg
from polygen.errors import TraceError
from polygen.frontend.given import source_of

ROOT = Path(__file__).parents[3]
TWO = ("bf16[M,K]", "bf16[N,K]")


def scaled(x, w, factor=2.0, *, shift=0.0):
    return x @ w.T * factor + shift


class Layer:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x, w):
        return x @ w.T * self.factor

    def method(self, x, w):
        return self(x, w)


# fmt: off
def on_several_lines(x, w):
    return (
        pg.relu(x @ w.T)  # the product
        + 1.0
    )


def with_a_backslash(x, w):
    return pg.relu(x @ w.T) \
        + 1.0
# fmt: on


def two(x, w):
    """A docstring with return nonsense in it."""
    v = x @ w.T
    return v, v * 2


def inner(x, w):
    def helper(v):
        return v + 1

    return helper(x @ w.T)


@pytest.mark.parametrize(
    ("function", "shown", "source"),
    [
        (functools.partial(scaled, factor=3.0), "scaled(x, w)", None),
        (functools.partial(scaled, shift=3.0), "scaled(x, w, factor)", None),
        (functools.partial(functools.partial(scaled, factor=3.0), shift=1.0), "scaled(x, w)", None),
        (Layer(3.0), "Layer(x, w)", None),
        (Layer(3.0).method, "method(x, w)", "self(x, w)"),
        (lambda x, w: x @ w.T, "fused(x, w)", "x @ w.T"),
        (lambda x, w, **_: x @ w.T, "fused(x, w)", "x @ w.T"),
        (on_several_lines, "on_several_lines(x, w)", "pg.relu(x @ w.T) + 1.0"),
        (with_a_backslash, "with_a_backslash(x, w)", "pg.relu(x @ w.T) + 1.0"),
        (two, "two(x, w)", "v, v * 2"),
        (inner, "inner(x, w)", "helper(x @ w.T)"),
    ],
)
def test_a_callable_becomes_a_kernel(function, shown, source):
    fused = pg.fuse(function)
    assert repr(fused) == f"<fused {shown}>"
    assert fused.source == (source or shown)
    if len(shown.split(",")) == 2:
        program = fused.program(*TWO)
        assert [t.name for t in program.inputs] == ["x", "w"]
        x = np.arange(6.0).reshape(2, 3)
        assert np.array_equal(np.asarray(fused.reference(x, x)), np.asarray(function(x, x)))


def test_a_lambda_that_stands_alone_has_a_text():
    f = lambda x, w: pg.relu(x @ w.T)  # noqa: E731
    assert source_of(f, "f") == "pg.relu(x @ w.T)"


def test_fused_again_under_another_name():
    once = pg.fuse(two)
    assert repr(pg.fuse(once, name="other")) == "<fused other(x, w)>"
    assert pg.fuse(once).function is two


def test_a_decorator_with_options():
    fused = pg.fuse(name="other")(two)
    assert isinstance(fused, pg.Fused) and fused.name == "other"


# --- refusals
async def later(x, w):
    return x @ w.T


@pytest.mark.parametrize(
    ("function", "piece"),
    [
        (3, "an int is not a function of arrays"),
        ("x @ w.T", "a str is not a function of arrays.*pg.fuse.lambda x, w"),
        (np.ones((2, 2)), "a ndarray is not a function"),
        (Layer, "a class is not a function of arrays"),
        (lambda *xs: xs[0] @ xs[1], "parameter xs is not one array by position.*Name them"),
        (lambda x, *, w: x @ w, "parameter w is not one array by position"),
        (functools.partial(scaled, x=1.0), "parameter w is not"),
        (max, "the parameters of the function are not known.*Wrap it"),
    ],
)
def test_what_is_no_function_of_arrays_is_refused(function, piece):
    with pytest.raises(TraceError, match=piece):
        pg.fuse(function).program(*TWO)


@pytest.mark.parametrize(
    "name", ["no name", "", "1st", "größe", "a\\", "a\nb", 3, "x" * 201, "a-b", "a/b"]
)
def test_a_bad_name_is_refused(name):
    with pytest.raises(TraceError, match=r"^name: .*(is not a name|a name of 201 characters)"):
        pg.fuse(two, name=name)


# --- comments of the generated code
@pytest.mark.parametrize(
    "command", ["polygen \\", "a\nint injected;", "a\x0cint injected;", "a\0b"]
)
def test_what_the_header_quotes_stays_a_comment(command):
    kernel = pg.fuse(two).compile(*TWO, arch="sm_80", command=command)
    head = kernel.source.split("\n#include")[0].split("\nusing")[0].splitlines()
    quoted = [line for line in kernel.source.splitlines() if "injected" in line or "\\" in line]
    assert all(line.startswith("//") for line in quoted if "injected" in line)
    assert not [line for line in head if line.startswith("//") and line.endswith("\\")]
    assert kernel.ptx  # it compiles


# --- types
@pytest.mark.slow
def test_a_type_checker_knows_what_comes_out(tmp_path):
    file = tmp_path / "user.py"
    file.write_text(
        textwrap.dedent(
            """
            import polygen as pg

            @pg.fuse
            def up(x: object, w: object) -> object:
                return x

            named = pg.fuse(name="other")(lambda x, w: x)
            reveal_type(up)
            reveal_type(named)
            reveal_type(pg.fuse(lambda x: x, allow_tf32=True))
            reveal_type(up.compile("bf16[M,K]", arch="sm_80"))
            reveal_type(up.compile("bf16[M,K]").source)
            reveal_type(up.compile("bf16[M,K]").check().ok)
            reveal_type(pg.load_schedule("mine.toml"))
            pg.no_such_name
            pg.fuse(3)
            """
        )
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-incremental", "--strict", str(file)],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    revealed = [line.split('"')[1] for line in done.stdout.splitlines() if "Revealed" in line]
    names = [re.sub(r"\w+\.", "", name) for name in revealed]
    several = "Kernel | KernelSequence"
    assert names == ["Fused", "Fused", "Fused", several, "str", "bool", "Schedule"], done.stdout
    assert "no_such_name" in done.stdout and "No overload variant" in done.stdout
