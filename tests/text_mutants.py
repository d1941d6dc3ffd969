"""Texts of leaves with one mistake: another number, name or sign, a term or condition less."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from unittest import mock

import numpy as np

from polygen.emit import text_functions
from polygen.emit.leaf import kind_of
from polygen.emit.leaf.table import before, prove
from polygen.emit.run_text import Called, State, load
from polygen.emit.text_values import Register
from polygen.errors import UndecidedText, VerifyError
from polygen.lower.plan import KernelPlan, Leaf

_SWAPPED = {
    "lane": ("warp", "thread"),
    "thread": ("lane",),
    "warp": ("lane",),
    "w_m": ("w_n",),
    "w_n": ("w_m",),
    "b_m": ("b_n",),
    "b_n": ("b_m",),
    "row": ("column",),
    "column": ("row",),
    "group": ("warp",),
    "min": ("max",),
    "max": ("min",),
    "M": ("N",),
    "N": ("M",),
}
_SIGNS = {
    "+": ("-",), "*": ("+",), "/": ("%",), "%": ("/",), "^": ("+",), "&&": ("||",), ">>": ("<<",),
    "<": ("<=", ">"), ">=": (">",), "<=": ("<",), ">": (">=",), "==": ("!=",), "|": ("+",),
}  # fmt: skip
_TOKEN = re.compile(
    r'//[^\n]*|#[^\n]*|"[^"]*"|\d+\.\d*\w*|0x\w+|(?P<number>(?<![\w.])\d+)(?![\w.])'
    r"|(?P<name>[A-Za-z_]\w*)|(?P<sign> (?:&&|<=|>=|>>|==|[-+*/%^<>|]) )"
)
_TERM = re.compile(r" \+ (?:\([^()]*\)|[\w.]+)(?: [*/%] [\w.]+)*|[\w.]+(?: [*/%] [\w.]+)* \+ ")
_CONDITION = re.compile(r"if \((?!const)[^{};]*?\) (?=\{|[a-z])")


def mutants(text: str) -> Iterator[tuple[str, str]]:
    """What is changed, and the text with that mistake."""
    for one in _TOKEN.finditer(text):
        for new in _others(one):
            changed = f"{text[: one.start()]}{new}{text[one.end() :]}"
            yield (
                f"{_near(text, one.start(), one.end())}: {one[0].strip()} -> {new.strip()}",
                changed,
            )
    for expression, new in ((_TERM, ""), (_CONDITION, "")):
        for one in expression.finditer(text):
            changed = f"{text[: one.start()]}{new}{text[one.end() :]}"
            yield f"{_near(text, one.start(), one.end())}: without {one[0].strip()}", changed


def _others(one: re.Match[str]) -> tuple[str, ...]:
    if one["number"]:
        number = int(one["number"])
        return tuple(
            str(n)
            for n in dict.fromkeys((number + 1, number - 1, number * 2))
            if n >= 0 and n != number
        )
    if one["name"]:
        return _SWAPPED.get(one["name"], ())
    if one["sign"]:
        return tuple(f" {sign} " for sign in _SIGNS.get(one["sign"].strip(), ()))
    return ()


def _near(text: str, start: int, end: int) -> str:
    """The line it is in."""
    begin, stop = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    return text[begin : stop if stop >= 0 else len(text)].strip()


class Recorded:
    """All calls that proofs make of texts, and the registers that texts leave."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def __enter__(self) -> Recorded:
        call, run = State.call, text_functions.run

        def recorded_call(state: State, called: Called) -> object:
            if called.name in ("min", "max"):
                return call(state, called)
            self.calls.append((called.name, called.template, state.who().tobytes()))
            for one in called.arguments:
                given = one.given(state)
                plain = not isinstance(given, Register) or not given.dims
                seen = np.where(state.who(), load(state, given), 0) if plain else given.base
                self.calls.append(b"" if plain else np.asarray(given.at).tobytes())
                self.calls.append(np.asarray(seen).tobytes())
            return call(state, called)

        def recorded_run(*given: object) -> State:
            state = run(*given)
            registers = {n: v.base for n, v in state.names.items() if isinstance(v, Register)}
            self.calls.append(sorted((n, v.tobytes()) for n, v in registers.items()))
            return state

        self.patches = [mock.patch.object(State, "call", recorded_call)]
        for name, module in list(sys.modules.items()):
            if name.startswith("polygen.emit.proofs.") and hasattr(module, "run"):
                self.patches.append(mock.patch.object(module, "run", recorded_run))
        for one in self.patches:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.patches:
            one.stop()


def recorded(plan: KernelPlan, leaf: Leaf, texts: tuple[str, ...]) -> list[object]:
    """What threads do where texts are proved."""
    with Recorded() as found:
        prove(plan, leaf, texts)
    return found.calls


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of the mutants of a leaf's texts.

    Attributes:
        refused: how many.
        undecided: those that cannot be followed, but for names that nothing is called by, which no
            compiler takes.
        accepted: the others, and whether they do the same.
    """

    refused: int
    undecided: tuple[str, ...]
    accepted: tuple[tuple[str, bool], ...]


def tried(plan: KernelPlan, leaf: Leaf, every: int = 1, first: int = 0) -> Tried:
    """Every mutant of a leaf's texts, or from the first one in so many."""
    texts = (*before(plan, leaf), kind_of(leaf).text(plan, leaf).code)
    does, refused, undecided, found = recorded(plan, leaf, texts), 0, [], []
    for at, text in enumerate(texts):
        for name, changed in itertools.islice(mutants(text), first, None, every):
            given = (*texts[:at], changed, *texts[at + 1 :])
            try:
                prove(plan, leaf, given)
            except UndecidedText as error:
                undecided += [] if "nothing is called" in str(error) else [name]
            except VerifyError:
                refused += 1
            else:
                found.append((name, recorded(plan, leaf, given) == does))
    return Tried(refused, tuple(undecided), tuple(found))
