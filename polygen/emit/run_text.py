"""What the text of a leaf does, in all threads at once: on numbers that tell elements apart.

A text is run as its threads run it, whole arrays of threads at a time, with the masks that its
conditions make. Numbers are whole; what is computed with floats is a function of which nothing is
known but that equal arguments have equal results (`mixed`): so a result tells from which elements,
in which order of operations, it was made. Only sums and products are what they are, of 64 bits,
and combining terms of a fold adds them up, so that any order of terms is the same. What memory
does is said by whoever proves something of the text, as functions of its calls.

So all of a text is proved that decides which elements go where: it is run for every thread, and
what it does to elements does not depend on their values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polygen.emit.text_values import (
    BINARY,
    LETTERS,
    NARROW,
    Part,
    Place,
    Pointer,
    Register,
    SharedArray,
    cast,
    its_own,
    mixed,
    of_each,
    parts_of,
    token,
    word_of,
)
from polygen.errors import UndecidedText, VerifyError

_MOST_TURNS = 1 << 14
_LEFT = ("continue", "break", "return")
Handler = Callable[["Called"], Any]


@dataclass(slots=True)
class State:
    """Threads that run a text.

    Attributes:
        names: what is known by name: numbers, arrays with one number for each thread.
        handlers: what calls do, by the function's name.
        threads: how many.
        mask: who runs what follows; True: all.
        gone: who is no more in this turn of a loop, and in this loop; and has returned.
        scope: names that have been declared, each with what was called so before.
    """

    names: dict[str, Any]
    handlers: Mapping[str, Handler]
    threads: int
    mask: Any = True
    gone: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(_LEFT, False))
    scope: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def nobody(self) -> bool:
        """Whether no thread runs what follows."""
        return self.mask is not True and not np.any(self.mask)

    def call(self, called: Called) -> Any:
        """What a call gives: what is known of the function, or a number for its arguments."""
        family = f"{called.name.partition('_')[0]}_"
        known = self.handlers.get(called.name) or self.handlers.get(family)
        known = known or self.names.get(called.name)  # of the text's own
        return known(called) if callable(known) else mixed(called.name, *called.values)

    def either(
        self, condition: Any, then: Callable[[State], None], otherwise: Callable[[State], None]
    ) -> None:
        """Run the one or the other, each by whom it is for."""
        condition = load(self, condition)
        if not isinstance(condition, np.ndarray):
            (then if condition else otherwise)(self)
            return
        before = self.mask
        for own, run in ((condition.astype(bool), then), (~condition.astype(bool), otherwise)):
            self.mask = self._left(_both(before, own))
            if not self.nobody:
                run(self)
        self.mask = self._left(before)

    def repeat(
        self,
        condition: Callable[[State], Any],
        body: Callable[[State], None],
        step: Callable[[State], None],
    ) -> None:
        """Run a loop behind its declaration."""
        before, outside = self.mask, dict(self.gone)
        self.gone["break"] = False
        for _ in range(_MOST_TURNS):
            inside = load(self, condition(self))
            if isinstance(inside, np.ndarray):
                self.mask = _both(self.mask, inside.astype(bool))
            elif not inside:
                break
            if self.nobody:
                break
            entered = self.mask
            self.gone["continue"] = False
            body(self)
            self.gone["continue"] = False
            self.mask = self._left(entered)
            if self.nobody:
                break
            step(self)
        else:
            raise VerifyError("a loop has no end")
        self.gone |= {"break": outside["break"], "continue": outside["continue"]}
        self.mask = self._left(before)

    def leave(self, word: str) -> None:
        """Whoever is here is no more in this turn, in this loop, or at all."""
        own = np.ones(self.threads, bool) if self.mask is True else self.mask
        self.gone[word] = own if self.gone[word] is False else self.gone[word] | own
        self.mask = np.zeros(self.threads, bool)

    def _left(self, mask: Any) -> Any:
        for word in _LEFT:
            if self.gone[word] is not False:
                mask = _both(mask, ~self.gone[word])
        return mask

    def declared(self, name: str, value: Any) -> None:
        """A name that is known from here on."""
        self.scope.append((name, self.names.get(name)))
        self.names[name] = value

    def forget(self, before: int) -> None:
        """Names that were declared behind the first so many are what they were."""
        while len(self.scope) > before:
            name, value = self.scope.pop()
            self.names[name] = value
            if value is None:
                del self.names[name]

    def who(self) -> Any:
        """Who runs what follows, as an array."""
        return of_each(self.mask, self.threads)


@dataclass(frozen=True, slots=True)
class Argument:
    """What a function is called with: a value, and where it lies."""

    state: State
    given: Callable[[State], Any]

    @property
    def value(self) -> Any:
        """The number."""
        return load(self.state, self.given(self.state))

    @property
    def width(self) -> int:
        """How many bytes it leads to, if it is a pointer whose type says so; else 0."""
        found = self.given(self.state)
        return found.bytes if isinstance(found, Pointer) else 0

    @property
    def pointer(self) -> Any:
        """The pointer itself, or the number."""
        return self.given(self.state)

    @property
    def place(self) -> Register:
        """Where it lies in registers."""
        found = self.given(self.state)
        if not isinstance(found, Register):
            raise UndecidedText("a function works on what is no register")
        return found

    def store(self, value: Any) -> None:
        """Write it."""
        assign(self.given, "", Constant(value), self.state)

    def fill(self, values: Sequence[Any]) -> None:
        """Write registers side by side."""
        first = self.place
        for at, value in enumerate(values):
            place = Register(first.base, first.at + at, ())
            assign(Constant(place), "", Constant(value), self.state)

    def held(self, count: int) -> list[Any]:
        """What is in registers side by side."""
        first = self.place
        return [load(self.state, Register(first.base, first.at + at, ())) for at in range(count)]


@dataclass(frozen=True, slots=True)
class Called:
    """A call.

    Attributes:
        state: of the threads.
        name: of the function.
        template: its arguments.
        arguments: what it is called with.
    """

    state: State
    name: str
    template: tuple[str, ...]
    arguments: list[Argument]

    @property
    def values(self) -> list[Any]:
        """Of its arguments."""
        return [one.value for one in self.arguments]

    def of_all(self, number: int) -> Any:
        """An argument in every thread."""
        return of_each(self.arguments[number].value, self.state.threads)


def array(state: State, *dims: int, kind: str = "") -> Register:
    """An array in registers."""
    return Register(np.zeros((math.prod(dims), state.threads), np.int64), 0, dims, kind)


# --- values --------------------------------------------------------------------------------------
def load(state: State, value: Any) -> Any:
    """A value, of a place in registers what is there."""
    if isinstance(value, int | np.ndarray):
        return value
    if isinstance(value, Register) and not value.dims:
        if isinstance(value.at, np.ndarray):
            return value.base[_inside(value, state), np.arange(state.threads)]
        return value.base[_inside(value, state)]
    if isinstance(value, Pointer):
        return value.address
    if isinstance(value, Place):
        return state.call(Called(state, "load", (), [Argument(state, Constant(_there(value)))]))
    return value


def _there(place: Place) -> Any:
    """The pointer, or the number, that leads to a place."""
    if isinstance(place.index, int) and place.index == 0:
        return place.address
    return BINARY["+"](place.address, place.index)


def _inside(value: Register, state: State) -> Any:
    at, who = value.at, state.mask
    if isinstance(at, int) and 0 <= at < len(value.base):
        return at
    at = np.asarray(at)
    if at.min() < 0 or at.max() >= len(value.base):
        wrong = (at < 0) | (at >= len(value.base))
        if np.ndim(at) == 0 or np.any(wrong & np.asarray(who)):
            raise VerifyError(f"registers have {len(value.base)} elements")
        return np.clip(at, 0, len(value.base) - 1)
    return value.at


@dataclass(frozen=True, slots=True)
class Name:
    """What is called so."""

    name: str

    def __call__(self, state: State) -> Any:
        """The value that a state has for it."""
        if self.name in state.names:
            return state.names[self.name]
        of, _, part = self.name.rpartition(".")
        whole = state.names.get(of)
        if isinstance(whole, Part):
            return whole.parts[part]
        if isinstance(whole, Register) and part == "of":
            return whole  # of a word
        raise UndecidedText(f"nothing is called {self.name} here")


@dataclass(frozen=True, slots=True)
class Constant:
    """What is the same in every state."""

    value: Any

    def __call__(self, state: State) -> Any:
        """The value."""
        return self.value


def choose(condition: Any, first: Any, second: Any, state: State) -> Any:
    """The one or the other, where it is computed for whom it is for."""
    given = load(state, condition(state))
    if not isinstance(given, np.ndarray):
        return load(state, (first if given else second)(state))
    before, found = state.mask, []
    for own, value in ((given.astype(bool), first), (~given.astype(bool), second)):
        state.mask = _both(before, own)
        found.append(0 if state.nobody else load(state, value(state)))
    state.mask = before
    return np.where(given.astype(bool), found[0], found[1])


# --- statements ----------------------------------------------------------------------------------
def declare(kind: str, name: str, dims: tuple[Any, ...], given: Any, state: State) -> None:
    """A variable, or an array in registers; what is in these before is known as its name[]."""
    word = word_of(kind)
    if word is not None:
        dims = (*dims, Constant(word[1]))
    if not dims:
        state.declared(name, _first_value(kind, name, given, state))
        return
    values = _flat(given) if given is not None else []
    counts = [len(values) if dim is None else int(load(state, dim(state))) for dim in dims]
    if kind.startswith("__shared__"):
        state.declared(name, SharedArray(token(name), tuple(counts), kind))
        return
    made = array(state, *counts, *([len(LETTERS[kind])] if kind in LETTERS else []), kind=kind)
    held = state.names.get(f"{name}[]", token(name)) if given is None else 0
    if isinstance(held, np.ndarray) and len(held) > len(made.base):
        raise VerifyError(f"{name} has {len(made.base)} registers, not {len(held)}")
    made.base[: len(held) if isinstance(held, np.ndarray) else None] = held
    for at, value in enumerate(values):
        made.base[at] = load(state, value(state))
    state.declared(name, made)


def _first_value(kind: str, name: str, given: Any, state: State) -> Any:
    """What a variable is where it is declared."""
    if kind in LETTERS and (given is None or isinstance(given, tuple)):
        return Part(dict.fromkeys(LETTERS[kind], token(name) if given is None else 0))
    value = given(state) if given is not None else token(name)
    if kind.endswith("*") and isinstance(value, Pointer):
        return value
    value = load(state, value)
    return cast(kind, value) if kind in NARROW else its_own(value)


def _flat(given: Any) -> list[Any]:
    if isinstance(given, tuple):
        return [value for one in given for value in _flat(one)]
    return [given]


def assign(
    place: Callable[[State], Any], sign: str, value: Callable[[State], Any], state: State
) -> None:
    """Write a variable, an element in registers, or to memory."""
    made = load(state, value(state))
    found = place(state)
    if isinstance(place, Name) and not isinstance(found, Register):
        name = place.name
        made = BINARY[sign](found, made) if sign else made
        own = its_own(made) if state.mask is True else _merged(state.mask, made, found)
        state.names[name] = own
        return
    if isinstance(found, Place):
        arguments = (_there(found), made)
        given = [Argument(state, Constant(one)) for one in arguments]
        state.call(Called(state, "store", (), given))
        return
    for number, part in enumerate(parts := parts_of(found)):
        word = Register(found.base, found.at + number, ())
        own = made.parts[part] if isinstance(made, Part) else made
        assign(Constant(word), "", Constant(own), state)
    if parts:
        return
    if not isinstance(found, Register) or found.dims:
        raise UndecidedText("this cannot be written")
    made = BINARY[sign](load(state, found), made) if sign else made
    at = _inside(found, state)
    if isinstance(at, np.ndarray):
        who = np.flatnonzero(state.who())
        found.base[at[who], who] = np.broadcast_to(made, (state.threads,))[who]
    else:
        found.base[at] = made if state.mask is True else np.where(state.mask, made, found.base[at])


def _merged(mask: Any, made: Any, found: Any) -> Any:
    """What some threads have now, and the others had."""
    if isinstance(found, Part):
        parts = made.parts if isinstance(made, Part) else dict.fromkeys(found.parts, made)
        return Part({name: np.where(mask, parts[name], old) for name, old in found.parts.items()})
    return np.where(mask, made, found)


def _both(one: Any, other: Any) -> Any:
    return other if one is True else one & other
