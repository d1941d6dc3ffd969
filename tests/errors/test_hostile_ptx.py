# ruff: noqa: E501 - PTX text
"""PTX that is cut short, huge, or made to do harm: refused with a message, or stopped by a limit."""

from __future__ import annotations

import random

import numpy as np
import pytest
from machine.conftest import KERNELS, to_ptx

from polygen.errors import LaunchError, PolygenError, PtxError, StepLimit
from polygen.machine import Launch, calls, run
from polygen.machine import parse as parser

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"


def entry(body: str, front: str = "") -> str:
    return f"{HEAD}{front}.visible .entry k(.param .u64 p) {{ {body} }}\n"


def tried(ptx: str, **changes) -> None:
    launch = {"grid": (1, 1, 1), "block": (32, 1, 1), "arguments": (np.zeros(32, np.uint32),)}
    run(ptx, Launch(**{**launch, **changes}), max_steps=2000)


@pytest.mark.parametrize(
    "ptx, words",
    [
        ("", "the text has no .entry"),
        ("\1 nothing " * 10, "the text ends inside"),
        ("{" * 50_000, "the text has no .entry"),
        (entry(".reg .b32 %r<1000000000>; ret;"), "it declares 1000000000 registers. At most 1048576"),
        (entry(f".reg .b32 %r<{'9' * 4000}>; ret;"), "registers. At most 1048576"),
        (entry(f".reg .b32 %r<{'9' * 9000}>; ret;"), "cannot be read"),
        (entry(".reg .b32 %r<1000000>; .reg .b32 %s<1000000>; ret;"), "it declares 2000000 registers"),
        (entry(".local .align 4 .b8 big[1000000000000]; ret;"), "big has 1000000000000 bytes. At most 524288"),
        (entry("ret;", ".global .align 4 .b8 big[99999999999];\n"), "big has 99999999999 bytes. At most 1073741824"),
        (entry("ret;", ".global .b8 x[4][1073741824][1073741824];\n"), "At most 1073741824"),
        (entry(".reg .b33 %r<5>; mov.b33 %r1, 0; ret;"), "`mov.b33` is refused"),
        (entry(".reg .b32 %r<5>; mov.u32 %r1, __import__; ret;"), "no name `__import__`"),
        (entry(".reg .b32 %r<5>; mov.u32 %r1, (lambda: 0)(); ret;"), "mov"),
        (entry(f"bra L; {'{ ' * 3000}{'}' * 2999}"), "a kernel body is never closed"),
        (entry("ret;").replace("k(", "k)("), "cannot read"),
        (entry("bra nowhere;"), "no label `nowhere`"),
        (entry("9 9 9;"), "cannot read"),
        (entry(".reg .b128 %q<3>; atom.global.add.b128 %q1, [p], %q2; ret;"), ".add is not modelled"),
    ],
)  # fmt: skip
def test_texts_that_ask_for_too_much_or_make_no_sense(ptx, words):
    with pytest.raises(PtxError) as caught:
        tried(ptx)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_huge_text_is_not_even_read(monkeypatch):
    monkeypatch.setattr(parser, "MOST_TEXT", 1000)
    with pytest.raises(PtxError, match=r"the text has 10.. characters. At most 1000"):
        tried(entry("ret;") + " " * 1000)


def test_calls_that_double_and_double(monkeypatch):
    monkeypatch.setattr(calls, "MOST", 1 << 12)
    front = ".func f0() { ret; }\n"
    front += "".join(
        f".func f{n}() {{ call f{n - 1}; call f{n - 1}; ret; }}\n" for n in range(1, 60)
    )
    with pytest.raises(PtxError, match="k has 4096 instructions or more"):
        tried(entry("call f59; ret;", front))


@pytest.mark.parametrize("body", ["L: bra L;", ".reg .b32 %r<3>; L: add.u32 %r1, %r1, 1; bra L;"])
def test_endless_loops_are_stopped(body):
    with pytest.raises(StepLimit, match="2000 blocks without ending"):
        tried(entry(body))


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"grid": (2**31, 1, 1)}, "a grid of"),
        ({"grid": (1, 65536, 1)}, "a grid of"),
        ({"grid": (2**20, 2**10, 1)}, "more than the machine can run"),
        ({"block": (2**20, 2**20, 1)}, "a block of"),
        ({"shared_bytes": 2**40}, "dynamic"),
        ({"shared_bytes": -1}, "dynamic"),
    ],
)
def test_launches_that_no_machine_can_do(changes, words):
    with pytest.raises(LaunchError, match=words):
        tried(entry("ret;"), **changes)


def test_much_local_memory_runs_few_blocks_at_a_time():
    ptx = entry(".local .align 4 .b8 big[500000]; .reg .b32 %r<3>; st.local.u32 [big+4], 5; ld.local.u32 %r1, [big+4]; ret;")  # fmt: skip
    tried(ptx, grid=(40, 1, 1))


def broken(text: str, chance: random.Random) -> str:
    """A text that is cut, or has a character or a line changed."""
    kind, at = chance.random(), chance.randrange(len(text))
    if kind < 0.3:
        return text[:at]
    if kind < 0.65:
        return text[:at] + chance.choice('{}[]();:,.%@!<>0aZ"$') + text[at + chance.randrange(3) :]
    lines = text.split("\n")
    first, second = chance.randrange(len(lines)), chance.randrange(len(lines))
    if chance.random() < 0.5:
        del lines[first]
    else:
        lines[first], lines[second] = lines[second], lines[first]
    return "\n".join(lines)


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 24))])  # fmt: skip
def test_broken_texts_run_or_are_refused(seed):
    """No other exception than polygen's own, and one line of it."""
    chance = random.Random(seed)
    text = to_ptx((KERNELS / "sum.cu").read_text())
    for _ in range(40):
        ptx = broken(text, chance)
        arrays = (np.zeros(4096, np.float32), np.zeros(4096, np.float32))
        try:
            run(ptx, Launch((1, 1, 1), (256, 1, 1), 0, arrays), max_steps=200)
        except PolygenError as error:
            assert "\n" not in str(error)
