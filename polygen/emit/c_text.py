"""The C of leaves, read: what a leaf's text does, as functions of the state of its threads.

Leaves are written in a small part of C: declarations, assignments, loops, conditions and calls on
numbers, and on arrays in registers. `read` makes statements of such a text, and each is a Python
function that changes a `State` (`polygen.emit.run_text`). What else C has is refused by name: a
text that cannot be read cannot be proved.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from polygen.emit.c_tokens import ASSIGNED, LEVEL, TYPES, tokens
from polygen.emit.run_text import (
    Argument,
    Called,
    Constant,
    Handler,
    Name,
    State,
    assign,
    choose,
    declare,
    load,
)
from polygen.emit.text_parts import (
    Statement,
    Value,
    block,
    cast_of,
    element,
    function,
    index,
    part,
    scope,
    two,
)
from polygen.emit.text_values import Pointer, as_float, mixed, negated, token, width_of
from polygen.errors import UndecidedText, VerifyError


@functools.lru_cache(maxsize=512)
def read(text: str) -> tuple[Statement, ...]:
    """The statements of a text.

    Raises:
        UndecidedText: it has what leaves are not written in.
        VerifyError: it declares a name twice in one scope, which compilers refuse.
    """
    reader = _Reader(text)
    found = []
    while reader.kind != "end":
        found.append(reader.statement())
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def read_value(text: str) -> Value:
    """The value of an expression.

    Raises:
        UndecidedText: it is none that leaves are written in.
    """
    reader = _Reader(text)
    found = reader.value()
    if reader.kind != "end":
        raise reader.refused()
    return found


class _Reader:
    """Reads one text, from its first token on."""

    def __init__(self, text: str) -> None:
        self.text, self.tokens, self.place = text, tokens(text), 0
        self.declared: list[set[str]] = [set()]  # names, of each scope that is open

    @property
    def kind(self) -> str:
        return self.tokens[self.place][0]

    @property
    def now(self) -> str:
        return self.tokens[self.place][1]

    def next(self) -> str:
        self.place += 1
        return self.tokens[self.place - 1][1]

    def taken(self, sign: str) -> bool:
        if self.now != sign or self.kind == "text":
            return False
        self.place += 1
        return True

    def need(self, sign: str) -> None:
        if not self.taken(sign):
            raise self.refused()

    def refused(self) -> UndecidedText:
        near = " ".join(text for _, text in self.tokens[max(self.place - 8, 0) : self.place + 4])
        return UndecidedText(f"leaves are not written with {self.now!r} here", where=near)

    # --- statements ------------------------------------------------------------------------------
    def statement(self) -> Statement:
        if self.taken("{"):
            inside = []
            with self._scope():
                while not self.taken("}"):
                    inside.append(self.statement())
            return scope(block(tuple(inside)))
        if self.taken(";"):
            return block(())
        if self.now in ("if", "for") and self.kind == "name":
            with self._scope():
                return self._if() if self.next() == "if" else self._for()
        if self.now in ("continue", "break", "return"):
            return self._leave(self.next())
        if self.taken("asm"):
            return self._instruction()
        declares = self.now in TYPES or self.kind == "words"
        found = self._declaration() if declares else self._expressions()
        self.need(";")
        return found

    def _leave(self, word: str) -> Statement:
        value = None if self.now == ";" else self.value()
        self.need(";")

        def run(state: State) -> None:
            if value is not None:
                assign(Name(word), "", value, state)
            state.leave(word)

        return run

    @contextlib.contextmanager
    def _scope(self) -> Iterator[None]:
        self.declared.append(set())
        yield
        self.declared.pop()

    def _if(self) -> Statement:
        self.need("(")
        before: Statement = block(())
        if self.now in TYPES:
            before = self._declaration()
            self.need(";")
        condition = self.value()
        self.need(")")
        then = self.statement()
        otherwise = self.statement() if self.taken("else") else block(())

        def run(state: State) -> None:
            before(state)
            state.either(condition(state), then, otherwise)

        return run

    def _for(self) -> Statement:
        self.need("(")
        first = self._declaration()
        self.need(";")
        condition = self.value()
        self.need(";")
        step = self._expressions()
        self.need(")")
        body = self.statement()

        def run(state: State) -> None:
            first(state)
            state.repeat(condition, body, step)

        return scope(run)

    def _instruction(self) -> Statement:
        """One instruction, whose results are a function of what it takes; none changes nothing."""
        self.taken("volatile")
        self.need("(")
        text, parts = "", 0
        operands: list[list[Value]] = [[], [], []]  # results, what is taken, what is overwritten
        kept: list[Value] = []  # results that are taken, too
        while self.kind == "text":
            text += self.next()[1:-1]
        while self.taken(":"):
            while self.kind == "text":
                constraint = self.next()
                if parts < len(operands) - 1:
                    self.need("(")
                    operands[parts].append(self.value())
                    self.need(")")
                    kept += operands[parts][-1:] if "+" in constraint else ()
                self.taken(",")
            parts += 1
        self.need(")")
        self.need(";")
        results, taken, _ = operands
        if not text:
            return block(())

        def run(state: State) -> None:
            given = [load(state, one(state)) for one in (*taken, *kept)]
            for number, place in enumerate(results):
                assign(place, "", Constant(mixed(text, number, *given)), state)

        return run

    def _declaration(self) -> Statement:
        kind, made = self._type(), []
        while True:
            while self.now in ("*", "const", "__restrict__"):
                self.next()
            name, dims = self.next(), []
            if name in self.declared[-1]:
                raise VerifyError(f"a text declares {name} twice in one scope")
            self.declared[-1].add(name)
            while self.taken("["):  # [] has as many as are given
                dims.append(None if self.now == "]" else self.value())
                self.need("]")
            given: Any = None
            if self.taken("="):
                given = self._given(kind)
            made.append(functools.partial(declare, kind, name, tuple(dims), given))
            if not self.taken(","):
                return block(tuple(made))

    def _given(self, kind: str) -> Any:
        """What a variable is declared with."""
        if self.now == "[" and kind == "auto":
            return Constant(self._function())
        return self._list() if self.now == "{" else self.value()

    def _function(self) -> Handler:
        """A function that knows what is known where it stands, and what it is called with."""
        for sign in "[&](":
            self.need(sign)
        parameters: list[tuple[str, bool]] = []
        with self._scope():
            while not self.taken(")"):
                self._type()
                changed = self.taken("&")
                parameters.append((self.next(), changed))
                self.declared[-1].add(parameters[-1][0])
                self.taken(",")
            if self.taken("__attribute__"):
                for sign in ("(", "(", "always_inline", ")", ")"):
                    self.need(sign)
            self.need("{")
            inside = []
            while not self.taken("}"):
                inside.append(self.statement())
        return function(tuple(parameters), block(tuple(inside)))

    def _type(self) -> str:
        words = [self.next()] if self.kind == "words" else []
        while self.now in TYPES:
            words.append(self.next())
        if self.now == "*":
            words.append("*")
        return " ".join(word for word in words if word != "const")

    def _list(self) -> Any:
        """Values in braces, as tuples of tuples."""
        self.need("{")
        found = []
        while not self.taken("}"):
            found.append(self._list() if self.now == "{" else self.value())
            self.taken(",")
        return tuple(found)

    def _expressions(self) -> Statement:
        """Assignments and calls, one behind the other."""
        made = [self._expression()]
        while self.taken(","):
            made.append(self._expression())
        return block(tuple(made))

    def _expression(self) -> Statement:
        if self.now in ("++", "--"):
            sign, place = self.next()[0], self.unary()
            return functools.partial(assign, place, sign, Constant(1))
        place = self.value()
        if self.kind == "sign" and self.now in ASSIGNED:
            return functools.partial(assign, place, self.next()[:-1], self._assigned())

        def run(state: State) -> None:
            load(state, place(state))

        return run

    def _assigned(self) -> Value:
        """What is assigned; where it is an assignment itself, that is made first."""
        if self.taken("{"):
            self.need("}")
            return Constant(0)
        value = self.value()
        if not self.taken("="):
            return value
        inner = functools.partial(assign, value, "", self._assigned())

        def both(state: State) -> Any:
            inner(state)
            return load(state, value(state))

        return both

    # --- values ----------------------------------------------------------------------------------
    def value(self) -> Value:
        found = self._binary(0)
        if not self.taken("?"):
            return found
        first = self.value()
        self.need(":")
        return functools.partial(choose, found, first, self.value())

    def _binary(self, least: int) -> Value:
        found = self.unary()
        while self.kind == "sign" and LEVEL.get(self.now, -1) >= least:
            sign = self.next()
            found = two(sign, found, self._binary(LEVEL[sign] + 1))
        return found

    def unary(self) -> Value:
        if self.kind == "sign" and self.now in ("-", "!", "~", "+"):
            sign, inner = self.next(), self.unary()
            return lambda state: negated(sign, load(state, inner(state)))
        if self.taken("&"):  # what lies in registers is known by where
            return self.unary()
        if self.taken("*"):
            pointer = self.unary()
            return lambda state: index(state, pointer(state), 0)
        if self.now == "(" and self.tokens[self.place + 1][1] in TYPES:
            self.next()
            kind = self._cast_type()
            self.need(")")
            return cast_of(kind, self.unary())
        return self._behind(self._primary())

    def _cast_type(self) -> str:
        kind = self._type()
        while self.taken("*"):
            pass
        return kind

    def _primary(self) -> Value:
        kind, text = self.kind, self.next()
        if kind == "number":
            return Constant(int(text, 0))
        if kind == "real" and not float(text.rstrip("f")):
            return Constant(as_float(0))  # whose bits are known
        if kind in ("real", "text"):
            return Constant(token(text))
        if kind == "called" or (kind == "name" and self.now == "("):
            return self._call(text)
        if kind == "name":
            while self.taken("."):
                text += f".{self.next()}"
            return self._call(text) if self.now == "(" else Name(text)
        if text == "(":
            found = self.value()
            self.need(")")
            return found
        self.place -= 1
        raise self.refused()

    def _call(self, text: str) -> Value:
        name, _, template = text.rstrip(">").partition("<")
        self.need("(")
        arguments: list[Value] = []
        while not self.taken(")"):
            if self.now == "[":  # no function is defined inside of a text
                raise self.refused()
            arguments.append(self.value())
            self.taken(",")
        if name == "reinterpret_cast":
            width, of = width_of(template.removeprefix("const ").rstrip("*")), arguments[0]
            if width is None:
                raise self.refused()
            real = "float" in template
            return lambda state: Pointer(load(state, of(state)), width, real=real)
        given = tuple(part.strip() for part in template.split(",")) if template else ()

        def run(state: State) -> Any:
            return state.call(Called(state, name, given, [Argument(state, a) for a in arguments]))

        return run

    def _behind(self, found: Value) -> Value:
        while True:
            if self.taken("["):
                found = element(found, self.value())
                self.need("]")
            elif self.taken("."):
                found = part(found, self.next())
            else:
                return found
