"""PTX text -> `Module`: kernels as flat instruction lists, with variables and registers.

1. Comments go; the text is cut into statements at ``;``, ``:`` and braces, each with its line.
2. A brace that opens a statement is a scope (an inline-asm block), any other one an operand vector.
3. Names declared inside an inner scope get a unique suffix, so that every kernel ends up with one
   flat name space; labels become positions in the instruction list.
4. ``.loc`` lines attach the CUDA source line to the instructions that follow.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import Any

from polygen.errors import PtxError, in_digits
from polygen.machine.module import (
    Function,
    Instruction,
    Kernel,
    Module,
    Variable,
    split_operands,
    type_bytes,
)


@dataclass(slots=True)
class _Scope:
    parent: int
    names: dict[str, str] = field(default_factory=dict)


def _statements(text: str) -> list[tuple[str, int]]:
    """Cut into statements; scope braces are statements of their own, labels end in ``:``."""
    text = re.sub(r"/\*.*?\*/", lambda match: "\n" * match[0].count("\n"), text, flags=re.S)
    text = re.sub(r"//[^\n]*", "", text)
    result: list[tuple[str, int]] = []
    buffer, begin, line, depth = "", 1, 1, 0
    for token in re.findall(r'(?:[^{};:\n"]|::)+|"[^"]*"|[{};:\n]', text):
        if token == "\n":
            line += 1
            if buffer.lstrip().startswith(
                (".loc\t", ".loc ", ".file", ".version", ".target", ".address")
            ):
                result.append((" ".join(buffer.split()), begin))
                buffer = ""
            elif buffer:
                buffer += " "
            continue
        if token == "{" and not depth and (not buffer.strip() or buffer.rstrip().endswith(")")):
            if buffer.strip():
                result.append((" ".join(buffer.split()), begin))
            result.append(("{", line))
            buffer = ""
        elif token == "{":
            header = re.match(
                r"\s*(\.visible|\.weak|\.entry|\.func|\.max|\.min|\.req|\.section)", buffer
            )
            if header and not depth:
                result.append((" ".join(buffer.split()), begin))
                result.append(("{", line))
                buffer = ""
            else:
                buffer += token
                depth += 1
        elif token == "}" and depth:
            buffer += token
            depth -= 1
        elif token in ";}" and not depth:
            if buffer.strip():
                result.append((" ".join(buffer.split()), begin))
            if token == "}":
                result.append(("}", line))
            buffer = ""
        elif token == ":" and re.fullmatch(r"\s*[\w$%]+\s*", buffer):
            result.append((buffer.strip() + ":", begin))
            buffer = ""
        else:
            if not buffer.strip():
                buffer, begin = "", line
            buffer += token
    if buffer.strip():
        raise PtxError(f"the text ends inside `{' '.join(buffer.split())[:60]}`", line=begin)
    return result


# What a text may ask for; a real one has far less.
MOST_TEXT = 64 << 20  # bytes
MOST_REGISTERS = 1 << 20  # of a kernel or function
MOST_BYTES = 1 << 30  # of a variable
MOST_LOCAL = 512 << 10  # of a variable of one thread


def _initial(kind: str, text: str, line: int) -> tuple[bytes, tuple[tuple[int, str], ...]]:
    """The bytes of an initialiser list, and where addresses of other symbols belong in them."""
    width = type_bytes(kind)
    data, addresses = bytearray(), []
    for part in re.findall(r"[^\s{},]+", text):
        if re.fullmatch(r"(generic\()?[A-Za-z_$%][\w$]*\)?", part) and width == 8:
            addresses.append((len(data), part.removeprefix("generic(").rstrip(")")))
            part = "0"
        try:
            if part[:2] in ("0f", "0d", "0F", "0D"):
                data += int(part[2:], 16).to_bytes(width, "little")
            else:
                data += (int(part.rstrip("U"), 0) & ((1 << 8 * width) - 1)).to_bytes(
                    width, "little"
                )
        except ValueError:
            raise PtxError(
                f"the initialiser `{part}` is not a number",
                line=line,
                why="sums with addresses of other symbols are not modelled",
            ) from None
    return bytes(data), tuple(addresses)


_VARIABLE = re.compile(
    r"(?:\.(?:extern|visible|weak|common)\s+)*\.(?P<space>shared|local|global|const|param)\s+"
    r"(?:\.(?:attribute\([^)]*\)|ptr|align\s+\d+|v[24]|global|const|shared)\s*)*?"
    r"(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<kind>\w+)\s+(?:\.ptr\s+[^\w%$]*(?:\.\w+\s+)?(?:\.align\s+\d+\s+)?)?"
    r"(?P<name>[\w%$]+)\s*(?P<dims>(?:\[\d*\])*)\s*(?:=\s*(?P<initial>.*))?$",
    re.S,
)


def _variable(text: str, line: int) -> Variable:
    match = _VARIABLE.match(text)
    if match is None:
        raise PtxError(f"cannot read the declaration `{text[:80]}`", line=line)
    kind, dims = match["kind"], re.findall(r"\[(\d*)\]", match["dims"])
    size = type_bytes(kind)
    for dim in dims:
        size *= int(dim or 0)
    most = MOST_LOCAL if match["space"] in ("local", "param") else MOST_BYTES
    if size > most:
        raise PtxError(
            f"{match['name']} has {in_digits(size)} bytes", line=line, nearest=f"At most {most}"
        )
    initial, addresses = _initial(kind, match["initial"] or "", line)
    return Variable(
        name=match["name"],
        space=match["space"],
        align=int(match["align"] or type_bytes(kind)),
        size=size,
        kind=kind,
        initial=initial,
        addresses=addresses,
    )


def _declare_registers(
    text: str, registers: dict[str, str], scope: _Scope, suffix: str, line: int
) -> None:
    kind, _, names = text.removeprefix(".reg").strip().removeprefix(".").partition(" ")
    for name in split_operands(names):
        ranged = re.fullmatch(r"([\w%$]+)<(\d+)>", name)
        count = int(ranged[2]) if ranged else 1
        if len(registers) + count > MOST_REGISTERS:
            raise PtxError(
                f"it declares {in_digits(len(registers) + count)} registers",
                line=line,
                nearest=f"At most {MOST_REGISTERS}",
            )
        plain = [f"{ranged[1]}{k}" for k in range(count)] if ranged else [name]
        for one in plain:
            if suffix:
                scope.names[one] = one + suffix
            registers[one + suffix] = kind


def _instruction(text: str, line: int, source: str) -> Instruction:
    predicate, negated = "", False
    if text.startswith("@"):
        match = re.match(r"@\s*(!?)\s*([\w%$]+)\s+(.*)", text)
        if match is None:
            raise PtxError(f"cannot read `{text[:60]}`", line=line)
        negated, predicate, text = bool(match[1]), match[2], match[3]
    match = re.match(r"([a-z][\w.:]*)\s*(.*)", text)
    if match is None:
        raise PtxError(f"cannot read `{text[:60]}`", line=line)
    parts = tuple(match[1].split("."))
    return Instruction(parts, split_operands(match[2]), predicate, negated, line, source)


def _rename(one: Instruction, scope: int, scopes: list[_Scope]) -> Instruction:
    """Replace names of inner scopes by their unique names."""

    def unique(match: re.Match[str]) -> str:
        at = scope
        while at > 0:
            found = scopes[at].names.get(match[0])
            if found is not None:
                return found
            at = scopes[at].parent
        return match[0]

    def fix(text: str) -> str:
        return re.sub(r"[%$A-Za-z_][\w$]*", unique, text)

    return Instruction(
        one.parts,
        tuple(fix(text) for text in one.operands),
        fix(one.predicate) if one.predicate else "",
        one.negated,
        one.line,
        one.source,
    )


def _location(text: str, files: dict[str, str]) -> str:
    """``.loc 1 12 3, function_name …, inlined_at 1 37 3`` -> ``k.cu:12 (from k.cu:37)``."""
    fields = text.replace(",", " ").split()
    if fields[1] not in files:
        return ""
    source = f"{files[fields[1]]}:{fields[2]}"
    if "inlined_at" in fields:
        at = fields.index("inlined_at")
        source += f" (from {files.get(fields[at + 1], '?')}:{fields[at + 2]})"
    return source


def _body(
    statements: list[tuple[str, int]], begin: int, files: dict[str, str]
) -> tuple[int, dict[str, Any]]:
    """Read one kernel body; returns the index after its closing brace and the `Kernel` fields."""
    registers: dict[str, str] = {}
    variables: list[Variable] = []
    labels: dict[str, int] = {}
    tables: dict[str, tuple[str, ...]] = {}
    scopes, current, source = [_Scope(-1)], 0, ""
    found: list[tuple[Instruction, int]] = []
    position = begin
    while True:
        if position >= len(statements):
            raise PtxError("a kernel body is never closed", line=statements[-1][1])
        text, line = statements[position]
        position += 1
        if text == "{":
            scopes.append(_Scope(current))
            current = len(scopes) - 1
        elif text == "}":
            if current == 0:
                break
            current = scopes[current].parent
        elif text.endswith(":"):
            suffix = f"__{current}" if current else ""
            scopes[current].names[text[:-1]] = text[:-1] + suffix
            labels[text[:-1] + suffix] = len(found)
        elif text.startswith(".reg"):
            suffix = f"__{current}" if current else ""
            _declare_registers(text, registers, scopes[current], suffix, line)
        elif text.startswith(".loc "):
            source = _location(text, files)
        elif text.startswith(".branchtargets"):
            targets = split_operands(text.removeprefix(".branchtargets"))
            tables[list(labels)[-1]] = targets  # its own label stands in front of it
        elif re.match(r"\.(shared|local|const|global|param)\b", text):
            one = _variable(text, line)
            if current and one.space in ("param", "local"):  # every call has its `param0`
                scopes[current].names[one.name] = f"{one.name}__{current}"
                one = replace(one, name=f"{one.name}__{current}")
            variables.append(one)
        elif not text.startswith("."):
            found.append((_instruction(text, line, source), current))
    instructions = tuple(one if not at else _rename(one, at, scopes) for one, at in found)
    for label, targets in tables.items():
        scoped = "__" + label.rpartition("__")[2]
        tables[label] = tuple(one if one in labels else one + scoped for one in targets)
        if missing := [one for one in tables[label] if one not in labels]:
            raise PtxError(
                f"no label `{missing[0].removesuffix(scoped)}`", line=statements[position - 1][1]
            )
    return position, {
        "registers": registers,
        "variables": tuple(variables),
        "labels": labels,
        "instructions": instructions,
        "tables": tables,
    }


_BOUNDS = re.compile(r"\.(reqnctapercluster|reqntid|maxntid|minnctapersm)\s+([\d\s,]+)")


def _header(text: str, line: int) -> dict[str, Any]:
    """Name, parameters, cluster and launch bounds of an entry, as fields of `Kernel`."""
    match = re.search(r"\.entry\s+([\w$]+)\s*(?:\((.*?)\))?([^)]*)$", text, re.S)
    if match is None:
        raise PtxError(f"cannot read the entry `{text[:60]}`", line=line)
    found = dict(_BOUNDS.findall(match[3]))
    sides = {name: [int(side) for side in text.split(",")] for name, text in found.items()}
    return {
        "name": match[1],
        "parameters": tuple(_variable(part, line) for part in split_operands(match[2] or "")),
        "cluster": (*sides.get("reqnctapercluster", ()), 1, 1, 1)[:3],
        "clustered": "reqnctapercluster" in sides,
        "threads_most": math.prod(sides.get("reqntid") or sides.get("maxntid", [0])),
        "block": (*sides["reqntid"], 1, 1, 1)[:3] if "reqntid" in sides else (),
        "blocks_least": sides.get("minnctapersm", [1])[0],
    }


_FUNCTION = re.compile(
    r".*?\.func\s+(?:\((?P<results>[^)]*)\)\s*)?(?P<name>[\w$]+)\s*(?:\((?P<formals>[^)]*)\))?",
    re.S,
)
_REGISTER = re.compile(r"\.reg\s+\.(\w+)\s+([\w%$]+)$")


def _signature(text: str, line: int) -> tuple[str, tuple[Variable, ...], tuple[Variable, ...]]:
    """Name, results and formals of a function."""
    match = _FUNCTION.match(text)
    if match is None:
        raise PtxError(f"cannot read the function `{text[:60]}`", line=line)

    def formal(part: str) -> Variable:
        register = _REGISTER.match(part)
        if register is None:
            return _variable(part, line)
        return Variable(register[2], "reg", 1, type_bytes(register[1]), register[1])

    results, formals = (
        tuple(formal(part) for part in split_operands(match[group] or ""))
        for group in ("results", "formals")
    )
    return match["name"], results, formals


def parse(text: str) -> Module:
    """Read a PTX file.

    Args:
        text: the PTX text, as NVRTC or nvcc writes it.

    Returns:
        The module, with its kernels and device functions.

    Raises:
        PtxError: the text is malformed.
    """
    if len(text) > MOST_TEXT:
        raise PtxError(f"the text has {len(text)} characters", nearest=f"At most {MOST_TEXT}")
    statements = _statements(text)
    kernels: dict[str, Kernel] = {}
    functions: dict[str, Function] = {}
    variables: list[Variable] = []
    named = re.findall(r'\.file\s+(\d+)\s+"([^"]*)"', text)
    files = {number: name.rsplit("/", 1)[-1] for number, name in named}
    target, position = "", 0
    while position < len(statements):
        statement, line = statements[position]
        position += 1
        if ".entry" in statement:
            header = _header(statement, line)
            if position < len(statements) and statements[position][0] == "{":
                position, body = _body(statements, position + 1, files)
                kernels[header["name"]] = Kernel(**header, **body)
        elif ".func" in statement:
            name, results, formals = _signature(statement, line)
            if position < len(statements) and statements[position][0] == "{":
                position, body = _body(statements, position + 1, files)
                functions[name] = Function(name, results, formals, **body)
        elif statement.startswith(".target"):
            target = statement.removeprefix(".target").strip().split(",")[0]
        elif re.match(r"(\.(extern|visible|weak|common)\s+)*\.(shared|global|const)\b", statement):
            variables.append(_variable(statement, line))
    if not kernels:
        raise PtxError("the text has no .entry", nearest="Compile a __global__ function")
    return Module(kernels, tuple(variables), target, functions)
