"""Kernels without calls and jump tables: device functions are inlined, tables become branches.

1. A ``call`` of a function whose body the module has is replaced by the body. Its names get a
   suffix of their own, but for what it shares with every other call: shared and global variables.
   Formal parameters become the caller's variables (``.param``) or moves (``.reg``); ``ret`` becomes
   a branch behind the body.
2. A ``.param`` variable of a call is local memory of the thread.
3. ``vprintf`` prints nothing and returns 0; ``__assertfail`` is a trap. Other functions without a
   body, recursion and calls through a register are refused.
4. ``brx.idx`` becomes one branch per entry of its table, and what waits under a predicate is
   branched around.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from polygen.errors import PtxError
from polygen.machine.blocks import ENDS, ends_block
from polygen.machine.module import Function, Instruction, Kernel, Variable, split_operands

MOST = 1 << 18  # instructions of a kernel: what the records of accesses have room for
_NAME = re.compile(r"[%$A-Za-z_][\w$]*")
_KEPT = ("shared", "global", "const")  # variables that every call of a function shares


@dataclass(slots=True)
class _Code:
    """A body under construction."""

    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    registers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def label(self, name: str) -> None:
        self.labels[name] = len(self.instructions)


def flattened(kernel: Kernel, functions: Mapping[str, Function]) -> Kernel:
    """A kernel whose calls and jump tables are branches.

    Raises:
        PtxError: a call that cannot be inlined, or a body that grows beyond `MOST` instructions.
    """
    awkward = any(
        one.parts[0] in ("call", "brx") or (one.predicate and _waits(one))
        for one in kernel.instructions
    )
    has_variables = any(one.space == "param" for one in kernel.variables)
    if len(kernel.instructions) >= MOST:
        raise _too_long(kernel)
    if not awkward and not has_variables:
        return kernel
    code = _Code()
    _Inliner(kernel, functions, code).body(kernel, {}, "", (), "")
    return replace(
        kernel,
        registers=code.registers,
        variables=tuple(code.variables.values()),
        instructions=tuple(code.instructions),
        labels=code.labels,
        tables=code.tables,
    )


def _waits(one: Instruction) -> bool:
    """Whether an instruction ends its block, and is no branch."""
    return ends_block(one) and one.parts[0] not in ENDS


def _too_long(kernel: Kernel) -> PtxError:
    return PtxError(
        f"{kernel.name} has {MOST} instructions or more",
        why="with its calls inlined",
        nearest=f"At most {MOST - 1}",
    )


class _Inliner:
    def __init__(self, kernel: Kernel, functions: Mapping[str, Function], code: _Code) -> None:
        self.kernel, self.functions, self.code = kernel, functions, code
        self.calls = 0

    def body(
        self,
        one: Kernel | Function,
        names: dict[str, str],
        suffix: str,
        stack: tuple[str, ...],
        end: str,
    ) -> None:
        """Append a body; `names` are those of its formals, `end` is where ``ret`` goes."""
        code = self.code
        for name, kind in one.registers.items():
            names.setdefault(name, name + suffix)
            code.registers[names[name]] = kind
        for variable in one.variables:
            kept = variable.space in _KEPT
            names.setdefault(variable.name, variable.name + ("" if kept else suffix))
            space = "local" if variable.space == "param" else variable.space
            code.variables[names[variable.name]] = replace(
                variable, name=names[variable.name], space=space
            )
        local = {names[v.name] for v in one.variables if v.space == "param"}
        for label in one.labels:
            names.setdefault(label, label + suffix)
        for table, targets in one.tables.items():
            code.tables[table + suffix] = tuple(names[target] for target in targets)
            names[table] = table + suffix
        at: dict[int, list[str]] = {}
        for label, position in one.labels.items():
            at.setdefault(position, []).append(names[label])

        def fix(text: str) -> str:
            return _NAME.sub(lambda match: names.get(match[0], match[0]), text)

        inside = bool(stack)
        for position, instruction in enumerate(one.instructions):
            for label in at.get(position, ()):
                code.label(label)
            now = replace(
                instruction,
                operands=tuple(map(fix, instruction.operands)) if names else instruction.operands,
                predicate=fix(instruction.predicate) if instruction.predicate else "",
            )
            if len(code.instructions) >= MOST:
                raise _too_long(self.kernel)
            if now.parts[0] == "call":
                self._call(now, stack)
            elif now.parts[0] == "brx":
                self._table(now)
            elif now.predicate and _waits(now):
                over = self._branch_over(now)
                code.instructions.append(replace(now, predicate="", negated=False))
                code.label(over)
            elif now.parts[0] == "ret" and inside:
                code.instructions.append(replace(now, parts=("bra",), operands=(end,)))
            else:
                code.instructions.append(_in_memory(now, local, inside, self.kernel))
        for label in at.get(len(one.instructions), ()):
            code.label(label)

    def _call(self, one: Instruction, stack: tuple[str, ...]) -> None:
        results, name, given = _operands(one)
        if name in stack:
            raise PtxError(f"`{name}` calls itself", line=one.line, why="calls are inlined")
        skip = self._branch_over(one)
        suffix = f"__call{self.calls}"
        code, end = self.code, f"$behind{suffix}"
        plain = replace(one, predicate="", negated=False)
        if name == "__assertfail":
            code.instructions.append(replace(plain, parts=("trap",), operands=()))
        elif name == "vprintf":
            if results:
                place = f"[{results[0]}]"
                zero = replace(plain, parts=("st", "local", "b32"), operands=(place, "0"))
                code.instructions.append(zero)
        else:
            function = self._function(name, one)
            if len(function.parameters) != len(given) or len(function.results) != len(results):
                raise PtxError(f"the call does not fit `{name}`", line=one.line, why=str(one))
            names: dict[str, str] = {}
            for formal, actual in zip(function.parameters, given, strict=True):
                self._pass(formal, actual, names, suffix, plain)
            for formal, actual in zip(function.results, results, strict=True):
                names[formal.name] = actual if formal.space == "param" else formal.name + suffix
                if formal.space != "param":
                    code.registers[formal.name + suffix] = formal.kind
            self.body(function, names, suffix, (*stack, name), end)
            code.label(end)
            for formal, actual in zip(function.results, results, strict=True):
                if formal.space != "param":
                    self._move(actual, formal.name + suffix, formal.kind, plain)
        code.label(skip)

    def _branch_over(self, one: Instruction) -> str:
        """A new label, and a branch to it where the predicate of an instruction does not hold."""
        self.calls += 1
        over = f"$over__call{self.calls}"
        if one.predicate:
            self.code.instructions.append(
                replace(one, parts=("bra",), operands=(over,), negated=not one.negated)
            )
        return over

    def _function(self, name: str, one: Instruction) -> Function:
        function = self.functions.get(name)
        if function is None:
            raise PtxError(
                f"`{one.opcode}` of `{name}`, which has no body here",
                line=one.line,
                why="the machine inlines device functions of the same file, "
                "and knows vprintf and __assertfail",
            )
        return function

    def _pass(
        self, formal: Variable, actual: str, names: dict[str, str], suffix: str, one: Instruction
    ) -> None:
        if formal.space == "param":
            names[formal.name] = actual
            return
        names[formal.name] = formal.name + suffix
        self.code.registers[formal.name + suffix] = formal.kind
        self._move(formal.name + suffix, actual, formal.kind, one)

    def _move(self, target: str, source: str, kind: str, one: Instruction) -> None:
        self.code.instructions.append(replace(one, parts=("mov", kind), operands=(target, source)))

    def _table(self, one: Instruction) -> None:
        """``brx.idx index, table``."""
        index, table = one.operands[0], one.operands[1]
        targets = self.code.tables.get(table)
        if targets is None:
            raise PtxError(f"no branch targets `{table}`", line=one.line)
        plain = replace(one, predicate="", negated=False)
        over = self._branch_over(one)
        chosen = f"%chosen__call{self.calls}"
        self.code.registers[chosen] = "pred"
        for number, target in enumerate(targets):
            self.code.instructions += [
                replace(plain, parts=("setp", "eq", "u32"), operands=(chosen, index, str(number))),
                replace(plain, parts=("bra",), operands=(target,), predicate=chosen),
            ]
        self.code.instructions.append(replace(plain, parts=("trap",), operands=()))
        self.code.label(over)


def _operands(one: Instruction) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """Results, name and parameters of ``call (results), name, (parameters)``."""
    rest = list(one.operands)
    results = _listed(rest.pop(0)) if rest and rest[0].startswith("(") else ()
    if not rest:
        raise PtxError(f"cannot read `{one}`", line=one.line)
    name = rest.pop(0)
    if name.startswith("%"):
        raise PtxError(
            f"`{one.opcode}` through the register {name}",
            line=one.line,
            why="which function it calls is known only when it runs, and calls are inlined",
        )
    return results, name, _listed(rest[0]) if rest and rest[0].startswith("(") else ()


def _listed(text: str) -> tuple[str, ...]:
    return split_operands(text.strip().removeprefix("(").removesuffix(")"))


def _in_memory(one: Instruction, local: set[str], inside: bool, kernel: Kernel) -> Instruction:
    """Accesses to a function's ``.param`` variables are to local memory."""
    if one.parts[0] not in ("ld", "st") or not any(p.split("::")[0] == "param" for p in one.parts):
        return one
    place = one.operands[1 if one.parts[0] == "ld" else 0]
    named = _NAME.findall(place)
    outer = {parameter.name for parameter in kernel.parameters}
    if any(name in outer for name in named) or not (inside or local & set(named)):
        return one
    parts = tuple("local" if part.split("::")[0] == "param" else part for part in one.parts)
    return replace(one, parts=parts)
