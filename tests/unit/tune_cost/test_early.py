"""Which kernels begin while those before them end, and when they let the next begin."""

from __future__ import annotations

from dataclasses import replace

import pytest

import polygen as pg
from polygen.decision import decision
from polygen.frontend.program import InOrder
from polygen.hardware.device import device
from polygen.schedule.model import Launches
from polygen.tune.early import AHEAD, EARLY

SIGNATURE = ("bf16[M,K]", "bf16[N,K]")
HOPPER = device("sm_90a")


def chosen(function, sizes, target=HOPPER, order=None, signature=SIGNATURE):
    program = pg.fuse(function, name="f").program(*signature)
    return decision(replace(program, in_order=order), target, dict(zip("MNK", sizes, strict=True)))


def plain(x, w):
    return x @ w.T


def largest(x, w):
    return (x @ w.T).max(axis=1)


@pytest.mark.parametrize(
    ("sizes", "launch"),
    [
        ((16, 4096, 4096), Launches(dependent=True)),  # warpgroups, few rows
        ((1, 4096, 4096), Launches(dependent=True)),  # lanes
        ((128, 4096, 4096), Launches(dependent=True, trigger="loads")),
        ((4096, 4096, 4096), Launches()),  # which take too long
        ((16, 14336, 16384), Launches()),
    ],
)
def test_short_kernels_begin_early(sizes, launch):
    schedule, origin = chosen(plain, sizes)
    assert schedule.launch == launch
    assert (EARLY in origin) == launch.dependent


@pytest.mark.parametrize("name", ["sm_80", "sm_89"])
def test_devices_that_cannot_wait_begin_nothing_early(name):
    assert chosen(plain, (16, 4096, 4096), device(name))[0].launch == Launches()


def test_long_kernels_let_what_follows_begin_behind_their_loads():
    assert chosen(largest, (4096, 4096, 4096))[0].launch == Launches(trigger="loads")


def test_of_several_in_order_the_first_does_not_and_the_others_read_ahead():
    sizes = (16, 4096, 4096)
    first, origin = chosen(plain, sizes, order=InOrder(first=True))
    assert first.launch == Launches()
    assert EARLY not in origin
    later, origin = chosen(plain, sizes, order=InOrder(settled=("w",)))
    assert later.launch == Launches(dependent=True, ahead=True)
    assert origin.endswith(EARLY + AHEAD)
    # With more to bring it is worth it for longer.
    longer, _ = chosen(plain, (16, 8192, 8192), order=InOrder(settled=("w",)))
    assert longer.launch.ahead
    assert not chosen(plain, (16, 8192, 8192))[0].launch.dependent


@pytest.mark.parametrize("settled", [(), ("x", "w")])
def test_nothing_comes_ahead_where_nothing_or_all_is_settled(settled):
    schedule, _ = chosen(plain, (16, 4096, 4096), order=InOrder(settled=settled))
    assert schedule.launch == Launches(dependent=True)


def test_many_rows_of_several_in_order_let_the_next_begin_behind_their_loads():
    order = InOrder(settled=("w",))
    schedule, _ = chosen(plain, (4096, 4096, 4096), order=order)
    assert schedule.launch == Launches(trigger="loads")
