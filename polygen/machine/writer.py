"""`Writer`: turns the instructions of one block into the source of one Python function.

1. A register becomes local variables, one per NumPy type it is looked at with; a new value is a new
   variable, so nothing is changed in place and equal inputs are recognised by identity.
2. Values all threads share stay NumPy scalars (uniform); the others are vectors over the lanes that
   execute the block.
3. A predicated instruction runs under `guard`: results merge with the old value, memory is touched
   only by the lanes whose predicate holds.
4. At the end of the block the registers that other blocks read are written back to storage.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from polygen.errors import PtxError
from polygen.machine import special
from polygen.machine.blocks import Program
from polygen.machine.module import DTYPES, Instruction, address, type_bytes

Handler = Callable[["Writer", Instruction], None]
HANDLERS: dict[str, Handler] = {}


def opcode(*names: str) -> Callable[[Handler], Handler]:
    """Register the handler of the instructions whose first part is one of `names`."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


@dataclass(slots=True, eq=False)
class Value:
    """One value of a register: its variables by NumPy type; `pending` makes the first on demand."""

    names: dict[str, str] = field(default_factory=dict)
    uniform: bool = False
    alias: bool = False  # may share memory with another register's array
    pending: Callable[[], tuple[str, str]] | None = None  # emits code, returns (dtype, variable)
    computed: bool = False  # a float32 whose NaN may still be NumPy's: see `Writer.read`


class Writer:
    """Collects the source lines of one block."""

    def __init__(self, program: Program, names: dict[str, object], partial: bool) -> None:
        self.program = program
        self.kernel = program.kernel
        self.names = names  # the globals of the generated function
        self.partial = partial  # only some lanes run: registers are gathered and scattered
        self.lines: list[str] = []
        self.values: dict[str, Value] = {}
        self.fragments: dict[tuple[object, ...], str] = {}  # packed matrix operands by their values
        self.computes = False  # the current instruction cares for no bits of NaN
        self.guard = ""  # variable holding the predicate of the current instruction
        self.position = 0  # index of the current instruction, for findings
        self.carry = ""  # variable holding the carry
        self.dirty: dict[str, None] = {}
        self.counter = 0
        self.accesses: dict[Any, Any] | None = None  # to registers of wgmma: see `accumulators`
        self.followed: set[str] | None = None  # registers of the block: see `unwritten`
        self.recheck = False  # whether any of them may have flags since the last look

    # --- text --------------------------------------------------------------------------------
    def emit(self, line: str) -> None:
        """Append one source line."""
        self.lines.append(line)

    def fresh(self, expression: str) -> str:
        """Bind an expression to a new variable and return its name."""
        self.counter += 1
        name = f"x{self.counter}"
        self.lines.append(f"{name} = {expression}")
        return name

    def constant(self, value: object, hint: str = "c") -> str:
        """A global name bound to a Python object."""
        name = f"{hint}{len(self.names)}"
        self.names[name] = value
        return name

    def refuse(self, one: Instruction, why: str = "", nearest: str = "") -> PtxError:
        """The error for an instruction outside the machine's repertoire."""
        return PtxError(
            f"the machine does not know `{one.opcode}`"
            if not why
            else f"`{one.opcode}` is refused",
            line=one.line,
            why=why,
            nearest=nearest,
        )

    def unknown(self, name: str) -> PtxError:
        """The error for a name that is no register, number or variable."""
        one = self.kernel.instructions[self.position]
        kind = "special register" if name.startswith("%") else "name"
        return PtxError(f"the machine knows no {kind} `{name}`", line=one.line, why=f"in `{one}`")

    # --- reading -----------------------------------------------------------------------------
    def _value(self, register: str) -> Value:
        value = self.values.get(register)
        if value is None:
            slot = self.program.stored[register]
            uniform = register in self.program.uniform
            gather = "" if uniform or not self.partial else "[ix]"
            name = self.fresh(f"R[{slot}]{gather}")
            value = Value({self.storage(register): name}, uniform, alias=not gather)
            self.values[register] = value
        if value.pending is not None:
            dtype, name = value.pending()
            value.names[dtype] = name
            value.pending = None
        return value

    def value(self, register: str) -> Value:
        """The current value object of a register, without making pending values."""
        return self.values.get(register) or self._value(register)

    def storage(self, register: str) -> str:
        """The NumPy type a register is stored with."""
        kind = self.kernel.registers[register]
        if kind in ("pred", "f32", "f64"):
            return DTYPES[kind]
        return f"u{type_bytes(kind)}"

    def read(self, operand: str, dtype: str) -> str:
        """A variable or constant holding an operand, typed `dtype` (lanes, or a scalar).

        Arithmetic gives one NaN alone (`one_nan`), which is seen to only where somebody looks at
        the bits: what is moved, stored or read as an integer.
        """
        if operand in self.kernel.registers:
            value = self._value(operand)
            if value.computed and not self.computes:
                value.names = {"f4": self.fresh(f"one_nan({value.names['f4']})")}
                value.computed = False
            if dtype not in value.names:
                value.names[dtype] = self._convert(value, dtype)
            return value.names[dtype]
        if operand.startswith("!"):
            return self.fresh(f"~{self.read(operand[1:], dtype)}")
        if special.is_special(operand):
            return self._special(operand, dtype)
        number = immediate(operand, dtype)
        if number is not None:  # an array without axes: NumPy takes it faster than a scalar
            return self.constant(np.asarray(number))
        base, offset = address(operand)
        if base not in self.program.symbols:
            raise self.unknown(base)
        low = f" & {0xFFFFFFFF:#x}" if np.dtype(dtype).itemsize == 4 else ""
        return self.fresh(f"{dtype}(Y[{base!r}] + {offset}{low})")

    def _convert(self, value: Value, dtype: str) -> str:
        """Look at a value with another type: reinterpret, truncate, or extend with zeros."""
        wanted = np.dtype(dtype).itemsize
        for have, name in value.names.items():
            if np.dtype(have).itemsize == wanted:
                return self.fresh(f"{name}.view(D_{dtype})")
        have, name = next(iter(value.names.items()))
        if have != f"u{np.dtype(have).itemsize}":
            name = self.fresh(f"{name}.view(D_u{np.dtype(have).itemsize})")
        view = "" if dtype == f"u{wanted}" else f".view(D_{dtype})"
        return self.fresh(f"{name}.astype(D_u{wanted}){view}")

    def _special(self, operand: str, dtype: str) -> str:
        if special.is_uniform(operand):
            return self.fresh(f"{dtype}(M.special({operand!r}))")
        gather = "[ix]" if self.partial else ""
        return self.fresh(f"M.special({operand!r}){gather}.astype(D_{dtype})")

    def is_uniform(self, *operands: str) -> bool:
        """Whether the operands hold the same value in all lanes."""
        for operand in operands:
            operand = operand.removeprefix("!")
            if operand in self.kernel.registers:
                if not self._value(operand).uniform:
                    return False
            elif special.is_special(operand) and not special.is_uniform(operand):
                return False
        return True

    def full(self, operand: str, dtype: str) -> str:
        """Like `read`, but always a contiguous vector with one element per lane."""
        name = self.read(operand, dtype)
        return self.fresh(f"full(L, {name})") if self.is_uniform(operand) else name

    def address(self, operand: str, width: int = 8) -> str:
        """The byte address of ``[base+offset]``, one unsigned integer per lane (or a scalar)."""
        base, offset = address(operand)
        if base in self.kernel.registers:
            size = type_bytes(self.kernel.registers[base])
            name = self.read(base, f"u{size}")
            if offset:
                wrapped = np.asarray(_wrap(offset, f"u{size}"))
                name = self.fresh(f"{name} + {self.constant(wrapped)}")
            return name
        if not base:
            return self.constant(_wrap(offset, "u8"))
        if base not in self.program.symbols:
            raise self.unknown(base)
        return self.fresh(f"u8(Y[{base!r}] + {offset})")

    # --- writing -----------------------------------------------------------------------------
    def write(
        self,
        register: str,
        dtype: str,
        expression: str,
        uniform: bool = False,
        computed: bool = False,
    ) -> None:
        """Give a register a new value; under a guard the old value stays where it is false.

        `computed`: of arithmetic, where a NaN of float32 is the only one there is.
        """
        if register == "_":
            self.emit(expression)
            return
        wide, have = np.dtype(self.storage(register)).itemsize, np.dtype(dtype).itemsize
        if wide != have:
            extended = f"{'i' if dtype[0] == 'i' else 'u'}{wide}"
            source = expression if dtype[0] in "iu" else f"({expression}).view(D_u{have})"
            expression, dtype = f"({source}).astype(D_{extended})", extended
        computed &= dtype == "f4"
        if self.guard:
            if computed:
                expression, computed = f"one_nan({expression})", False
            computes, self.computes = self.computes, False
            expression = f"where({self.guard}, {expression}, {self.read(register, dtype)})"
            self.computes = computes
            uniform = False
        alias = expression.isidentifier() or ".view(" in expression
        name = self.fresh(expression)
        self.put(register, Value({dtype: name}, uniform, alias, computed=computed))

    def put(self, register: str, value: Value) -> None:
        """Bind a register to a value object."""
        self.values[register] = value
        self.dirty[register] = None

    def put_lazily(self, registers: tuple[str, ...], dtype: str, made_by: str) -> list[Value]:
        """Bind registers to the elements of a tuple that is made only when one of them is read."""
        made: list[str] = []

        def element(place: int) -> tuple[str, str]:
            if not made:
                made.append(self.fresh(made_by))
            return dtype, self.fresh(f"{made[0]}[{place}]")

        values = [Value(pending=partial(element, place)) for place in range(len(registers))]
        for register, value in zip(registers, values, strict=True):
            self.put(register, value)
        return values

    def results(self, registers: tuple[str, ...], dtype: str, tuple_name: str) -> None:
        """Bind the elements of a result tuple (already merged under the guard) to registers."""
        guard, self.guard = self.guard, ""
        for place, register in enumerate(registers):
            if register != "_":
                self.write(register, dtype, f"{tuple_name}[{place}]")
        self.guard = guard

    def call(
        self,
        function: str,
        arrays: list[str],
        constants: str,
        targets: tuple[str, ...] = (),
        dtype: str = "u4",
    ) -> None:
        """Call ``function(M, L, *arrays, *constants)``, only for guarded lanes, and bind results.

        Args:
            function: name of a machine function.
            arrays: variables with one element per lane, or scalars.
            constants: further arguments, as source text starting with ``, `` or empty.
            targets: registers that take the elements of the returned tuple.
            dtype: NumPy type of the results.
        """
        given = ", ".join(arrays)
        if not self.guard:
            text = f"{function}(M, L{''.join(f', {name}' for name in arrays)}{constants})"
        else:
            old = "".join(
                f"{self.read(name, dtype)}, " if name != "_" else "None, " for name in targets
            )
            packed = f"({given},)" if arrays else "()"
            text = f"guarded({function}, M, L, {self.guard}, ({old}), {packed}{constants})"
        if targets:
            self.results(targets, dtype, self.fresh(text))
        else:
            self.emit(text)

    def store_back(self) -> None:
        """Write the registers other blocks read back to storage."""
        for register in self.dirty:
            slot = self.program.stored.get(register)
            if slot is None:
                continue
            value = self._value(register)
            name = self.read(register, self.storage(register))
            if register in self.program.uniform:
                self.emit(f"R[{slot}] = {name}")
            elif self.partial:
                self.emit(f"R[{slot}][ix] = {name}")
            elif value.uniform:
                self.emit(f"R[{slot}] = full(L, {name})")
            else:  # two slots must never share memory: partial blocks write in place
                self.emit(f"R[{slot}] = {name}{'.copy()' if value.alias else ''}")


def _wrap(value: int, dtype: str) -> object:
    bits = 8 * np.dtype(dtype).itemsize
    unsigned = np.array(value & ((1 << bits) - 1), f"u{bits // 8}")
    return unsigned.view(dtype)[()]


def immediate(text: str, dtype: str) -> Any:
    """A literal as a NumPy scalar of `dtype`; None when the text is not a literal."""
    if dtype == "?":
        return np.bool_(int(text, 0)) if re.fullmatch(r"-?\d+", text) else None
    if text == "WARP_SZ":
        return _wrap(32, dtype)
    if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
        single = np.uint32(int(text[2:], 16))
        size = np.dtype(dtype).itemsize
        return single.view(dtype) if size == 4 else np.dtype(dtype).type(single.view(np.float32))
    if re.fullmatch(r"0[dD][0-9a-fA-F]{16}", text):
        double = np.uint64(int(text[2:], 16))
        return (
            double.view(dtype)
            if np.dtype(dtype).itemsize == 8
            else np.dtype(dtype).type(double.view(np.float64))
        )
    if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", text):
        digits = text.rstrip("U")
        octal = re.fullmatch(r"-?0\d+", digits)
        value = int(digits, 8) if octal else int(digits, 0)
        return np.dtype(dtype).type(value) if dtype[0] == "f" else _wrap(value, dtype)
    if re.fullmatch(r"-?\d+\.\d*([eE][-+]?\d+)?", text):
        value64 = struct.unpack("<d", struct.pack("<d", float(text)))[0]
        return np.dtype(dtype).type(value64)
    return None
