"""Addresses of fragment loads as they are written: with another number they are refused."""

from __future__ import annotations

import re
from functools import cache

import pytest
from matrix import small

import polygen as pg
from polygen.emit.leaf.load_threads import _address, check_address
from polygen.errors import VerifyError
from polygen.lower.plan import KernelPlan
from polygen.lower.work import Load

CASES = {
    "both along k": ("x @ w.T", ("f16[M,K]", "f16[N,K]"), "sm_80"),
    "both across k": ("x.T @ w", ("f16[K,M]", "f16[K,N]"), "sm_80"),
    "of bytes": ("x @ w.T", ("s8[M,K]", "s8[N,K]"), "sm_80"),
    "of words": ("x @ w.T", ("tf32[M,K]", "tf32[N,K]"), "sm_80"),
}
FUNCTIONS = {"x @ w.T": lambda x, w: x @ w.T, "x.T @ w": lambda x, w: x.T @ w}


@cache
def plan(name: str) -> KernelPlan:
    text, types, arch = CASES[name]
    kernel = pg.fuse(FUNCTIONS[text], name="product")
    return kernel.compile(*types, arch=arch, schedule=small()).passes.plan


@pytest.mark.parametrize("operand", "ab")
@pytest.mark.parametrize("name", CASES)
def test_another_step_is_refused(name, operand):
    of = plan(name)
    work = next(one for one in of.of(Load) if one.operand == operand)
    buffer, tried = of.buffer(work.buffer), 0
    for number in range(work.load.count):
        text = _address(buffer, work, number)
        check_address(text, buffer, work, number)
        # Steps of warps, tiles and k: of loops that go round more than once.
        for one in re.finditer(r"(w_[mn]|\bi) \* (\d+)", text):
            for other in (int(one[2]) * 2, int(one[2]) // 2, int(one[2]) + 1):
                changed = f"{text[: one.start()]}{one[1]} * {other}{text[one.end() :]}"
                if one[1] == "i" and work.tiles == 1:
                    check_address(changed, buffer, work, number)
                    continue
                tried += 1
                with pytest.raises(VerifyError, match="from elsewhere"):
                    check_address(changed, buffer, work, number)
        for changed in (f"{text} + 16", text.replace("slot + ", "slot - "), f"({text}) ^ lane"):
            with pytest.raises(VerifyError, match="from elsewhere"):
                check_address(changed, buffer, work, number)
    assert tried


def test_functions_of_names():
    text = _address(plan("both along k").buffer("ring_a"), plan("both along k").of(Load)[0], 0)
    with pytest.raises(VerifyError, match="nothing is called place_ring_b here"):
        one = plan("both along k")
        changed = text.replace("place_ring_a", "place_ring_b")
        check_address(changed, one.buffer("ring_a"), one.of(Load)[0], 0)
