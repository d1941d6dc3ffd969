"""Jinja2, as this package uses it, and what it has compiled of the templates.

Compiling the templates of a kernel takes longer than filling them. What is compiled can be taken
out as bytes and put in by another process; each template's own text decides whether it is used.
"""

from __future__ import annotations

import functools
import hashlib
import json
import marshal
import sys
from typing import Any

import jinja2
from jinja2.bccache import Bucket

_OPTIONS: dict[str, Any] = {
    "trim_blocks": True,
    "lstrip_blocks": True,
    "keep_trailing_newline": True,
    "autoescape": False,
    "optimized": False,  # templates compute nothing that could be folded
}


class Compiled(jinja2.BytecodeCache):
    """What templates compile to, by their names.

    Attributes:
        new: whether something was compiled that was not put in.
    """

    def __init__(self) -> None:
        self.new = False
        self._codes: dict[str, bytes] = {}

    @property
    def made_by(self) -> str:
        """What else the code depends on, beside its template: 64 hexadecimal digits."""
        parts = [jinja2.__version__, sys.implementation.cache_tag, _OPTIONS]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        """A template's name alone: wherever polygen is installed, one text is one template."""
        return name

    def load_bytecode(self, bucket: Bucket) -> None:
        """Take a template's code, which Jinja2 refuses where it is of another text."""
        found = self._codes.get(bucket.key)
        if found is not None:
            bucket.bytecode_from_string(found)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Remember a template's code."""
        self._codes[bucket.key] = bucket.bytecode_to_string()
        self.new = True

    def take(self) -> bytes:
        """All code; what is compiled from here on is new."""
        self.new = False
        return marshal.dumps(self._codes)

    def put(self, codes: bytes) -> None:
        """Add what another process took; it must be what that one wrote."""
        self._codes = marshal.loads(codes) | self._codes


@functools.cache
def compiled() -> Compiled:
    """The code of all templates that were rendered in this process, or put in."""
    return Compiled()


@functools.cache
def environment() -> jinja2.Environment:
    """Jinja2 for CUDA text: undefined names are errors, nothing is escaped, no blank lines."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("polygen.emit"),
        undefined=jinja2.StrictUndefined,
        bytecode_cache=compiled(),
        auto_reload=False,
        **_OPTIONS,
    )
