"""What is too long, too deep, too large or ends too early: a limit with a message, and up to it."""

from __future__ import annotations

import gc
import math
import sys

import numpy as np
import pytest

import polygen as pg
from polygen import knobs
from polygen.cli import main
from polygen.errors import (
    ExpressionError,
    InvarianceError,
    PolygenError,
    ScheduleFileError,
    ShapeError,
    SignatureError,
    TraceError,
    UnsupportedProgram,
    echo,
    in_digits,
    readable,
    shortened,
    told,
)
from polygen.frontend.parse import parse_expression
from polygen.frontend.shapes import LARGEST_SIZE
from polygen.frontend.signature import parse_signature
from polygen.pipeline import MOST_FUNCTIONS, MOST_OPERATIONS

XW = ("bf16[M,K]", "bf16[N,K]")
WORDS = ["x @ w.T", "x:bf16[M,K]", "w:bf16[N,K]", "--arch", "sm_80"]


def source(function, signature=XW, **options):
    return pg.fuse(function, name="f").compile(*signature, arch="sm_80", **options).source


def repeated(step, times):
    def function(x, w):
        value = x @ w.T
        for number in range(times):
            value = step(value, number)
        return value

    return function


# --- operations -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "step",
    [
        lambda v, n: v * 1.5 + 0.25,
        lambda v, n: pg.gelu(v) if n % 2 else pg.relu(v),
        lambda v, n: v * v + v,  # written out it would have 2^100 operations
    ],
    ids=["arithmetic", "nested", "shared"],
)
def test_long_programs_generate(step):
    text = source(repeated(step, 150))
    assert text.count("\n") > 300


def test_operations_beyond_the_limit():
    assert source(repeated(lambda v, n: v + n, MOST_OPERATIONS))
    with pytest.raises(UnsupportedProgram) as caught:
        source(repeated(lambda v, n: v + n, MOST_OPERATIONS + 1))
    message = str(caught.value)
    assert f"f: {MOST_OPERATIONS + 1} pointwise operations" in message
    assert f"at most {MOST_OPERATIONS}" in message and "Split the function" in message


def test_functions_beyond_the_limit():
    with pytest.raises(UnsupportedProgram) as caught:
        source(repeated(lambda v, n: pg.gelu(v) if n % 2 else pg.tanh(v), MOST_FUNCTIONS + 1))
    assert f"{MOST_FUNCTIONS + 1} calls of gelu, tanh (" in str(caught.value)


# --- expressions ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text",
    [
        "relu(" * 150 + "x @ w" + ")" * 150,
        "x @ w" + " + 1" * 200,
        "-" * 200 + "(x @ w)",
        "x @ w" + ".T" * 200,
        "maximum(1, " * 150 + "x @ w" + ")" * 150,
    ],
    ids=["calls", "sums", "signs", "attributes", "second arguments"],
)
def test_deep_expressions_are_read(text):
    function = parse_expression(text, ["x", "w"])
    x = np.ones((2, 2))
    assert pg.fuse(function, name="f").program("bf16[M,M]", "bf16[M,M]")
    assert np.shape(function(x, x)) == (2, 2)


@pytest.mark.parametrize(
    "text",
    [
        "x @ w" + " + 1" * 300,
        "-" * 300 + "x",
        "x" + ".T" * 300,
        "relu(-" * 150 + "x" + ")" * 150,
        "(" * 300 + "x" + ")" * 300,
        "[" * 2000,
        "x" + "[:]" * 300,
        "-" * 4000 + "x",
    ],
)
def test_expressions_beyond_the_limit(text):
    with pytest.raises(ExpressionError) as caught:
        parse_expression(text, ["x", "w"])
    message = str(caught.value)
    assert "deep" in message or "too many nested" in message, message
    assert len(message) < 400


def test_a_caller_deep_in_its_own_stack_gets_the_same_message():
    def deeper(left):
        return deeper(left - 1) if left else parse_expression("relu(" * 90 + "x" + ")" * 90, ["x"])

    with pytest.raises(ExpressionError, match="levels deep"):
        deeper(850)


# --- numbers --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("number", "near"),
    [
        (1e300, "Use 3.4028235e+38, or an infinity if"),
        (-1e39, "Use -3.4028235e+38"),
        (10**300, "Use 3.4028235e+38"),
        (np.float64(1e40), "Use 3.4028235e+38"),
        (1e-300, "Use 1.1754944e-38, or 0 if"),
        (-1e-46, "Use -1.1754944e-38, or 0 if"),
    ],
)
def test_constants_that_f32_does_not_hold(number, near):
    with pytest.raises(TraceError) as caught:
        source(lambda x, w: x @ w.T * number)
    assert near in str(caught.value), str(caught.value)


@pytest.mark.parametrize("number", [3.4028235e38, -1e38, 1e-45, math.inf, -math.inf, 0.0, -0.0])
def test_constants_that_f32_holds(number):
    assert source(lambda x, w: x @ w.T * number)


@pytest.mark.parametrize(
    "number", [LARGEST_SIZE + 1, 10**30, 10**5000], ids=["+1", "10^30", "10^5000"]
)
def test_sizes_beyond_the_limit(number):
    with pytest.raises(PolygenError, match=f"Use M = {LARGEST_SIZE}, or less"):
        source(lambda x, w: x @ w.T, sizes={"M": number})
    with pytest.raises(ShapeError, match=f"at most {LARGEST_SIZE}"):
        source(lambda x, w: x @ w.T, sizes={"M": number}, static=("M",))
    assert source(lambda x, w: x @ w.T, sizes={"M": LARGEST_SIZE})


def test_sizes_below_one_however_far():
    with pytest.raises(PolygenError, match=r"M = -2\*\*\d+ or more .*at least 1"):
        source(lambda x, w: x @ w.T, sizes={"M": -(10**5000)})


@pytest.mark.parametrize("digits", [19, 40, 5000])
def test_numbers_in_descriptions_beyond_the_limit(digits):
    with pytest.raises(ShapeError, match=f"at most {LARGEST_SIZE}") as caught:
        parse_signature(f"bf16[{'9' * digits},K]")
    assert len(str(caught.value)) < 600
    with pytest.raises(SignatureError, match="alignment of"):
        parse_signature(f"bf16[M,K]@{'9' * digits}")


def test_a_size_is_no_number_of_python_s():
    for function in (
        lambda x, w: x @ w.T * math.sqrt(x.shape[1]),
        lambda x, w: x @ w.T * (x.shape[1] // 2),
        lambda x, w: x @ w.T if x.shape[0] > 1 else x @ w.T * 2,
        lambda x, w: next(x @ w.T for _ in range(x.shape[0])),
    ):
        with pytest.raises(TraceError, match=r"size [MNK] is used as a number that .*static="):
            source(function)
    with pytest.raises(
        TraceError, match=r"condition .* size\(N\).*.*np.arange of a size is pg.indices"
    ):
        source(lambda x, w: x @ w.T + np.arange(w.shape[0]))
    halved = pg.fuse(lambda x, w: x @ w.T * (x.shape[1] // 2))
    assert halved.compile(*XW, arch="sm_80", sizes={"K": 64}).program.sizes == ("M", "N")
    with pytest.raises(ShapeError, match=r"size\(M\) \* size\(N\).* is no size"):
        source(lambda x, w: (x @ w.T).reshape(x.shape[0] * w.shape[0]))


def test_a_size_is_computed_with_behind_products_alone():
    for function in (lambda x, w: (x / x.shape[1]) @ w.T, lambda x, w: x @ (w * w.shape[0]).T):
        with pytest.raises(UnsupportedProgram, match="a size is computed with in front of a prod"):
            source(function)
    with pytest.raises(
        InvarianceError, match=r"v1 is computed with the size M: .*Dims that can be: N"
    ):
        pg.fuse(lambda x, w: x @ w.T / x.shape[0]).compile(
            "bf16[M,K]", "bf16[N,K]", arch="sm_90a", invariant=("M",)
        )


def test_a_size_is_its_name():
    seen = []
    source(lambda x, w: seen.extend(x.shape) or x @ w.T, ("bf16[M,64]", "bf16[N,64]"))
    rows, columns = seen
    assert (rows, columns) == ("M", 64) and str(rows) == repr(rows) == "M"
    assert rows != "N" and rows != 1 and len({rows, "M"}) == 1


# --- the command line -----------------------------------------------------------------------------
@pytest.fixture(autouse=True)
def _no_cache(tmp_path):
    with knobs.scope(cache_dir=tmp_path / "cache", arch=None, schedule=None, debug=False):
        yield


def refused(capsys, *words):
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    return err


@pytest.mark.parametrize(
    "words", [["M=4", "M=8"], ["M=4", "M=4"], ["M=4", "N=4", "--size", "K=8", "M=8"]]
)
def test_a_size_that_is_given_twice(capsys, words):
    message = refused(capsys, "show", *WORDS, "--size", *words)
    assert "M is given twice, as 4 and as" in message


@pytest.mark.parametrize("number", [10**30, "9" * 5000], ids=["10^30", "5000 digits"])
def test_a_size_with_many_digits(capsys, number):
    message = refused(capsys, "show", *WORDS, "--size", f"M={number}")
    assert f"sizes are at most {LARGEST_SIZE}" in message and len(message) < 600


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("import sys\nsys.exit(0)\n", ["line 2", "SystemExit: 0"]),
        ("raise SystemExit('done')\n", ["line 1", "SystemExit: done"]),
        ("class Stop(BaseException): pass\nraise Stop\n", ["line 2", "Stop"]),
        ("import sys\ndef up(x, w):\n    sys.exit(0)\n", ["up: the function raises SystemExit: 0"]),
        ("def up(x, w):\n    raise GeneratorExit\n", ["up: the function raises GeneratorExit"]),
        ("def up(x, w):\n    return up(x, w)\n", ["up: the function raises RecursionError"]),
    ],
)
def test_a_file_that_ends_polygen(capsys, tmp_path, text, pieces):
    file = tmp_path / "model.py"
    file.write_text(text)
    message = refused(capsys, "show", f"{file}:up", *WORDS[1:])
    assert all(piece in message for piece in pieces), message


def test_an_exit_from_anywhere_else(capsys, monkeypatch):
    monkeypatch.setattr("polygen.cli.load.fused", lambda *_: sys.exit(0))
    assert "ends polygen by sys.exit(0)" in refused(capsys, "show", *WORDS)


# --- echoes ---------------------------------------------------------------------------------------
def test_what_a_message_repeats_is_cut_and_printable():
    assert shortened("a" * 50, 9) == "aaaaaa…aa" and shortened("abc", 9) == "abc"
    assert readable("name " + "b" * 10_000).startswith("name bbbb")
    assert len(readable("name " + "b" * 10_000)) < 300
    assert len(readable("b " * 10_000)) <= 4000
    assert readable("\x1b[2J\r\x00\n") == "\\x1b[2J\\r\\x00\n"
    assert readable("é ± 漢") == "é ± 漢"
    error = PolygenError("w" * 9999, where="x" * 9999, why="y" * 9999, nearest="z" * 9999)
    assert len(str(error)) < 1100


def test_many_problems_are_counted():
    error = ScheduleFileError("f.toml", [f"key{n}: unknown" for n in range(50)])
    assert len(error.problems) == 50
    assert "50 problem(s)" in str(error) and "and 30 more" in str(error)
    assert len(str(error).splitlines()) == 22


def test_numbers_with_more_digits_than_python_prints():
    assert in_digits(12345) == "12345" and in_digits(-7) == "-7"
    assert in_digits(2**20000) == "2**20000 or more"
    assert in_digits(-(10**5000)).startswith("-2**")


def test_what_somebody_passed_is_one_line():
    assert echo(np.ones((2, 2))) == "array([[1., 1.], [1., 1.]])"
    assert echo(object()) == "a object" and echo("a\nb") == "'a\\nb'"
    assert told(ValueError("a\n  b")) == "ValueError: a b"
    assert told(SystemExit()) == "SystemExit"

    class Mute(Exception):
        def __str__(self):
            raise KeyError("no words")

    assert told(Mute()) == "Mute"


def test_an_asynchronous_function_is_refused_without_a_warning(recwarn):
    async def up(x, w):
        return x @ w.T

    with pytest.raises(TraceError, match=r"asynchronous.*Write def"):
        source(up)
    gc.collect()
    assert not recwarn.list
