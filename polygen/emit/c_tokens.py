"""The words of C that leaves are written in: tokens, names of types, how tight operators bind."""

from __future__ import annotations

import re

from polygen.errors import UndecidedText

TYPES = frozenset({
    "const", "unsigned", "signed", "int", "float", "double", "long", "short", "char", "bool",
    "void", "auto", "uint2", "uint4", "float2", "__shared__",
})  # fmt: skip
_TOKENS = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|\#[^\n]*
    |(?P<real>\d+\.\d*(?:e[-+]?\d+)?f?|\d+e[-+]?\d+f?)
    |(?P<number>0x[0-9a-fA-F]+|\d+)(?:ULL|LL|u)?
    |(?P<text>"[^"]*")
    |(?P<called>[A-Za-z_]\w*<(?:[^<>;(){}]|<[^<>;(){}]*>)*>(?=\())
    |(?P<words>WordOf<[^<>;(){}]*>)
    |(?P<name>[A-Za-z_]\w*(?:::\w+)*)
    |(?P<sign><<=|>>=|<<|>>|<=|>=|==|!=|&&|\|\||\+\+|--|[-+*/%|^&]=|[-+*/%<>=!&|^~?:;,.(){}\[\]])""",
    re.VERBOSE | re.DOTALL,
)
_LEVELS = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="),
    ("<<", ">>"), ("+", "-"), ("*", "/", "%"),
)  # fmt: skip
LEVEL = {sign: level for level, signs in enumerate(_LEVELS) for sign in signs}
ASSIGNED = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "|=", "&=", "^=", "<<=", ">>="})


def tokens(text: str) -> list[tuple[str, str]]:
    """The kinds and texts of a text's tokens; the last is the end.

    Raises:
        UndecidedText: a character begins none.
    """
    found, place = [], 0
    while place < len(text):
        match = _TOKENS.match(text, place)
        if match is None:
            raise UndecidedText(f"leaves have no {text[place]!r}", where=text[place : place + 60])
        place = match.end()
        if match.lastgroup is not None:
            found.append((match.lastgroup, match[match.lastgroup]))
    return [*found, ("end", "")]
