"""Calls of iterations that are too few to go together say which registers they mean."""

import pytest

from polygen.poly import ast
from polygen.poly.ast import Binary, Block, Call, Const, If, Var
from polygen.poly.residues import with_residues

SIZE = Var("k_tiles")


def after(condition, *arguments):
    """The arguments of a call under a condition."""
    found = with_residues(If(condition, Call("f", arguments), None), "k_tiles", 4)
    assert isinstance(found, If) and isinstance(found.then, Call)
    return found.then.arguments


def test_a_number_that_leaves_one_rest_says_so():
    last = Binary("==", Binary("%", Binary("+", SIZE, Const(1)), Const(4)), Const(0))
    (made,) = after(last, Binary("-", SIZE, Const(1)))
    assert str(made) == "((((k_tiles - 1) / 4) * 4) + 2)"
    whole = Binary("==", Binary("%", SIZE, Const(4)), Const(0))
    assert [str(one) for one in after(whole, SIZE)] == ["((k_tiles / 4) * 4)"]


@pytest.mark.parametrize("argument", [Const(3), Var("i"), Binary("+", Var("i"), SIZE)])
def test_numbers_that_are_known_or_depend_on_loops_stay(argument):
    some = Binary(">=", SIZE, Const(4))
    assert after(some, argument) == (argument,)


def test_a_number_that_leaves_several_rests_stays():
    assert after(Binary(">=", SIZE, Const(2)), SIZE) == (SIZE,)


def test_the_other_branch_has_the_other_sizes():
    even = Binary("==", Binary("%", SIZE, Const(2)), Const(0))
    odd = Binary("==", Binary("%", SIZE, Const(4)), Const(3))
    inner = If(odd, Call("f", (SIZE,)), Call("g", (SIZE,)))
    found = with_residues(Block((If(even, Call("e", (SIZE,)), inner),)), "k_tiles", 4)
    text = ast.text(found)
    assert "f((((k_tiles / 4) * 4) + 3))" in text and "g((((k_tiles / 4) * 4) + 1))" in text
    assert "e(k_tiles)" in text  # leaves 0 or 2
