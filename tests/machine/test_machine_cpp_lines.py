"""C++ of every kind: it runs with the right values, or is refused in one line: no tracebacks."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import cpp_lines
import numpy as np
import pytest
from cpp_lines import SNIPPETS

from polygen.errors import PolygenError, PtxError
from polygen.machine import Launch, run
from polygen.runtime.outside import compile_text

pytestmark = pytest.mark.slow  # a compiler takes seconds for all of it
U = 0xFFFFFFFF


def signed(x, bits):
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> bits - 1 else x


def s32(x):
    return signed(x, 32)


def s64(x):
    return signed(x, 64)


def first(x):
    return (x & -x).bit_length()


def cut(a, b):
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def single(x):
    return float(np.uint32(x & U).view("f4"))


def lanes(a, b, bits, rule, negative=False):
    """A rule applied to parts of two words."""
    mask, found = (1 << bits) - 1, 0
    for at in range(0, 32, bits):
        x, y = a >> at & mask, b >> at & mask
        if negative:
            x, y = signed(x, bits), signed(y, bits)
        found |= (int(rule(x, y)) & mask) << at
    return found


def folded(a, b):
    out = 0
    for k in range(a & 15):
        out = out * 31 + (b >> k & 7)
    return out


def stepped(a, b):
    out = 0
    for k in range(5):
        if not a >> k & 1:
            continue
        if b >> k & 1:
            break
        out += k
    return out


RULES = {
    name: value for name, value in globals().items() if callable(value) and name[0].islower()
} | {"np": np, "U": U}


@cache
def ptx(refused: bool) -> str:
    """All lines as kernels of one module; those that are refused in another."""
    chosen = [
        cpp_lines.source(number, body)
        for number, (body, _) in enumerate(SNIPPETS)
        if bool(refusal(body)) == refused
    ]
    return compile_text(cpp_lines.PRELUDE + "".join(chosen), Path("k.cu"), "sm_90")


def refusal(body: str) -> str:
    return next((said for word, said in cpp_lines.REFUSED.items() if word in body), "")


def launch(number: int) -> Launch:
    a, b = (np.random.default_rng(k).integers(0, 2**64, 600, dtype=np.uint64) for k in (0, 1))
    return Launch((1, 1, 1), (256, 1, 1), 0, (a, b, np.zeros(700, np.uint64)), f"k{number}")


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_line_of_cpp(number):
    body, rule = SNIPPETS[number]
    given = launch(number)
    a, b = (column.tolist() for column in given.arguments[:2])
    if said := refusal(body):
        with pytest.raises(PtxError) as met:
            run(ptx(True), given)
        assert said in str(met.value) and "\n" not in str(met.value)
        return
    report = run(ptx(False), given)
    assert report.ok, str(report)
    if rule is None:
        return
    compute = eval(f"lambda a, b, i, A: {rule}", dict(RULES))
    wanted = [
        int(compute(x, y, i, a)) & (2**64 - 1) for i, (x, y) in enumerate(zip(a, b, strict=True))
    ]
    found = report.arrays[-1][:256].tolist()
    wrong = [
        i for i in range(256) if found[i] not in (wanted[i], signed(wanted[i], 32) & (2**64 - 1))
    ]
    assert not wrong, f"thread {wrong[0]}: {found[wrong[0]]}, not {wanted[wrong[0]]}"


def test_a_file_that_cannot_be_compiled_is_refused():
    text = cpp_lines.PRELUDE + cpp_lines.source(0, "out = nothing_there(a)")
    with pytest.raises(PolygenError, match="nothing_there"):
        compile_text(text, Path("k.cu"), "sm_90")
