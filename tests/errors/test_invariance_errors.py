"""Promises about bits that cannot be kept: refused, with what is in the way."""

from __future__ import annotations

import pytest
from invariant_samples import SAMPLES
from runtime_samples import cupy_array

import polygen as pg
from polygen import invariance
from polygen.cli import main
from polygen.decision import decision
from polygen.errors import InvarianceError, PolygenError
from polygen.hardware.device import device
from polygen.knobs import scope
from polygen.pipeline import generate, with_sizes
from polygen.schedule.load import shipped

SIGNATURE = ("bf16[M,K]", "bf16[N,K]")
SIZES = {"M": 64, "N": 256, "K": 256}
product = pg.fuse(lambda x, w: x @ w.T, name="product")


@pytest.mark.parametrize(
    ("invariant", "message"),
    [
        (("K",), "S0 sums over K (another length of a sum is another sum). Dims that can be: M, N"),
        (("Q",), "no dim is called 'Q'. Dims that can be: M, N"),
        ("MN", "no dim is called 'MN'"),
        (("M", "K"), "S0 sums over K"),
        ((3,), '3 is no name of a dim. Write ("M",)'),
    ],
)
def test_a_dim_that_cannot_be_invariant_is_named(invariant, message):
    with pytest.raises(InvarianceError) as caught:
        product.compile(*SIGNATURE, arch="sm_80", sizes=SIZES, invariant=invariant)
    assert str(caught.value).startswith("invariant: ")
    assert message in str(caught.value)


def test_a_dim_that_is_a_row_here_and_summed_there_is_refused():
    square = pg.fuse(lambda x, w: x @ w, name="square")
    with pytest.raises(InvarianceError, match="S0 sums over M"):
        square.compile("bf16[M,M]", "bf16[M,N]", arch="sm_80", invariant="M")


def test_a_dim_of_both_sides_can_be_invariant():
    gram = pg.fuse(lambda x, y: x @ y.T, name="gram")
    made = gram.compile("bf16[M,K]", "bf16[M,K]", arch="sm_80", sizes={"M": 64}, invariant="M")
    assert made.sums.invariant == ("M",)


def test_a_constant_is_refused():
    with pytest.raises(InvarianceError, match=r"M is a constant .* Leave M out of static"):
        product.compile(*SIGNATURE, arch="sm_80", sizes=SIZES, static="M", invariant="M")
    fused = pg.fuse(lambda x, w: x @ w.T, name="f", invariant={"M": {"x": 0}})
    with pytest.raises(InvarianceError, match="the dim is the constant 16"):
        fused.compile("bf16[16,K]", "bf16[N,K]", arch="sm_80")


@pytest.mark.parametrize(
    ("invariant", "message"),
    [
        ("M", "'M' does not say which axes"),
        ({"M": 0}, "'M': 0 does not say which axes"),
        ({"M": {}}, "does not say which axes"),
        ({"M": {"y": 0}}, "no parameter is called 'y'. Parameters: x, w"),
        ({"M": {"x": -1}}, "axis -1 of x"),
        ({"M": {"x": True}}, "axis True of x"),
        ({"M": {"x": 0}, "L": {"x": 0}}, "axis 0 of x"),
        ({"not a name": {"x": 0}}, "does not say which axes"),
    ],
)
def test_axes_that_do_not_exist_are_named(invariant, message):
    with pytest.raises(InvarianceError) as caught:
        pg.fuse(lambda x, w: x @ w.T, name="f", invariant=invariant)
    assert message in str(caught.value)


def test_an_axis_that_an_operand_lacks_is_named():
    fused = pg.fuse(lambda x, w: x @ w.T, name="f", invariant={"M": {"x": 2}})
    with pytest.raises(InvarianceError, match="x has 2 axes, and no axis 2"):
        fused.compile(*SIGNATURE, arch="sm_80")
    pytest.importorskip("cupy")
    arrays = (cupy_array((8, 16), 1 << 40, dtype="f2"), cupy_array((8, 16), 2 << 40, dtype="f2"))
    with pytest.raises(InvarianceError, match="x has 2 axes, and no axis 2"), scope(arch="sm_80"):
        fused._kernel_for(arrays)


def aligned_and_not():
    sample = SAMPLES["bias, gelu"]
    sizes = {"M": 4096, "N": 4096, "K": 4096}
    return with_sizes(sample.program(), sizes), with_sizes(sample.program(), sizes | {"K": 4097})


def test_no_schedule_of_the_class_is_said_with_the_class():
    aligned, rows = aligned_and_not()
    target, sizes = device("sm_90a"), {"M": 64, "N": 4096, "K": 4097}
    text = generate(aligned, target, sizes, "auto").plan.sums.text
    schedule, _ = decision(rows, target, sizes, text)  # threads shift rows into place
    assert schedule.specialised
    with pytest.raises(InvarianceError) as caught:
        decision(rows, target, sizes, text.replace("ascending", "descending"))
    assert "no schedule makes the sums that kernels for other sizes make: S0: wgmma_m64k16" in str(
        caught.value
    )
    assert "x:bf16[M,K]@2" in str(caught.value)


def test_a_given_schedule_of_another_class_is_refused():
    aligned, _ = aligned_and_not()
    target, sizes = device("sm_90a"), {"M": 64, "N": 4096, "K": 4096}
    text = generate(aligned, target, sizes, "auto").plan.sums.text
    other = next(s for s in shipped(target) if not s.specialised)
    with pytest.raises(InvarianceError, match="the sums are of another class: S0: m16n8k16"):
        generate(aligned, target, sizes, other, sums=text)


def test_a_choice_that_was_wrong_about_its_sums_is_not_emitted(monkeypatch):
    """What is proved of the trees decides, not what the choice took a schedule for."""
    monkeypatch.setattr(invariance, "ASCENDING", "descending")
    with pytest.raises(InvarianceError, match="the sums are of another class"):
        product.compile(*SIGNATURE, arch="sm_80", sizes=SIZES, invariant="M")


def test_the_command_line_says_it_in_one_message(capsys):
    words = ["x @ w.T", "x:bf16[M,K]", "w:bf16[N,K]", "--arch", "sm_80"]
    assert main(["show", *words, "--invariant", "K"]) == 2
    assert "S0 sums over K" in capsys.readouterr().err
    assert issubclass(InvarianceError, PolygenError)
