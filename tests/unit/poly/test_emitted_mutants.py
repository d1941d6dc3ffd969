"""Statements of emitted trees and loops that are dropped, doubled or exchanged are refused."""

from dataclasses import replace
from unittest import mock

import pytest
from emitted_mutants import (
    EQUIVALENT,
    KERNELS,
    NEVER_BOTH,
    emitted,
    loop_mutants,
    text_mutants,
)

import polygen as pg
from polygen.errors import VerifyError
from polygen.poly import mapping
from polygen.poly.read_loops import check_loops
from polygen.poly.refine import refine

QUICK = ("warps", "roles, computed f32")
SAMPLE = [pytest.mark.slow, pytest.mark.sample(3)]
EVERY = [pytest.param(name, marks=() if name in QUICK else SAMPLE) for name in KERNELS]
HARMLESS = {what for one in EQUIVALENT for what in one.what}


@pytest.mark.parametrize("name", EVERY)
def test_trees_with_a_mistake_are_refused(name):
    accepted, kinds = set(), set()
    for of in emitted(name):
        for what, changed in text_mutants(of):
            kinds.add(what.split()[2 if what.split()[1] == "before" else -1])
            try:
                refine(changed, necessary=False)
            except VerifyError:
                continue
            accepted.add(what.partition(": ")[2])
    assert accepted <= HARMLESS
    assert {"dropped", "doubled"} <= kinds


@pytest.mark.parametrize("name", EVERY)
def test_loops_with_a_mistake_are_refused(name):
    accepted, kinds = set(), set()
    for of in emitted(name):
        for tree in of.trees:
            for what, changed in loop_mutants(tree):
                kinds.update({"dropped", "doubled", "behind"} & set(what.split()))
                try:
                    check_loops(tree, changed)
                except VerifyError:
                    continue
                accepted.add(what)
    assert accepted <= NEVER_BOTH
    assert kinds == {"dropped", "doubled", "behind"}


@pytest.mark.slow
def test_what_is_listed_as_harmless_is_accepted_of_some_kernel():
    accepted = set()
    for name in KERNELS:
        for of in emitted(name):
            for what, changed in text_mutants(of):
                plain = what.partition(": ")[2]
                if plain not in HARMLESS - accepted:
                    continue
                try:
                    refine(changed, necessary=False)
                except VerifyError:
                    continue
                accepted.add(plain)
    assert accepted == HARMLESS
    assert all(one.reason for one in EQUIVALENT)


@pytest.mark.parametrize(
    ("function", "signature", "lost"),
    [
        (lambda x, w: x @ w.T, ("bf16[M,K]", "bf16[N,K]"), "multiply"),
        pytest.param(
            lambda x, w: pg.silu(x) @ w.T,
            ("f32[4096,512]", "f32[4096,512]"),
            "promote",
            marks=SAMPLE,
        ),
    ],
)
def test_what_is_lost_is_named_before_anybody_asks_when_it_runs(function, signature, lost):
    """The order of sums is asked for before all else is proved."""
    plain = mapping.emitted_of

    def without(*given):
        of = plain(*given)
        trees = [replace(tree, text=_dropped(tree.text, lost)) for tree in of.trees]
        return replace(of, trees=tuple(trees))

    with (
        mock.patch.object(mapping, "emitted_of", without),
        pytest.raises(VerifyError, match=rf"instances: {lost}\[.*\] with .* is never executed"),
    ):
        pg.fuse(function, name="lost").compile(*signature, arch="sm_90a")


def _dropped(text, name):
    domain, child, rest = text.partition('", child')
    at = domain.find(f" {name}[")
    if at < 0:
        return text
    condition = domain.find(" : ", at)
    return f"{domain[:condition]} : 1 = 0 and {domain[condition + 3 :]}{child}{rest}"
