"""Which kernels leave the reciprocals of short forms to the special function unit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import polygen as pg
from polygen.schedule.load import load_schedule
from polygen.schedule.sums import SPECIAL_UNIT

FOLDER = Path(__file__).parents[3] / "schedules" / "sm_90a"
PINGPONG, COOPERATIVE = "pingpong_128x128x64", "cooperative_128x256x64"
WRITING = "pingpong_128x128x64_s5_n4"
SIGNATURE = ("bf16[M,K]", "bf16[N,K]")
FEW = {"M": 8192}


def kernel(function, schedule=PINGPONG, **options):
    given = load_schedule(FOLDER / f"{schedule}.toml")
    if schedule == WRITING:  # a producer of threads needs more registers
        roles = replace(given.roles, producer_registers=80, consumer_registers=208)
        given = replace(given, name="writing", roles=roles)
    return pg.fuse(function).compile(*SIGNATURE, arch="sm_90a", schedule=given, **options)


def by_unit(found):
    return "short_reciprocal(float x) {\n  float y;" in found.source


def silu(x, w):
    return pg.silu(x @ w.T)


def gelu(x, w):
    return pg.gelu(x @ w.T, approximate="tanh") * 0.5


def sigmoid(x, w):
    return pg.sigmoid(x @ w.T)


def relu(x, w):
    return pg.relu(x @ w.T)


def exact_gelu(x, w):
    return pg.gelu(x @ w.T)


def gated_operand(x, w):
    return pg.silu(x) @ w.T


def computed_operand(x, w):
    return pg.silu(pg.silu(x) @ w.T)


def used_twice(x, w):
    h = pg.silu(x)
    return (h @ w.T) * h


def in_f32(x, w):
    return pg.silu(x @ w.T).astype("f32")


@pytest.mark.parametrize("function", [silu, gelu, sigmoid])
def test_one_consumer_at_a_time_has_them_by_the_special_unit(function):
    found = kernel(function)
    assert found.sums.reciprocals == SPECIAL_UNIT
    assert SPECIAL_UNIT in found.sums.text
    assert SPECIAL_UNIT in found.show("plan")
    assert by_unit(found)
    assert found.check().ok


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (silu, {"schedule": COOPERATIVE}),
        (silu, {"invariant": ("M",)}),
        (computed_operand, {"schedule": WRITING}),
        (gated_operand, {"schedule": WRITING}),
        (in_f32, {"schedule": WRITING}),
        (relu, {}),
        (exact_gelu, {}),
    ],
    ids=[
        "consumers together",
        "invariant",
        "beside an operand's",
        "an operand's",
        "f32",
        "relu",
        "gelu",
    ],
)
def test_all_others_have_them_by_steps(function, options):
    found = kernel(function, **options)
    assert found.sums.reciprocals == ""
    assert not by_unit(found)


def test_what_producers_compute_has_steps_where_results_are_of_it_too():
    kernel = pg.fuse(used_twice).compile("bf16[M,256]", "bf16[256,256]", arch="sm_90a", sizes=FEW)
    assert kernel.sums.reciprocals == "" and not by_unit(kernel)


def test_kernels_in_order_say_which_of_them_has_them_so():
    def layers(x, w, u):
        return pg.silu(x @ w) @ u

    types = ("bf16[M,1024]", "bf16[1024,4096]", "bf16[4096,1024]")
    made = [
        pg.fuse(layers).compile(*types, arch="sm_90a", sizes={"M": rows}) for rows in (4096, 1024)
    ]
    forms = [[one.schedule.roles.form for one in kernel.kernels[:1]] for kernel in made]
    assert forms == [["pingpong"], ["cooperative"]]
    assert made[0].sums.reciprocals == f"layers_1: {SPECIAL_UNIT}" and not made[1].sums.reciprocals
    assert made[0].sums.text != made[1].sums.text


def test_kernels_with_other_reciprocals_are_of_other_sums():
    pingpong, cooperative = (kernel(silu, schedule).sums for schedule in (PINGPONG, COOPERATIVE))
    assert pingpong.orders == cooperative.orders
    assert pingpong.text != cooperative.text and pingpong.digest != cooperative.digest
    plain = [kernel(relu, schedule).sums.text for schedule in (PINGPONG, COOPERATIVE)]
    assert plain[0] == plain[1]
