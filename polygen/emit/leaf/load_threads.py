"""A ring -> fragment registers, by the warp: ``ldmatrix``, or a word per lane."""

from __future__ import annotations

from typing import Any

import numpy as np

from polygen.emit.leaf.table import Text, filled, leaf
from polygen.emit.leaves import plus, slot_address
from polygen.errors import VerifyError
from polygen.hardware import formula
from polygen.hardware.fragment_load import FragmentLoad
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.buffers import Buffer
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.work import Load

SHARED_ALIGNMENT = 128  # bytes that a kernel declares for its shared memory, without patterns


def load_function(load: FragmentLoad) -> str:
    """The name of the load instruction's wrapper."""
    if not load.uses_ldmatrix:
        return "load_word" if load.results == 1 else f"load_words_{load.results}"
    return f"load_matrices_{load.matrices}{'_transposed' if load.transposed else ''}"


@leaf("load", "threads", Load, ("k", "s"), needs=("fragment_loads", "places"))
def _(plan: KernelPlan, one: Leaf, work: Load) -> Text:
    buffer, form = plan.buffer(work.buffer), work.load
    slot = f"fragment_{work.operand}[s % {work.slots}]"
    registers = [f"{slot}[i * {form.subtiles} + {sub}][{r}]" for sub, r in form.register_map]
    if form.subtiles == 1:
        registers = [f"{slot}[i][{r}]" for _, r in form.register_map]
    instructions: list[dict[str, Any]] = []
    for number in range(form.count):
        first, address = number * form.results, _address(buffer, work, number)
        check_address(address, buffer, work, number)
        instructions.append(
            {
                "function": load_function(form),
                "results": ", ".join(registers[first : first + form.results]),
                "address": address,
            }
        )
    record = {
        "slot": slot_address(buffer, f"(k % {buffer.slots})"),
        "tiles": work.tiles,
        "instructions": instructions,
        "rounded": registers if work.round_to_tf32 and not work.rest else [],
        "split": [
            (register, name.replace(f"[{r}]", f"[{work.rest + r}]"))
            for register, name, (_, r) in zip(registers, registers, form.register_map, strict=True)
        ]
        if work.rest
        else [],
    }
    comment = (
        f"{one.statement}[k,s]: {work.buffer}[k % {buffer.slots}] -> {slot}, "
        f"proved equal to the instruction's fragment ({form.name})"
    )
    if form.order:
        comment += f", whose k is rows {', '.join(map(str, form.order))} of a step"
    return Text(filled("load_threads", record), comment)


def _address(buffer: Buffer, work: Load, number: int) -> str:
    """Where a lane's address lies in the ring, for MMA step s and tile i.

    Along the contiguous dim the tile moves by whole power-of-two steps inside the swizzle's block,
    so the step can be XORed into the lane's address, which needs no register per step; along the
    other dim it moves by whole periods of the swizzle, which is a constant. Where rows have several
    of these blocks, tiles of other blocks are a constant away as well.
    """
    form, size = work.load, work.element_bytes
    rows, units = form.offsets[number]
    row, unit = plus(form.row_of_lane, rows), f"({plus(form.unit_of_lane, units)})"
    lane_byte = f"{unit} * {form.unit_bytes}"
    warp = f"w_{work.role} * {work.warp_tile}"
    row_bytes, place = buffer.rows.row_bytes, f"place_{work.buffer}"
    across, along = form.tile_mn, form.tile_k * size  # rows per tile i, bytes per step s
    if form.k_contiguous:
        if _is_separable(buffer, work, number):
            lane = f"{place}({warp} + {row}, {lane_byte})"
            return f"((slot + {lane}) ^ s * {along}) + i * {across * row_bytes}"
        at = f"{warp} + i * {across} + {row}, s * {along} + {lane_byte}"
    else:
        if _is_separable(buffer, work, number):
            lane = f"{place}({row}, {warp} * {size} + {lane_byte})"
            return f"((slot + {lane}) ^ i * {across * size}) + s * {form.tile_k * row_bytes}"
        at = f"s * {form.tile_k} + {row}, ({warp} + i * {across}) * {size} + {lane_byte}"
        each = _tiles_of_block(buffer, work)
        if each:
            inside = f"{warp} * {size} + i % {each} * {across * size} + {lane_byte}"
            at = f"s * {form.tile_k} + {row}, {inside}"
            return f"slot + {place}({at}) + i / {each} * {each * across * size}"
    return f"slot + {place}({at})"


def check_address(text: str, buffer: Buffer, work: Load, number: int) -> None:
    """Every lane of every warp gives the address of its row, in every step and tile.

    Args:
        text: the formula.
        buffer: the ring.
        work: what is loaded.
        number: of the instruction.

    Raises:
        VerifyError: it gives another one.
    """
    form, layout, size = work.load, buffer.rows, work.element_bytes
    row, byte = form.lane_addresses(number)
    depth, extent = layout.row_bytes // size, layout.rows
    if not form.k_contiguous:
        depth, extent = extent, depth
    counts = (extent // work.warp_tile, work.tiles, depth // form.tile_k, len(row))
    warp, tile, step, lane = np.indices(counts)
    along, across = step * form.tile_k, warp * work.warp_tile + tile * form.tile_mn
    if form.k_contiguous:
        row, byte = across + row[lane], along * size + byte[lane]
    else:
        row, byte = along + row[lane], across * size + byte[lane]
    swizzle, base = layout.swizzle, buffer.offset + SHARED_ALIGNMENT * 3 + buffer.slot_bytes
    wanted = base + swizzle.address(row, byte, layout.row_bytes)

    def place(row: Any, byte: Any) -> Any:
        return formula.value(layout.place, {"row": row, "byte": byte})

    names = {"slot": base, "i": tile, "s": step, "lane": lane, f"w_{work.role}": warp}
    found = formula.value(text, names | {f"place_{buffer.name}": place})
    if not np.array_equal(found, wanted) or (byte >= layout.row_bytes).any():
        raise VerifyError(f"lanes load {buffer.name} from elsewhere", where=text)


def _tiles_of_block(buffer: Buffer, work: Load) -> int:
    """Tiles beside each other in a block of the swizzle, where a warp's have several blocks; or 0.

    Of loads in another order than the instruction's: the text of others was timed as it is.
    """
    form, size = work.load, work.element_bytes
    block, own = buffer.rows.swizzle.block * chunk_bytes(), work.warp_tile * size
    each, rest = divmod(block, form.tile_mn * size)
    return each if form.order and not rest and own > block and own % block == 0 else 0


def _is_separable(buffer: Buffer, work: Load, number: int) -> bool:
    """Whether steps along the contiguous dim are XORs, and across it constants; tries them all."""
    form, layout = work.load, buffer.rows
    row_bytes, swizzle = layout.row_bytes, layout.swizzle
    row, byte = form.lane_addresses(number)
    if form.k_contiguous:
        stride, rows = form.tile_k * work.element_bytes, form.tile_mn
        extent, warps = row_bytes, np.arange(0, layout.rows, work.warp_tile)
        row, byte = row + warps[:, None], byte + 0 * warps[:, None]
    else:
        stride, rows = form.tile_mn * work.element_bytes, form.tile_k
        extent = work.warp_tile * work.element_bytes
        starts = np.arange(0, row_bytes, extent)
        row, byte = row + 0 * starts[:, None], byte + starts[:, None]
    base = swizzle.address(row, byte, row_bytes)
    steps = range(0, extent, stride)
    return (
        rows % swizzle.period == 0
        and buffer.offset % extent == 0
        and buffer.slot_bytes % extent == 0
        and extent <= SHARED_ALIGNMENT
        and all(
            np.array_equal(swizzle.address(row, byte + step, row_bytes), base ^ step)
            for step in steps
        )
    )
