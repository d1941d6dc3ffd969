"""Loops call their instances in the order of their tree."""

import pytest

from polygen.errors import VerifyError
from polygen.poly.ast import Binary, Block, Call, Const, For, If, Var
from polygen.poly.loop_order import check_order

N, CONTEXT = Var("n"), "[n] -> { : n >= 2 }"
DOMAIN = "[n] -> { a[i] : 0 <= i < n; b[i] : 0 <= i < n }"


def tree(times, *, steps=("a", "b")):
    """Two statements of one loop, in sequence."""
    each = ", ".join(f'{{ filter: "[n] -> {{ {name}[i] }}" }}' for name in steps)
    return (
        f'{{ domain: "{DOMAIN}", child: {{ schedule: "[n] -> [{{ {times} }}]", '
        f"child: {{ sequence: [ {each} ] }} }} }}"
    )


TOGETHER = tree("a[i] -> [(i)]; b[i] -> [(i)]")
LAGGING = tree("a[i] -> [(i)]; b[i] -> [(i + 1)]")
HALVES = tree("a[i] -> [(floor(i/2))]; b[i] -> [(i)]")


def a(at):
    return Call("a", (at,))


def b(at):
    return Call("b", (at,))


def less(left, right):
    return Binary("<", left, right)


def equal(left, right):
    return Binary("==", left, right)


def plus(left, number):
    return Binary("+", left, Const(number))


def loop(body, first=0, name="c0", step=1):
    return For(name, Const(first), less(Var(name), N), step, body, unroll=False)


I = Var("c0")  # noqa: E741
PROLOGUE_AND_STEADY_STATE = Block(
    (a(Const(0)), loop(Block((a(I), b(plus(I, -1)))), first=1), b(plus(N, -1)))
)


@pytest.mark.parametrize(
    ("of", "loops"),
    [
        (TOGETHER, loop(Block((a(I), b(I))))),
        (LAGGING, PROLOGUE_AND_STEADY_STATE),
        # Both branches, one for each iteration.
        (TOGETHER, loop(Block((If(less(I, Const(1)), a(I), a(I)), b(I))))),
        (HALVES, loop(Block((a(Binary("*", Const(2), I)), a(plus(Binary("*", Const(2), I), 1))))),),
        # Iterations by twos.
        (TOGETHER, loop(Block((a(I), b(I), a(plus(I, 1)), b(plus(I, 1)))), step=2)),
        # A first iteration that is peeled off, and one that is left out for it.
        (TOGETHER, Block((a(Const(0)), loop(If(less(Const(0), I), a(I), None)), ))),
        # What one iteration alone has.
        (TOGETHER, loop(Block((If(equal(I, Const(1)), a(Const(1)), None), b(I))))),
    ],
)  # fmt: skip
def test_loops_in_the_order_of_their_tree_are_accepted(of, loops):
    check_order(of, CONTEXT, loops, "loops of the warps")


@pytest.mark.parametrize(
    ("of", "loops", "first", "then"),
    [
        (TOGETHER, loop(Block((b(I), a(I)))), "b", "a"),
        (TOGETHER, Block((loop(b(I)), loop(a(Var("c1")), name="c1"))), "b", "a"),
        # In one iteration, but behind; and an instance that is another iteration's.
        (TOGETHER, loop(Block((b(I), If(equal(I, Const(1)), a(Const(1)), None)))), "b", "a"),
        (TOGETHER, loop(Block((If(equal(I, Const(1)), a(Const(2)), None), b(I)))), "a", "b"),
        # All of one before the other, which the tree has in turns.
        (TOGETHER, Block((loop(a(I)), loop(b(Var("c1")), name="c1"))), "a", "b"),
        (LAGGING, loop(Block((a(I), b(I)))), "b", "a"),
        # Backwards.
        (TOGETHER, loop(a(Binary("-", plus(N, -1), I))), "a", "a"),
        (LAGGING, Block((loop(Block((a(I), b(plus(I, -1)))), first=1), a(Const(0)))),
         "a", "a"),
        (HALVES, loop(a(Binary("-", plus(N, -1), I))), "a", "a"),
        (TOGETHER, Block((If(less(Const(1), N), b(Const(0)), None), a(Const(0)))), "b", "a"),
    ],
)  # fmt: skip
def test_loops_in_another_order_are_refused(of, loops, first, then):
    message = f"loops of the warps: {first} is called before {then}, which the tree has first"
    with pytest.raises(VerifyError, match=message):
        check_order(of, CONTEXT, loops, "loops of the warps")


def test_what_never_runs_together_has_no_order():
    few = If(less(N, Const(3)), b(Const(0)), None)
    many = If(less(Const(3), N), a(Const(0)), None)
    check_order(TOGETHER, CONTEXT, Block((few, many)), "loops")


def test_what_the_tree_leaves_open_may_come_in_either_order():
    unordered = (
        f'{{ domain: "{DOMAIN}", child: {{ schedule: "[n] -> [{{ a[i] -> [(i)]; b[i] -> [(i)] }}]"'
        " } }"
    )
    for pair in ((a(I), b(I)), (b(I), a(I))):
        check_order(unordered, CONTEXT, loop(Block(pair)), "loops")


def test_times_of_remainders_are_followed():
    text = tree("a[i] -> [((i + 1) mod 4)]; b[i] -> [(4)]").replace(
        "a[i] : 0 <= i < n", "a[i] : 0 <= i < 4"
    )
    calls = [a(Const(n)) for n in (3, 0, 1, 2)]
    check_order(text, CONTEXT, Block(tuple(calls)), "loops")
    with pytest.raises(VerifyError, match="a is called before a"):
        check_order(text, CONTEXT, Block(tuple(calls[::-1])), "loops")
