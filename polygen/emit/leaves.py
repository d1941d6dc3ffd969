"""The leaves of a plan as template records: strings and numbers, every decision already taken."""

from __future__ import annotations

from typing import Any

import numpy as np

from polygen.emit.names import c_name
from polygen.frontend.dtypes import DType
from polygen.hardware.fragment_load import FragmentLoad
from polygen.lower.plan import Buffer, Copy, KernelPlan, Load

_C_TYPES = {"f16": "unsigned short", "bf16": "unsigned short", "f32": "float", "tf32": "float"}
_C_BYTES = {"e4m3": "unsigned char", "e5m2": "unsigned char", "s8": "signed char"}
SHARED_ALIGNMENT = 128  # bytes that the kernel declares for its shared memory
WORD_BYTES = 4  # a copy through registers writes whole words
LOOP_COMMENTS = {"epilogue": "epilogue"}


def extent_names(plan: KernelPlan) -> dict[str, str]:
    """The size along each role, as C."""
    return {role: c_name(str(extent)) for role, extent in plan.extents}


def c_type(dtype: DType) -> str:
    """The C type that stores an element."""
    return _C_TYPES.get(dtype.name) or _C_BYTES[dtype.name]


def placement(buffer: Buffer) -> str:
    """The byte offset of byte `byte` of row `row`, as proved for the buffer's swizzle."""
    swizzle = buffer.swizzle
    if not swizzle.mask:
        return f"row * {buffer.row_bytes} + byte"
    row = f"(row >> {swizzle.shift})" if swizzle.shift else "row"
    spread = f"({row} & {swizzle.mask})"
    if swizzle.multiplier != 1:
        spread = f"{swizzle.multiplier} * {spread}"
    return f"row * {buffer.row_bytes} + (((byte >> 4) ^ {spread}) << 4) + (byte & 15)"


def copy(plan: KernelPlan, c: Copy) -> dict[str, Any]:
    """One copy leaf; `p` says which part of the tile."""
    buffer, threads = plan.buffer(c.buffer), plan.launch.threads
    moved = c.width if c.asynchronous else WORD_BYTES
    elements = moved // c.element_bytes
    per_row = c.columns // elements
    pieces = c.rows * per_row
    passes = -(-pieces // threads)
    per_part = -(-passes // c.parts)
    end = f"(p + 1) * {per_part}"
    # Threads keep their column from pass to pass, and the swizzle repeats: base plus constant.
    regular = threads % per_row == 0 and threads // per_row % buffer.swizzle.period == 0
    lines = _regular_copy if regular and c.asynchronous else _general_copy
    prelude, body = lines(plan, c, elements, per_row)
    if pieces % threads:
        body.insert(0, f"if (i * {threads} + thread >= {pieces}) break;")
    ranges = (f"{c.tile} of {c.role}", f"{c.tile_k} of k")
    part = f", part p of {c.parts}" if c.parts > 1 else ""
    return {
        "comment": (
            f"copy_{c.operand}[k,p]: {c.tensor.name}, {ranges[0]} x {ranges[1]}{part} -> "
            f"{c.buffer}[k % {buffer.slots}], {moved} bytes at a time, zeros beyond it"
        ),
        "operand": c.operand,
        "offset": buffer.offset,
        "slots": buffer.slots,
        "slot_bytes": buffer.slot_bytes,
        "prelude": prelude,
        "body": body,
        "passes_per_part": per_part,
        "part_end": end if passes % c.parts == 0 else f"min({end}, {passes})",
        "unroll": "" if passes <= 16 else " 8",
    }


def _copy_positions(plan: KernelPlan, c: Copy) -> tuple[str, str, str, str]:
    """Where a tile starts, and the array's extents, along stored rows and columns."""
    extents = extent_names(plan)
    role_base, k_base = f"b_{c.role} * {c.tile}", f"k * {c.tile_k}"
    if c.k_contiguous:
        return role_base, k_base, extents[c.role], extents["k"]
    return k_base, role_base, extents["k"], extents[c.role]


def _regular_copy(
    plan: KernelPlan, c: Copy, elements: int, per_row: int
) -> tuple[list[str], list[str]]:
    row_base, column_base, row_extent, column_extent = _copy_positions(plan, c)
    rows = plan.launch.threads // per_row
    row_bytes = plan.buffer(c.buffer).row_bytes
    prelude = [
        f"const int row = thread / {per_row}, column = thread % {per_row} * {elements};",
        f"const int rows_left = {row_extent} - ({row_base} + row);",
        _left(c, elements, f"{column_extent} - ({column_base} + column)"),
        f"const {c_type(c.tensor.dtype)}* from = "
        f"{c_name(c.tensor.name)} + (long long)({row_base} + row) * {c.stride} "
        f"+ ({column_base} + column);",
        f"const unsigned to = slot + place_ring_{c.operand}(row, column * {c.element_bytes});",
    ]
    body = [
        f"{copy_function(c)}(to + i * {rows * row_bytes}, "
        f"from + (long long)(i * {rows}) * {c.stride}, {_amount(c, f'i * {rows} < rows_left')});"
    ]
    return prelude, body


def copy_function(c: Copy) -> str:
    """The name of the copy instruction's wrapper."""
    return f"copy_{c.width}_ragged" if c.ragged else f"copy_{c.width}"


def copy_instructions(plan: KernelPlan) -> list[dict[str, str]]:
    """The background copies the plan uses, each wrapped once."""
    found = {}
    for c in plan.copies:
        if not c.asynchronous:
            continue
        largest = plan.device.asynchronous_copy_largest
        cache = "cg" if c.width == largest else "ca"
        form = f"cp.async.{cache}.shared.global [%0], [%1], {c.width}, "
        name = copy_function(c)
        if c.ragged:
            found[name] = {
                "comment": f"Copies {c.width} bytes in the background: `bytes` of them, then 0.",
                "function": name,
                "parameter": "int bytes",
                "ptx": f'"{form}%2;"',
                "operand": '"r"(bytes)',
            }
        else:
            predicate = "{ .reg .pred outside; setp.eq.s32 outside, %2, 0; "
            found[name] = {
                "comment": f"Copies {c.width} bytes in the background: of `from`, or zeros.",
                "function": name,
                "parameter": "bool inside",
                "ptx": f'"{predicate}{form}outside; }}"',
                "operand": '"r"((int)inside)',
            }
    return [found[name] for name in sorted(found)]


def _left(c: Copy, elements: int, left: str) -> str:
    if c.ragged:
        return f"const int bytes = min(max({left}, 0), {elements}) * {c.element_bytes};"
    return f"const bool inside = {left} > 0;"


def _amount(c: Copy, row_inside: str) -> str:
    return f"{row_inside} ? bytes : 0" if c.ragged else f"inside && {row_inside}"


def _general_copy(
    plan: KernelPlan, c: Copy, elements: int, per_row: int
) -> tuple[list[str], list[str]]:
    row_base, column_base, row_extent, column_extent = _copy_positions(plan, c)
    body = [
        f"const int piece = i * {plan.launch.threads} + thread;",
        f"const int row = piece / {per_row}, column = piece % {per_row} * {elements};",
        f"const int from_row = {row_base} + row, from_column = {column_base} + column;",
        f"const {c_type(c.tensor.dtype)}* from = "
        f"{c_name(c.tensor.name)} + (long long)from_row * {c.stride} + from_column;",
        f"const unsigned to = slot + place_ring_{c.operand}(row, column * {c.element_bytes});",
    ]
    row_inside, left = f"from_row < {row_extent}", f"{column_extent} - from_column"
    if c.asynchronous:
        body.append(_left(c, elements, left))
        body.append(f"{copy_function(c)}(to, from, {_amount(c, row_inside)});")
    else:
        body += [
            f"const int left = {row_inside} ? {left} : 0;",
            *_word(c, elements),
        ]
    return [], body


def _word(c: Copy, elements: int) -> list[str]:
    """A word of narrow elements, each read if it is inside, and written to shared memory."""
    bits = 8 * c.element_bytes
    if elements == 2:
        lines = [
            "const unsigned low = left > 0 ? __ldg(from) : 0;",
            "const unsigned high = left > 1 ? __ldg(from + 1) : 0;",
        ]
        return [*lines, f"write_word(to, low | high << {bits});"]
    # Signed elements would smear their sign over the word.
    return [
        "unsigned word = 0;",
        "#pragma unroll",
        f"for (int e = 0; e < {elements}; ++e)",
        f"  word |= (left > e ? (unsigned)(unsigned char)__ldg(from + e) : 0) << e * {bits};",
        "write_word(to, word);",
    ]


def _function_name(load: FragmentLoad) -> str:
    if not load.uses_ldmatrix:
        return "load_word"
    return f"load_matrices_{load.matrices}{'_transposed' if load.transposed else ''}"


def fragment_functions(plan: KernelPlan) -> list[dict[str, Any]]:
    """The load instructions the plan uses, each wrapped once."""
    found = {}
    for leaf in plan.loads:
        load = leaf.load
        name, count = _function_name(load), load.matrices
        results = ", ".join(f"%{i}" for i in range(count))
        found[name] = {
            "function": name,
            "ptx": load.ptx,
            "comment": (
                f"{count} matrices of 8 x 16 bytes; each lane gives the address of one row"
                if load.uses_ldmatrix
                else "one 32-bit word per lane"
            ),
            "parameters": ", ".join(f"unsigned& r{i}" for i in range(count)),
            "constraints": ", ".join(f'"=r"(r{i})' for i in range(count)),
            "results": f"{{{results}}}" if load.uses_ldmatrix else results,
            "count": count,
        }
    return [found[name] for name in sorted(found)]


def load(plan: KernelPlan, leaf: Load) -> dict[str, Any]:
    """One fragment-load leaf."""
    buffer, form = plan.buffer(leaf.buffer), leaf.load
    slot = f"fragment_{leaf.operand}[s % {leaf.slots}]"
    registers = [f"{slot}[i * {form.subtiles} + {sub}][{r}]" for sub, r in form.register_map]
    if form.subtiles == 1:
        registers = [f"{slot}[i][{r}]" for _, r in form.register_map]
    instructions = []
    for number in range(form.count):
        first = number * form.matrices
        instructions.append(
            {
                "function": _function_name(form),
                "results": ", ".join(registers[first : first + form.matrices]),
                "address": _load_address(buffer, leaf, number),
            }
        )
    return {
        "comment": (
            f"load_{leaf.operand}[k,s]: {leaf.buffer}[k % {buffer.slots}] -> {slot}, "
            f"proved equal to the instruction's fragment ({form.name})"
        ),
        "operand": leaf.operand,
        "offset": buffer.offset,
        "stages": buffer.slots,
        "slot_bytes": buffer.slot_bytes,
        "tiles": leaf.tiles,
        "instructions": instructions,
        "rounded": registers if leaf.round_to_tf32 else [],
    }


def _load_address(buffer: Buffer, leaf: Load, number: int) -> str:
    """Where a lane's address lies in the ring, for MMA step s and tile i.

    Along the contiguous dim the tile moves by whole power-of-two steps inside the swizzle's block,
    so the step can be XORed into the lane's address, which needs no register per step; along the
    other dim it moves by whole periods of the swizzle, which is a constant.
    """
    form, size = leaf.load, leaf.element_bytes
    role = "m" if leaf.operand == "a" else "n"
    rows, units = form.offsets[number]
    row, unit = _sum(form.row_of_lane, rows), f"({_sum(form.unit_of_lane, units)})"
    lane_byte = f"{unit} * {form.unit_bytes}"
    warp = f"w_{role} * {leaf.warp_tile}"
    across, along = form.tile_mn, form.tile_k * size  # rows per tile i, bytes per step s
    if form.k_contiguous:
        if _is_separable(buffer, leaf, number):
            lane = f"place_ring_{leaf.operand}({warp} + {row}, {lane_byte})"
            return f"((slot + {lane}) ^ s * {along}) + i * {across * buffer.row_bytes}"
        place = f"{warp} + i * {across} + {row}, s * {along} + {lane_byte}"
    else:
        if _is_separable(buffer, leaf, number):
            lane = f"place_ring_{leaf.operand}({row}, {warp} * {size} + {lane_byte})"
            shift = f"s * {form.tile_k * buffer.row_bytes}"
            return f"((slot + {lane}) ^ i * {across * size}) + {shift}"
        place = f"s * {form.tile_k} + {row}, ({warp} + i * {across}) * {size} + {lane_byte}"
    return f"slot + place_ring_{leaf.operand}({place})"


def _is_separable(buffer: Buffer, leaf: Load, number: int) -> bool:
    """Whether steps along the contiguous dim are XORs, and across it constants; tries them all."""
    form, swizzle = leaf.load, buffer.swizzle
    row, byte = form.lane_addresses(number)
    if form.k_contiguous:
        stride, rows = form.tile_k * leaf.element_bytes, form.tile_mn
        extent, warps = buffer.row_bytes, np.arange(0, buffer.rows, leaf.warp_tile)
        row, byte = row + warps[:, None], byte + 0 * warps[:, None]
    else:
        stride, rows = form.tile_mn * leaf.element_bytes, form.tile_k
        extent = leaf.warp_tile * leaf.element_bytes
        starts = np.arange(0, buffer.row_bytes, extent)
        row, byte = row + 0 * starts[:, None], byte + starts[:, None]
    base = swizzle.address(row, byte, buffer.row_bytes)
    steps = range(0, extent, stride)
    return (
        rows % swizzle.period == 0
        and buffer.offset % extent == 0
        and buffer.slot_bytes % extent == 0
        and extent <= SHARED_ALIGNMENT
        and all(
            np.array_equal(swizzle.address(row, byte + step, buffer.row_bytes), base ^ step)
            for step in steps
        )
    )


def _sum(text: str, offset: int) -> str:
    return f"{text} + {offset}" if offset else text


def multiply(plan: KernelPlan) -> dict[str, Any]:
    """The MMA instruction."""
    atom = plan.atom
    c, a, b = atom.c.registers, atom.a.registers, atom.b.registers
    letter, kind = {"f32": ("f", "float"), "f16": ("r", "unsigned"), "s32": ("r", "int")}[
        atom.c.dtype.name
    ]
    groups, first = [], 0
    for size in (c, a, b):
        groups.append("{" + ", ".join(f"%{first + i}" for i in range(size)) + "}")
        first += size
    inputs = [f'"r"(a[{i}])' for i in range(a)] + [f'"r"(b[{i}])' for i in range(b)]
    return {
        "comment": (
            f"{atom.name}: c[{atom.m},{atom.n}] += a[{atom.m},{atom.k}] * b[{atom.k},{atom.n}]"
        ),
        "ptx": atom.ptx,
        "c_type": kind,
        "c": c,
        "a": a,
        "b": b,
        "operands": ", ".join([*groups, groups[0]]),
        "outputs": ", ".join(f'"+{letter}"(c[{i}])' for i in range(c)),
        "inputs": ", ".join(inputs),
    }


def synchronisation(plan: KernelPlan) -> list[dict[str, str]]:
    """Commits, waits and barriers, each with the dependences it enforces."""
    found = []
    if plan.copies[0].asynchronous:
        found.append(
            {
                "name": "commit",
                "comment": "commit[t]: the copies of step t become one group",
                "body": 'asm volatile("cp.async.commit_group;" ::: "memory");',
                "parameter": "int",
            }
        )
    for entry in plan.enforced:
        barrier = entry.barrier
        if barrier.pending is not None:
            found.append(
                {
                    "name": barrier.wait,
                    "comment": (
                        f"{barrier.wait}: this thread's copies have landed, "
                        f"but for the last {barrier.pending} group(s)"
                    ),
                    "body": f'asm volatile("cp.async.wait_group {barrier.pending};" ::: "memory");',
                    "parameter": "int",
                }
            )
        call = "__syncthreads();" if barrier.scope == "block" else "__syncwarp();"
        reason = "; ".join(entry.dependences)
        parameter = "int" if barrier.phase == "main" else ""
        found.append(
            {
                "name": barrier.name,
                "comment": f"{barrier.name}: {reason}",
                "body": call,
                "parameter": parameter,
            }
        )
    return found
