"""Hostile and careless inputs: exit code 2, exactly one clear message, nothing written.

Each entry is refused on its own account: everything else about its command line is right. Messages
of mistakes that have rules of their own are compared with words in the other files of this folder.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from messages import check_message

import polygen as pg
from polygen import knobs
from polygen.cli import main
from polygen.errors import PolygenError

XW = ("x:bf16[M,K]", "w:bf16[N,K]")
ARCH = ("--arch", "sm_80")
LONG = "q" * 5000
DIGITS = "9" * 5000


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    """An empty folder to run in, and no settings of whoever runs the tests."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with knobs.scope(cache_dir=tmp_path / "cache", arch=None, schedule=None, debug=False):
        yield


def refused(capsys, *words):
    """The message of a command line that is refused, and that leaves nothing behind."""
    before = sorted(Path.cwd().iterdir())
    code = main(list(words))
    out, err = capsys.readouterr()
    assert code == 2, (code, out[:500], err[:500])
    assert out == ""
    check_message(err)
    assert sorted(Path.cwd().iterdir()) == before
    return err


# --- expressions ----------------------------------------------------------------------------------
SYNTAX = [
    "", " ", "\t", "(", ")", "()", "x @", "@ w", "x @ @ w", "x @ w.T)", "((x @ w.T)", "x @ w.T,,",
    "x w", "x @ w.T;", "x @ w.T; x", "x = w", "x @= w", "x @ w.T\n+ 1", "x\\\n@ w.T",
    "import os", "def f(): pass", "return x", "del x", "assert x", "pass", "yield x", "await x",
    "x @ w.T if", "lambda", "lambda x: x", "x @ w.T +* 1", "1x", "x..T", ".T", "x.", "x[", "x[]",
    "'", '"', "'''", "f'{x}'", "b'x'", "\\", "$", "?", "!", "x ! w", "x <> w", "x === w", "x ?: w",
    "x @ w.T\x00", "\x00", "\x1b[2J", "x\r@ w.T", "x\x0b@ w.T", "\ufeffx @ w.T", "x\u2028@ w.T",
    "x @ w.T\u202e", "\ud800", "x @ \udcff", "😀", "x @ 😀", "π @ w", "x × w", "x−w", "“x”",
    "0x", "0b2", "1__0", "1e", "0777", "1_", "...", "x @ ...", "None", "True", "x @ w.T is None",
]  # fmt: skip
NODES = [
    "x if w else x", "x and w", "x or w", "not x", "x in w", "x not in w", "x is w", "lambda: x",
    "(y := x @ w.T)", "[x]", "[]", "{x}", "{}", "{x: w}", "{'a': x}", "[v for v in x]",
    "(v for v in x)", "{v for v in x}", "*x", "(*x,)", "relu(*x)", "relu(**x)", "print(x)",
    "x @ w.T << 1", "x @ w.T >> 1", "x @ w.T ^ 1", "x @ w.T % 2", "x @ w.T // 2", "0 < x @ w.T < 1",
    "x[0]", "x[K]", "x[1:]", "x[::2]", "x[:, 0]", "x[w]", "x[x]", "x[-1]", "x['a']", "x[None, 0]",
    "x[:, :, :]", "x[None]", "x @ w.T @ x", "x @ x", "w @ w",
    "x @ w", "w @ x", "x.T @ w", "x", "x.T", "x + w", "relu(x)", "1", "1.5", "x @ w.T, 3",
    "x @ w.T, x", "(x @ w.T, (x @ w.T, 1))", ", ".join(["x @ w.T"] * 9), "x @ w.T + x", "2 @ 3",
    "x @ 2", "2 @ w", "x @ w.T @ x", "relu(x @ w.T) @ w", "x.astype('e4m3') @ w.T",
    "x @ w.T == x", "(x @ w.T) & 1", "~(x @ w.T)", "(x @ w.T) | 2",
    "exp(x @ w.T > 0)", "(x @ w.T > 0) + (x @ w.T > 1)",
]  # fmt: skip
NAMES = [
    "y", "X @ w.T", "x @ W.T", "xx @ w.T", "np", "pg", "np.x", "gelu", "x @ relu", "sum", "x @ sum",
    "__import__('os')", "__import__('os').system('true')", "open('/etc/passwd')", "eval('x')",
    "exec('x')", "exit()", "quit()", "globals()", "().__class__", "x.__class__", "x.__dict__",
    "x.shape", "x.dtype", "x.mT", "x.real", "x.sum()", "x.tofile('f')", "x.astype", "x.T()", "x()",
    "x.T.q", "np.e()", "np.pi(x)", "np.linalg.norm(x)", "np.random.rand(2)", "np.tau", "np.nan",
    "np.save('f', x)", "np.load('f')", "os.system('true')", "foo(x @ w.T)", "gelo(x @ w.T)",
    "argmax(x @ w.T)", "max(x @ w.T, 2)", "min(x @ w.T, w)", "einsum(x, w)", "repeat(x, 2)",
    "sort(x)", "softmin(x @ w.T)", "cast(x @ w.T)", "relu()", "relu(x, w)", "clip(x @ w.T)",
    "clip(x @ w.T, 0)",
    "clip(x @ w.T, 0, 1, 2)", "where(x @ w.T)", "gelu(x @ w.T, approximate='x')",
    "gelu(x @ w.T, approximate=1)", "leaky_relu(x @ w.T, slop=0.1)", "relu(x=x @ w.T, x=w)",
    "relu(y=x @ w.T)", "add(x @ w.T)", "add(x @ w.T, 1, 2)", "x.astype()",
    "(x @ w.T).astype('f99')",
    "(x @ w.T).astype(f16)", "(x @ w.T).astype('tf32')", "(x @ w.T).astype('s4')",
    "(x @ w.T).astype('i4')", "(x @ w.T).astype('f64')", "(x @ w.T).astype('f16', 'f32')",
    "(x @ w.T).astype(dtype='f16')", "(x @ w.T).astype(16)", "(x @ w.T).astype('')",
    LONG, f"{LONG}(x)", f"x.{LONG}", f"np.{LONG}(x)", f"x @ w.T + '{LONG[:3000]}'",
    f"(x @ w.T).astype('{LONG[:3000]}')", f"relu({LONG[:3000]}=x)",
]  # fmt: skip
NUMBERS = [
    "x @ w.T + 1e300", "x @ w.T * -1e39", "x @ w.T * 1e-300", "x @ w.T * 1j",
    "x @ w.T + 1" + "0" * 400, "x @ w.T + 1 / 0", "x @ w.T + 0 ** -1", "x @ w.T + 9 ** 9 ** 9",
    "x @ w.T + (-8) ** 0.5", "x @ w.T * (1).T", "x @ w.T * (1 @ 2)", "x @ w.T + (1 < 2).T",
    "x @ w.T + True", "x @ w.T + None", "x @ w.T + 'a'", "x @ w.T + b'a'", "x @ w.T + (1, 2)",
    "x @ w.T + ()", "x @ w.T + -'a'", "x @ w.T + (1)[0]",
    f"x @ w.T + {DIGITS[:3000]}", f"x @ w.T + 0x{'f' * 3000}",
]  # fmt: skip
DEPTHS = [
    "(" * 150 + "x @ w.T", "(" * 250 + "x @ w.T" + ")" * 250, "[" * 500, "-" * 4000 + "x",
    "x @ w.T" + " + 1" * 500, "x" + ".T" * 1000, "relu(" * 300 + "x" + ")" * 300,
    "x + " * 5000 + "x", "x" + "[:]" * 500, "~" * 300 + "x", "not " * 500 + "x",
    "x if w else " * 200 + "x", "lambda: " * 300 + "x", "x" + " @ w" * 300,
]  # fmt: skip
EXPRESSIONS = [*SYNTAX, *NODES, *NAMES, *NUMBERS, *DEPTHS]


def named(text):
    return ascii(text[:40]).strip("'") + ("…" if len(text) > 40 else "")


@pytest.mark.parametrize("text", EXPRESSIONS, ids=named)
def test_expressions(capsys, text):
    refused(capsys, "generate", "-o", "out", *ARCH, "--", text, *XW)


# --- operands -------------------------------------------------------------------------------------
OPERANDS = [
    "", " ", "x", "x:", ":bf16[M,K]", "x::bf16[M,K]", "x:bf16", "x:bf16[]", "x:bf16[M]",
    "x:bf16[M,K,L]", "x:bf16[M,K", "x:bf16 M,K]", "x:bf16[M;K]", "x:bf16[M,,K]",
    "x:bf16[,]", "x:bf16[M,]", "x:bf16[M K]", "x:bf16[M][K]", "x:bf16(M,K)", "x:bf16<M,K>",
    "x bf16[M,K]", "x=bf16[M,K]", "x:bf17[M,K]", "x:[M,K]", "x:float64[M,K]", "x:int32[M,K]",
    "x:s32[M,K]", "x:bool[M,K]", "x:f32[M,K]", "x:s8[M,K]", "x:e4m3[M,K]", "x:e5m2[M,K]",
    "x:tf32[M,K]", "x:bf16[0,K]", "x:bf16[-1,K]", "x:bf16[M,0]", "x:bf16[1.5,K]", "x:bf16[1e3,K]",
    "x:bf16[M+1,K]", "x:bf16[2*M,K]", "x:bf16[M,K]:", "x:bf16[M,K]:diagonal", "x:bf16[M,K]:ROW",
    "x:bf16[M,K]:col:col", "x:bf16[M,K]@", "x:bf16[M,K]@0", "x:bf16[M,K]@1", "x:bf16[M,K]@3",
    "x:bf16[M,K]@-2", "x:bf16[M,K]@2.5", "x:bf16[M,K]@@2", "x:bf16[M,K]@16:col",
    f"x:bf16[M,K]@{DIGITS}", "x:bf16[i,K]", "x:bf16[j,K]", "x:bf16[M,k]", "x:bf16[M,x]",
    "x:bf16[w,K]", "x:bf16[M,64]", "x:bf16[M,L]", "x:bf16[mod,K]", "x:bf16[floor,K]",
    "x:bf16[k_tiles,K]", "x:bf16[M,2147483647]", f"x:bf16[{10**30},K]", f"x:bf16[{DIGITS},K]",
    f"x:bf16[-{DIGITS},K]", f"x:bf16[{LONG},K]+", f"{LONG}", f"{LONG}:bf16[M,K]", "x:bf16[é,K]",
    "é:bf16[M,K]", "x:ｂf16[M,K]", "x:bf16[M\x00,K]", "\x1b[2Jx:bf16[M,K]",
    "x:bf16[\ud800,K]", "w:bf16[M,K]", "y:bf16[M,K]", "1:bf16[M,K]", "x y:bf16[M,K]",
    "x:bf16[١,K]", "None", "x:None[M,K]", "--", "x:bf16[M,K]x:bf16[M,K]", "[M,K]", "bf16[M,K]",
    "x:bf16[class,K]!", "../x:bf16[M,K]", "x:bf16[*,K]", "x:bf16[...,K]", "x:bf16[:,K]",
]  # fmt: skip


@pytest.mark.parametrize("text", OPERANDS, ids=named)
def test_operands(capsys, text):
    words = ["generate", "-o", "out", *ARCH, "--", "relu(x @ w.T)", text, XW[1]]
    refused(capsys, *words)


@pytest.mark.parametrize(
    "operands",
    [[], XW[:1], [*XW, "b:f32[N]"], [*XW, XW[0]], [XW[0]] * 2, [*XW] * 20, ["x"], ["--", "--"]],
)
def test_numbers_of_operands(capsys, operands):
    refused(capsys, "generate", "x @ w.T", *operands, *ARCH, "-o", "out")


# --- options --------------------------------------------------------------------------------------
OPTIONS = [
    ["--size"], ["--size", "M"], ["--size", "M="], ["--size", "=4"], ["--size", "M=x"],
    ["--size", "M=-1"], ["--size", "M=0"], ["--size", "M=1.5"], ["--size", "M=1e3"],
    ["--size", "M==4"], ["--size", "M:4"], ["--size", "M=4,N=4"], ["--size", "M=4 N=4"],
    ["--size", "Q=4"], ["--size", "m=4"], ["--size", "M=4", "M=8"], ["--size", "M=4", "M=4"],
    ["--size", "M=4", "--size", "M=8"], ["--size", f"M={10**30}"], ["--size", "M=2147483648"],
    ["--size", f"M={DIGITS}"], ["--size", f"{LONG}=4"], ["--size", LONG], ["--size", "M=٤"],
    ["--size", "\x1b[2J"], ["--size", ""], ["--size", "x=4"], ["--static"], ["--static", "M"],
    ["--static", "Q", "--size", "Q=4"], ["--static", "M", "--size", "N=4"],
    ["--static", "M", "--size", "M=0"], ["--static", "M", "--size", f"M={10**15}"],
    ["--static", "", "--size", "M=4"], ["--static", LONG, "--size", "M=4"], ["--arch"],
    ["--arch", ""], ["--arch", "sm_81"],  ["--arch", "sm_"],
     ["--arch", "gfx942"], ["--arch", LONG], ["--arch", "\x1b[2J"],
     ["--arch", "../sm_80"], ["--arch", "sm_9999999999"],
    ["--out-dtype"], ["--out-dtype", "f64"], ["--out-dtype", ""], ["--out-dtype", "tf32"],
    ["--out-dtype", "bool8"], ["--out-dtype", "s16"], ["--out-dtype", "f16", "f16"],
    ["--out-dtype", LONG], ["--out-dtype", "float64"], ["--acc-dtype"], ["--acc-dtype", "f16"],
    ["--acc-dtype", "s32"], ["--acc-dtype", "f64"], ["--acc-dtype", ""], ["--acc-dtype", LONG],
    ["--schedule"], ["--schedule", ""], ["--schedule", "nowhere.toml"], ["--schedule", "/"],
    ["--schedule", "."], ["--schedule", "/dev/null"], ["--schedule", LONG], ["--schedule", "\x00"],
    ["--schedule", "AUTO"], ["--name"], ["--name", ""], ["--name", "a b"], ["--name", "1a"],
    ["--name", "a-b"], ["--name", "a\\"], ["--name", "a\n"], ["--name", "../a"], ["--name", "é"],
    ["--name", "\x00"], ["--json="], ["--seed", "1"], ["--frobnicate"], ["-x"], ["--stage", "cuda"],
    ["--out"], ["--size", "M=4", "--", "extra"], ["-o"], [f"--{LONG}"], ["-\x1b[2J"],
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=lambda words: named(" ".join(words)))
def test_options(capsys, options):
    arch = () if "--arch" in options else ARCH
    refused(capsys, "generate", "x @ w.T", *XW, "-o", "out", *arch, *options)


COMMANDS = [
    [], [""], ["draw"], ["Generate"], ["gen erate"], [LONG], ["\x1b[2J"], ["--frobnicate"], ["-"],
    ["--"], ["help"], ["generate"], ["show"], ["check"], ["run"], ["cache"], ["cache", "burn"],
    ["cache", "info", "clear"], ["targets", "extra"], ["env", "extra"], ["tune"], ["tune", "x"],
    ["tune", "--budget", "x"], ["tune", "--budget", "0"], ["tune", "--budget", "-1"],
    ["tune", "--suite", "nosuch"], ["tune", "x @ w.T", *XW, "--suite", "llm"],
    ["tune", "x @ w.T", *XW, "--schedule", "a.toml"], ["bench", "--suite", "nosuch"],
    ["bench", "--rows", "("], ["bench", "--rows", "nosuchrow"], ["bench", "--budget", "nan"],
    ["bench", "--budget", "x"], ["bench", "--repeats", "0"], ["bench", "--peers", "nosuch"],
    ["bench", "--replay", "nowhere.json"], ["bench", "--baseline", "nowhere.json"],
    ["bench", "--report", "--out", "nowhere.json"], ["show", "x @ w.T", *XW, "--stage"],
    ["show", "x @ w.T", *XW, *ARCH, "--stage", "llvm"], ["show", "x @ w.T", *XW, *ARCH, "--jsonl"],
    ["run", "x @ w.T", *XW, *ARCH, "--seed", "x"], ["check", "nowhere.cu"],
    ["check", "nowhere.cu", "nowhere.toml"], ["check", "nowhere.ptx", "nowhere.toml"],
    ["check", "nowhere.cu", "x:bf16[M,K]"], ["check", "a.cu", "b.toml", "c.toml"],
    ["check", "nowhere.cu", "nowhere.toml", "--size", "M=4"], ["check", ".cu", ".toml"],
    ["generate", "nowhere.py", *XW], ["generate", "nowhere.py:f", *XW], ["generate", ".py:f", *XW],
    ["generate", "nowhere.py:", *XW], ["generate", "nowhere.py:1", *XW], ["generate", "a:b", *XW],
    ["generate", "nowhere.py:f:g", *XW], ["generate", f"{LONG}.py:f", *XW],
    ["generate", "\x00.py:f", *XW], ["generate", "/dev/null.py:f", *XW],
    ["generate", "f.py: f", *XW],
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: named(" ".join(words)))
def test_commands(capsys, words):
    refused(capsys, *words)


# --- files ----------------------------------------------------------------------------------------
FILES = {
    "empty": b"",
    "nothing": b"up = None\n",
    "number": b"up = 3\n",
    "text": b"up = 'x @ w.T'\n",
    "class": b"class up:\n    pass\n",
    "class of two": b"class up:\n    def __init__(self, x, w): pass\n",
    "builtin": b"up = len\n",
    "type": b"up = dict\n",
    "module": b"import os as up\n",
    "coroutine": b"async def up(x, w):\n    return x @ w.T\n",
    "generator": b"def up(x, w):\n    yield x @ w.T\n",
    "no arguments": b"def up():\n    return 1\n",
    "three arguments": b"def up(x, w, b):\n    return x @ w.T + b\n",
    "other names": b"def up(a, b):\n    return a @ b.T\n",
    "keyword only": b"def up(x, *, w):\n    return x @ w.T\n",
    "syntax": b"def up(x:\n",
    "tabs": b"def up(x, w):\n\treturn x\n        return w\n",
    "not utf-8": b"\xff\xfe\x00u\x00p",
    "nul": b"def up(x, w): return x @ w.T\x00\n",
    "encoding": b"# coding: nosuch\ndef up(x, w): return x\n",
    "import": b"import no_such_module\n",
    "division": b"1 / 0\n",
    "exit": b"import sys\nsys.exit(0)\n",
    "exit late": b"import sys\ndef up(x, w):\n    sys.exit(0)\n",
    "quit": b"quit()\n",
    "system exit": b"raise SystemExit\n",
    "base exception": b"raise BaseException('stop')\n",
    "generator exit": b"raise GeneratorExit\n",
    "recursion": b"def up(x, w):\n    return up(x, w)\n",
    "recursion at once": b"def f(): f()\nf()\n",
    "long message": b"raise ValueError('q' * 100000)\n",
    "many lines": b"raise ValueError('a\\n' * 5)\n",
    "escape": b"raise ValueError('\\x1b[2J\\x07')\n",
    "surrogate": b"raise ValueError('\\ud800')\n",
    "no text": b"class E(Exception):\n    def __str__(self): return 3\nraise E\n",
    "returns none": b"def up(x, w):\n    pass\n",
    "returns its argument": b"def up(x, w):\n    return x\n",
    "returns text": b"def up(x, w):\n    return 'x'\n",
    "returns many": b"def up(x, w):\n    return (x @ w.T,) * 100\n",
    "returns a dict": b"def up(x, w):\n    return {'y': x @ w.T}\n",
    "if": b"def up(x, w):\n    return x @ w.T if x @ w.T > 0 else x\n",
    "while": b"def up(x, w):\n    while x @ w.T:\n        pass\n",
    "for": b"def up(x, w):\n    return sum(x @ w.T)\n",
    "item": b"def up(x, w):\n    v = x @ w.T\n    v[0] = 1\n    return v\n",
    "inplace": b"def up(x, w):\n    x @= w\n    return x\n",
    "float": b"def up(x, w):\n    return x @ w.T * float(x)\n",
    "array": b"import numpy as np\ndef up(x, w):\n    return np.array(x) @ np.array(w)\n",
    "captured": b"import numpy as np\nc = np.ones(3)\ndef up(x, w):\n    return x @ w.T + c\n",
    "size": b"import numpy as np\ndef up(x, w):\n    return x @ w.T + np.arange(x.shape[0])\n",
    "einsum": b"import numpy as np\ndef up(x, w):\n    return np.einsum('mk,nk->m', x, w)\n",
    "sort": b"import numpy as np\ndef up(x, w):\n    return np.sort(x @ w.T)\n",
    "concatenate": b"import numpy as np\ndef up(x, w):\n    return np.concatenate([x, w])\n",
    "nested list": b"def up(x, w):\n    return x @ w.T + [[1.0]]\n",
    "object": b"def up(x, w):\n    return x @ w.T + object()\n",
    "itself": b"def up(x, w):\n    return x @ w.T + up\n",
    "huge": b"def up(x, w):\n    return x @ w.T + 10**400\n",
    "huge digits": b"def up(x, w):\n    return x @ w.T + 10**5000\n",
    "complex": b"def up(x, w):\n    return x @ w.T * 1j\n",
    "operations": b"def up(x, w):\n    v = x @ w.T\n    for n in range(2000):\n        v = v + n\n"
    b"    return v\n",
    "another thread": b"import threading\ndef up(x, w):\n    return x @ w.T + threading.Lock()\n",
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES.keys())
def test_python_files(capsys, tmp_path, content):
    file = tmp_path / "model.py"
    file.write_bytes(content)
    refused(capsys, "generate", f"{file}:up", *XW, *ARCH, "-o", "out")


SCHEDULES = {
    "binary": b"\xff\xfe\x00",
    "empty": b"",
    "not toml": b"format = = 1",
    "yaml": b"format: 1\n",
    "json": b'{"format": 1}',
    "no format": b"name = 'x'\n",
    "other format": b"format = 2\n",
    "format text": b"format = '1'\n",
    "format float": b"format = 1.0\n",
    "format true": b"format = true\n",
    "unknown key": b"format = 1\nfrobnicate = 1\n",
    "long key": b"format = 1\n" + LONG.encode() + b" = 1\n",
    "long value": b"format = 1\natom = '" + LONG.encode() + b"'\n",
    "many keys": b"format = 1\n" + b"".join(b"k%d = 1\n" % n for n in range(500)),
    "twice": b"format = 1\nformat = 1\n",
    "table twice": b"format = 1\n[tile]\n[tile]\n",
    "not a table": b"format = 1\ntile = 3\n",
    "array of tables": b"format = 1\n[[tile]]\n",
    "deep": b"format = 1\na" + b".a" * 400 + b" = 1\n",
    "brackets": b"format = 1\na = " + b"[" * 3000 + b"]" * 3000 + b"\n",
    "zero stages": b"format = 1\n[pipeline]\nstages = 0\n",
    "negative": b"format = 1\n[tile.cta]\nm = -128\n",
    "zero tile": b"format = 1\n[tile.cta]\nm = 0\n",
    "huge tile": b"format = 1\n[tile.cta]\nm = 1000000000000\n",
    "digits": b"format = 1\n[tile.cta]\nm = " + DIGITS.encode() + b"\n",
    "float": b"format = 1\n[tile.cta]\nm = 64.0\n",
    "nan": b"format = 1\n[tile.cta]\nm = nan\n",
    "inf": b"format = 1\n[pipeline]\nstages = inf\n",
    "text": b"format = 1\n[pipeline]\nstages = 'three'\n",
    "true": b"format = 1\n[pipeline]\nstages = true\n",
    "date": b"format = 1\n[pipeline]\nstages = 2026-01-01\n",
    "list": b"format = 1\n[pipeline]\nstages = [3]\n",
    "choice": b"format = 1\n[loops]\nk = 'sideways'\n",
    "order": b"format = 1\n[pipeline]\norder = ['mma', 'mma']\n",
    "order empty": b"format = 1\n[pipeline]\norder = []\n",
    "order numbers": b"format = 1\n[pipeline]\norder = [1, 2]\n",
    "atom": b"format = 1\natom = 'm1n1k1'\n",
    "device": b"format = 1\ndevice = 'sm_1'\n",
    "other device": b"format = 1\ndevice = 'sm_90a'\n[roles]\nform = 'cooperative'\n",
    "swizzle": b"format = 1\n[smem]\nswizzle = 'xor'\n",
    "warp": b"format = 1\n[tile.cta]\nm = 64\n[tile.warp]\nm = 48\n",
    "stages": b"format = 1\n[pipeline]\nstages = 4000000\ndistance = 1\n",
    "min_blocks": b"format = 1\nmin_blocks = 1000000\n",
    "escape": b'format = 1\nname = "\\u001b[2J"\natom = "\\u001b[2J"\n',
    "name number": b"format = 1\nname = 3\n",
}


@pytest.mark.parametrize("content", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_schedule_files(capsys, tmp_path, content):
    file = tmp_path / "schedule.toml"
    file.write_bytes(content)
    words = ["generate", "x @ w.T", *XW, *ARCH, "-o", "out", "--schedule", str(file)]
    refused(capsys, *words)


# --- Python ---------------------------------------------------------------------------------------
def product(*signature, function=lambda x, w: x @ w.T, **options):
    return (
        pg.fuse(function, name="f")
        .compile(*signature, **{"arch": "sm_80", "single": True, **options})
        .source
    )


GOOD = ("bf16[M,K]", "bf16[N,K]")
CALLS = {
    "no signature": lambda: product(),
    "one description": lambda: product(GOOD[0]),
    "a list": lambda: product(GOOD),
    "numbers": lambda: product(1, 2),
    "none": lambda: product(None, None),
    "bytes": lambda: product(b"bf16[M,K]", b"bf16[N,K]"),
    "arrays": lambda: product(np.ones((2, 2)), np.ones((2, 2))),
    "sizes by number": lambda: product(*GOOD, sizes={1: 2}),
    "size text": lambda: product(*GOOD, sizes={"M": "4"}),
    "size none": lambda: product(*GOOD, sizes={"M": None}),
    "size float": lambda: product(*GOOD, sizes={"M": 4.0}),
    "size nan": lambda: product(*GOOD, sizes={"M": float("nan")}),
    "size true": lambda: product(*GOOD, sizes={"M": True}),
    "size huge": lambda: product(*GOOD, sizes={"M": 10**30}),
    "size digits": lambda: product(*GOOD, sizes={"M": 10**5000}),
    "size digits below": lambda: product(*GOOD, sizes={"M": -(10**5000)}),
    "size array": lambda: product(*GOOD, sizes={"M": np.arange(3)}),
    "static huge": lambda: product(*GOOD, static="M", sizes={"M": 10**5000}),
    "static text": lambda: product(*GOOD, static="M", sizes={"M": "4"}),
    "static unknown": lambda: product(*GOOD, static=("Q",), sizes={"Q": 4}),
    "out number": lambda: product(*GOOD, out_dtype=16),
    "out complex": lambda: product(*GOOD, out_dtype=np.complex64),
    "out many": lambda: product(*GOOD, out_dtype=["f16"] * 3),
    "out object": lambda: product(*GOOD, out_dtype=object()),
    "acc none": lambda: product(*GOOD, acc_dtype=None),
    "arch list": lambda: product(*GOOD, arch=["sm_80"]),
    "arch empty": lambda: product(*GOOD, arch=""),
    "schedule none": lambda: product(*GOOD, schedule=None),
    "schedule number": lambda: product(*GOOD, schedule=3),
    "schedule dict": lambda: product(*GOOD, schedule={"stages": 3}),
    "exit": lambda: product(*GOOD, function=lambda x, w: exit(0)),
    "keyboard": lambda: product(*GOOD, function=lambda x, w: x @ w.T + input),
    "constant": lambda: product(*GOOD, function=lambda x, w: x @ w.T * 1e300),
    "digits": lambda: product(*GOOD, function=lambda x, w: x @ w.T * 10**5000),
    "long text": lambda: product(*GOOD, function=lambda x, w: x @ w.T + "q" * 10**6),
    "deep": lambda: product(*GOOD, function=lambda x, w: sum([x @ w.T, *range(999)])),
    "size as number": lambda: product(*GOOD, function=lambda x, w: x @ w.T * int(x.shape[0])),
    "reshape": lambda: product(*GOOD, function=lambda x, w: (x @ w.T).reshape("a", None, 2.5)),
    "transpose": lambda: product(*GOOD, function=lambda x, w: (x @ w.T).transpose(5, -9)),
    "astype": lambda: product(*GOOD, function=lambda x, w: (x @ w.T).astype({})),
    "clip": lambda: product(*GOOD, function=lambda x, w: (x @ w.T).clip("a", [])),
    "index": lambda: product(*GOOD, function=lambda x, w: (x @ w.T)["a" * 10**5]),
    "pow": lambda: product(*GOOD, function=lambda x, w: (x @ w.T) ** "a"),
    "compare": lambda: product(*GOOD, function=lambda x, w: (x @ w.T) > "a"),
    "where": lambda: product(*GOOD, function=lambda x, w: np.where(x @ w.T)),
    "stack": lambda: product(*GOOD, function=lambda x, w: np.stack([x, w])),
    "ufunc of two": lambda: product(*GOOD, function=lambda x, w: np.divmod(x @ w.T, 2)),
    "attribute": lambda: product(*GOOD, function=lambda x, w: getattr(x @ w.T, "q" * 10**5)),
}  # fmt: skip


@pytest.mark.parametrize("make", CALLS.values(), ids=CALLS.keys())
def test_calls(make):
    with pytest.raises(PolygenError) as caught:
        make()
    check_message(f"polygen: {caught.value}\n")


def test_there_are_enough():
    numbers = map(len, (EXPRESSIONS, OPERANDS, OPTIONS, COMMANDS, FILES, SCHEDULES, CALLS))
    assert sum(numbers) >= 300


def test_what_they_share_is_right(capsys):
    """So that no table is refused for what all its entries have in common."""
    assert main(["generate", "-o", "-", *ARCH, "--", "relu(x @ w.T)", *XW]) == 0
    assert "__global__" in capsys.readouterr().out
