"""Rows and suites: what is measured, in which order; suites are data in ``suites/*.toml``."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cattrs

from polygen.bench.elements import ELEMENTS, Elements
from polygen.bench.operations import FILE, FOLDER, Operation, chains, operation, results
from polygen.errors import BenchError
from polygen.frontend.dtypes import dtype
from polygen.frontend.pitches import pitch_of

ALIGNMENT = 16  # bytes: the widest a signature declares


@dataclass(frozen=True, slots=True)
class Row:
    """One operation of one size.

    Attributes:
        op: name of the operation.
        m: rows of the result.
        n: columns of the result.
        k: length of the sums.
        dtype: of the matrices that are multiplied; `elements` has the rest.
        acc: of the sums; those of s8 are s32 whatever it says.
        pad: elements between the rows of the matrices that are read.
        batch: products side by side, where the operation has a dim B.
    """

    op: str
    m: int
    n: int
    k: int
    dtype: str = "bf16"
    acc: str = "f32"
    pad: int = 0
    batch: int = 1

    @property
    def key(self) -> str:
        """What names the row, ``bias_gelu bf16 4096x4096x512``, a batch before the other sizes."""
        text = f"{self.op} {self.dtype} {'x'.join(map(str, self.sizes.values()))}"
        text += "" if self.acc == "f32" else f" sums {self.acc}"
        return text + (f" pad {self.pad}" if self.pad else "")

    @property
    def operation(self) -> Operation:
        """What is computed."""
        return operation(self.op)

    @property
    def elements(self) -> Elements:
        """The types of everything."""
        return ELEMENTS[self.dtype]

    def type_of(self, name: str) -> str:
        """Of an operand, or of the result, whose name is ""."""
        if not name:
            return self.elements.result
        if name in self.operation.ends:
            return "s32"
        multiplied = self.operation.inner is not None or any(
            name in (x.left[0], x.right[0]) for x in chains(self.operation)
        )
        return self.elements.multiplied if multiplied else self.elements.others

    @property
    def out_dtype(self) -> str | None:
        """What to ask polygen for; None where it gives the result's type by itself."""
        return None if self.elements.default else self.elements.result

    @property
    def sizes(self) -> dict[str, int]:
        """By dim."""
        known = {"B": self.batch, "M": self.m, "N": self.n, "K": self.k}
        return {dim: known[dim] for dim in self.operation.dims}

    @property
    def symbols(self) -> dict[str, int]:
        """The sizes of dims that kernels do not know as numbers."""
        fixed = self.operation.inner.fixed if self.operation.inner else ()
        return {dim: size for dim, size in self.sizes.items() if dim not in fixed}

    @property
    def pitches(self) -> dict[str, int]:
        """Of the matrices that are read, where there is something between their rows."""
        matrices = [name for name, dims in self.operation.operands if len(dims) > 1]
        return {pitch_of(x): self.shape(x)[-1] + self.pad for x in matrices if self.pad}

    def shape(self, name: str) -> tuple[int, ...]:
        """Of an operand."""
        return self._sized(dict(self.operation.operands)[name])

    @property
    def products(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the products, in the order of `chains`."""
        inner = self.operation.inner
        if inner is not None:
            return tuple(self._sized(dims[:-1]) for dims in inner.products)
        return tuple(self._sized(self.operation.product(x)) for x in chains(self.operation))

    @property
    def results(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the results: pointwise steps keep that of their product."""
        if self.operation.inner is not None:
            return self.products[-1:]
        return tuple(self.products[number] for number in results(self.operation))

    def _sized(self, dims: Sequence[str]) -> tuple[int, ...]:
        return tuple(self.sizes[dim] for dim in dims)

    @property
    def signature(self) -> list[str]:
        """The operands as `polygen.api.Fused.compile` takes them."""
        made = []
        fixed = self.operation.inner.fixed if self.operation.inner else ()
        for name, dims in self.operation.operands:
            kind = self.type_of(name)
            row_bytes = (self.shape(name)[-1] + self.pad) * dtype(kind).bytes
            aligned = math.gcd(ALIGNMENT, row_bytes) if self.pad and len(dims) > 1 else ALIGNMENT
            suffix = "" if aligned == ALIGNMENT else f"@{aligned}"
            written = (str(self.sizes[dim]) if dim in fixed else dim for dim in dims)
            made.append(f"{name}:{kind}[{','.join(written)}]{suffix}")
        return made

    @property
    def operations(self) -> float:
        """Multiplications and additions of all products."""
        nested = self.operation.inner
        if nested is not None:
            return nested.share * sum(2.0 * math.prod(self._sized(d)) for d in nested.products)
        inner = (self.operation.multiplied(x)[0][-1] for x in chains(self.operation))
        made = zip(self.products, inner, strict=True)
        return float(sum(2 * math.prod(shape) * self.sizes[dim] for shape, dim in made))

    @property
    def bytes(self) -> float:
        """What is read and written at least: every operand once, every result once."""
        read = sum(
            math.prod(self.shape(name)) * dtype(self.type_of(name)).bytes
            for name in self.operation.names
        )
        written = sum(map(math.prod, self.results)) * dtype(self.elements.result).bytes
        return float(read + written)


@dataclass(frozen=True, slots=True)
class Suite:
    """Rows that belong together, the most telling first."""

    name: str
    title: str
    rows: tuple[Row, ...]
    digest: str  # of its file and the operations
    held_out: bool = False  # judges what ships: never tuned for


@dataclass(frozen=True, slots=True)
class _Group:
    ops: list[str]
    shapes: list[list[int]]  # M, N, K; a batch before them where the operations have one
    dtype: str = "bf16"
    acc: str = "f32"
    pad: int = 0
    of: str = ""  # class and origin, for people


@dataclass(frozen=True, slots=True)
class _File:
    title: str
    group: list[_Group]
    held_out: bool = False


def suite_names() -> tuple[str, ...]:
    """All suites, as the command line names them."""
    return tuple(sorted(p.stem.replace("_", "-") for p in FOLDER.glob("*.toml") if p.name != FILE))


@functools.cache
def suite(name: str) -> Suite:
    """A suite by name; ``held_out`` is as good as ``held-out``.

    Raises:
        BenchError: there is none, or its file is wrong.
    """
    name = name.replace("_", "-")
    if name not in suite_names():
        raise BenchError(
            f"no suite is called {name!r}",
            where="--suite",
            nearest=f"Suites: {', '.join(suite_names())}",
        )
    path = FOLDER / f"{name.replace('-', '_')}.toml"
    text = path.read_bytes()
    digest = hashlib.sha256(text + (FOLDER / FILE).read_bytes()).hexdigest()[:12]
    tables = tomllib.loads(text.decode())
    title, rows = read(tables, path.name)
    return Suite(name, title, rows, digest, bool(tables.get("held_out")))


def read(tables: dict[str, Any], where: str) -> tuple[str, tuple[Row, ...]]:
    """Title and rows from parsed TOML.

    Raises:
        BenchError: a field is missing or unknown, or a value is impossible.
    """
    try:
        found = cattrs.Converter(forbid_extra_keys=True).structure(tables, _File)
    except cattrs.BaseValidationError as error:
        problems = "; ".join(cattrs.transform_error(error))
        raise BenchError(f"cannot be read: {problems}", where=f"suites/{where}") from None
    rows: list[Row] = []
    for group in found.group:
        for shape, op in itertools.product(group.shapes, group.ops):
            dims = operation(op).dims
            if len(shape) != len(dims):
                raise BenchError(
                    f"{op} has no shape {shape}", where=f"suites/{where}",
                    nearest=f"Give {' x '.join(dims)}",
                )  # fmt: skip
            if min(shape) < 1 or group.dtype not in ELEMENTS or group.pad < 0:
                raise BenchError(
                    f"{op} of {shape}, {group.dtype}, pad {group.pad} cannot be measured",
                    where=f"suites/{where}",
                    nearest=f"Sizes from 1, pads from 0, and {' or '.join(ELEMENTS)}",
                )
            *batch, m, n, k = shape
            made = Row(op, m, n, k, group.dtype, group.acc, group.pad, *batch)
            rows.append(made)
    return found.title, tuple(dict.fromkeys(rows))


def selected(names: Sequence[str], pattern: str = "", *, to_tune: bool = False) -> list[Row]:
    """The rows of suites whose key contains a pattern, each once.

    Suites take turns, so that a run that ends early has the most telling rows of each.

    Args:
        names: of suites.
        pattern: regular expression.
        to_tune: refuse suites that are held out.

    Raises:
        BenchError: a suite does not exist or is held out, the pattern is none, or no row is left.
    """
    for name in names if to_tune else ():
        if suite(name).held_out:
            raise BenchError(
                f"the rows of {name} are held out",
                where="--suite",
                why="they judge what ships, and say nothing once something was tuned for them",
                nearest="Tune another suite, or a program of your own",
            )
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise BenchError(
            f"{pattern!r} is no regular expression",
            where="--rows",
            why=str(error),
            nearest='For example --rows "^bias_gelu bf16"',
        ) from None
    turns = itertools.zip_longest(*(suite(name).rows for name in names))
    rows = dict.fromkeys(row for turn in turns for row in turn if row is not None)
    found = [row for row in rows if wanted.search(row.key)]
    if not found:
        raise BenchError(
            f"no row matches {pattern!r}",
            where="--rows",
            nearest="`polygen bench --list` prints the rows",
        )
    return found


def suites_of(row: Row, names: Sequence[str]) -> list[str]:
    """Which of these suites a row belongs to."""
    return [name for name in names if row in suite(name).rows]
