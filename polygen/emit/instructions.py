"""The wrappers of instructions that the leaves call: each once, those that are needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polygen.emit.leaf import kind_of
from polygen.emit.leaf.computed_chunk import conversion_records
from polygen.emit.leaf.dots import chunk_read
from polygen.emit.leaf.fragment_pairs import pair_records
from polygen.emit.leaf.load_threads import load_function
from polygen.emit.leaf.move_cp_async import copy_function
from polygen.emit.leaf.multiply_wgmma import product_functions, product_wrapper
from polygen.emit.leaves import double_of_words, sum_register
from polygen.emit.row_groups import group_parts
from polygen.emit.tile_domain import walk_parts
from polygen.frontend.dtypes import F64
from polygen.hardware.quad_pairs import part_registers
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.buffers import Buffer, Rows
from polygen.lower.computed import Computed
from polygen.lower.fragments import Make
from polygen.lower.plan import KernelPlan
from polygen.lower.realign_work import WORD, RowMake
from polygen.lower.result_work import Finish, Lines, Read, Store
from polygen.lower.scan_work import Scan
from polygen.lower.work import Boxes, Copy, Fill, Load, Locate, Move, Product, Stream

# Files of templates/instructions in their order.
_ORDER = (
    "copies", "fragment_loads", "round_to_tf32", "split_to_tf32", "mma", "words", "double_words",
    "places",
    "tensor_map", "mbarrier", "cluster", "mbarrier_wait", "map_prefetch", "box_load",
    "box_load_once", "box_multicast", "panels_out", "portions", "warm", "near", "panels_in",
    "pieces", "pack", "pack_apart", "chunks", "inside", "wide_chunks", "gathered", "page_at",
    "scattered", "computed", "pairs", "staged", "shared_words", "wgmma", "scan", "cursor",
    "block_address", "partial_sums", "row_numbers", "wait_across", "divisor", "row_groups",
    "tile_domain", "dots", "row_edge", "store_computed",
)  # fmt: skip
_COORDINATES = ("inner", "outer", "third", "fourth", "fifth")


def instructions(plan: KernelPlan) -> dict[str, Any]:
    """Which wrappers a kernel has, and what they need."""
    every = (*plan.leaves, *(leaf for copy in plan.copies for leaf in copy.leaves))
    needed = {need for leaf in every for need in kind_of(leaf).needs}
    if any(argument.kind == "map" for argument in plan.arguments):
        needed.add("map_prefetch")
    if plan.launch.blocks > 1:
        needed.add("cluster")
    if any(locate.divides for locate in plan.of(Locate)):
        needed.add("divisor")
    if plan.match.groups:
        needed.add("row_groups")
    if plan.tile_domain is not None and plan.launch.persistent:
        needed.add("tile_domain")
    if plan.of(Scan) and plan.atom.a.elements_per_register > 1:
        needed.add("pack")
    if any(load.round_to_tf32 for load in plan.of(Load)):
        needed.add("round_to_tf32")
    if any(load.rest for load in plan.of(Load)):
        needed.add("split_to_tf32")
    loaded = [boxes for move in plan.of(Move) for boxes in move.boxes]
    received = [boxes for boxes in loaded if boxes.mask]
    if received:
        needed.add("box_multicast")
    once = [boxes for boxes in loaded if boxes.once]
    if once:
        needed.add("box_load_once")
    if any(finish.operands for finish in plan.of(Finish)):
        needed.add("panels_in")
    lines = [line for work in plan.of(Lines) for line in work.moved]
    if any(line.shifted is not None and isinstance(line.access, Read) for line in lines):
        needed.add("row_edge")
    if "words" in needed and plan.program.real == F64:
        needed.add("double_words")
    computed = computed_chunks(plan)
    if any(work.load is not None for work in plan.of(Make)):
        needed.add("fragment_loads")
    if computed or plan.of(Make):
        needed |= {"pack", "chunks", "computed"}
    if any(fetch.tensor.dtype.bytes > WORD for one in computed for fetch in one.fetches):
        needed.add("wide_chunks")
    if any(work.pairs is not None for work in plan.of(Make)):
        needed.add("pairs")
    ending = [work for work in plan.of(Make) if not work.ends_whole]
    if any(work.ends(one) for work in ending for one in work.beside):
        needed.add("inside")
    by_index = [fetch.rows for one in computed for fetch in one.fetches]
    by_index += [
        rows for e in plan.epilogues for read in e.reads for rows in read.rows
    ]  # fmt: skip
    if any(rows is not None for rows in by_index):
        needed.add("gathered")
    if any(write.by_index is not None for e in plan.epilogues for write in e.writes):
        needed.add("scattered")
    if "pack" in needed and not plan.device.has("cvt_pairs"):
        needed = needed - {"pack"} | {"pack_apart"}
    unit, of_sums = plan.leaf_of(Product).unit, sum_register(plan.atom.c.dtype)
    products = {"mma.sync": lambda: [_multiply(plan)], "wgmma": lambda: _products(plan)}
    return {
        "edge": {"bytes": chunk_bytes(), "words": chunk_bytes() // WORD},
        "byte_panels": any(
            panel.element_bytes == 1
            for finish in plan.of(Finish)
            for panel in (*finish.operands, *finish.results)
        ),
        "instructions": [part for part in _ORDER if part in needed],
        "copy_instructions": _copies(plan),
        "conversions": conversion_records(computed, plan.of(Make)),
        "pairs": pair_records(plan.of(Make)),
        "fragment_loads": _fragment_loads(plan),
        "buffers": [
            {"name": b.name, "formula": placement(b)}
            for b in plan.buffers
            if isinstance(b.layout, Rows)
        ],
        "products": products[unit]() if unit in products else [],
        "sums": {"dtype": plan.atom.c.dtype.name, "type": of_sums[0], "letter": of_sums[1]},
        "domain": walk_parts(plan),
        "groups": group_parts(plan),
        "dot_type": plan.atom.a.dtype.name,
        "chunk_reads": _chunk_reads(plan),
        "box_loads": _corners(plan, loaded, 3),
        "box_loads_once": _corners(plan, once, 4),
        "box_multicasts": _corners(plan, received, 3),
        "box_stores": _corners(plan, [b for store in plan.of(Store) for _, b in store.panels], 2),
    }


def copies(plan: KernelPlan) -> list[Copy]:
    """What threads copy or compute, into whatever ring."""
    filled = [source.copy for work in plan.of(Fill) for source in work.sources]
    return list(dict.fromkeys((*plan.of(Copy), *filled)))


def computed_chunks(plan: KernelPlan) -> list[Computed]:
    """How threads compute operands, on their way into rings or before the kernel."""
    copied = plan.realign.turned if plan.realign is not None else ()
    before = [leaf.work for one in plan.copies for leaf in one.leaves]
    made = [one for one in before if isinstance(one, RowMake) and one.tensor.name not in copied]
    found = [c.computed for c in copies(plan) if c.computed is not None]
    return [*found, *(one.computed for one in made)]


def _corners(plan: KernelPlan, moved: Sequence[Boxes], first: int) -> list[dict[str, Any]]:
    """The coordinates of a box, innermost first, for each number of them that a map has.

    Args:
        plan: the kernel.
        moved: the boxes that one instruction moves.
        first: the place of the first coordinate among the instruction's operands.
    """
    maps = {argument.name: len(argument.axes) for argument in plan.arguments}
    return [
        {
            "names": (names := _COORDINATES[:rank]),
            "parameters": ", ".join(f"int {name}" for name in names),
            "places": ", ".join(f"%{first + axis}" for axis in range(rank)),
            "operands": ", ".join(f'"r"({name})' for name in names),
            "next": f"%{first + rank}",
        }
        for rank in sorted({maps[boxes.map] for boxes in moved})
    ]


def placement(buffer: Buffer) -> str:
    """The byte offset of byte `byte` of row `row`, as proved for the buffer's swizzle."""
    return buffer.rows.place


def _chunk_reads(plan: KernelPlan) -> list[dict[str, str]]:
    """The loads of chunks that lanes make: of rows that others read too, and of rows read once."""
    forms = {
        False: ("ld.global.nc.v4.b32", "which other warps read too"),
        True: ("ld.global.cs.v4.b32", "which is read once: the first that caches let go"),
    }
    found = {stream.once: chunk_read(stream) for stream in plan.of(Stream)}
    return [
        {"function": name, "ptx": forms[once][0], "comment": forms[once][1]}
        for once, name in sorted(found.items())
    ]


def _copies(plan: KernelPlan) -> list[dict[str, str]]:
    """The background copies the plan uses."""
    found = {}
    for c in plan.of(Copy):
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


def _fragment_loads(plan: KernelPlan) -> list[dict[str, Any]]:
    """The load instructions the plan uses."""
    found = {}
    loads = [work.load for work in plan.of(Load)]
    loads += [work.load for work in plan.of(Make) if work.load is not None]
    for load in loads:
        name, count = load_function(load), load.results
        results = ", ".join(f"%{i}" for i in range(count))
        words = "one 32-bit word" if count == 1 else f"{count} adjacent 32-bit words"
        found[name] = {
            "function": name,
            "ptx": load.ptx,
            "comment": (
                f"{count} matrices of 8 x 16 bytes; each lane gives the address of one row"
                if load.uses_ldmatrix
                else f"{words} per lane"
            ),
            "parameters": ", ".join(f"unsigned& r{i}" for i in range(count)),
            "constraints": ", ".join(f'"=r"(r{i})' for i in range(count)),
            "results": f"{{{results}}}" if load.uses_ldmatrix or count > 1 else results,
            "count": count,
        }
    return [found[name] for name in sorted(found)]


def _multiply(plan: KernelPlan) -> dict[str, Any]:
    """The product instruction of a warp."""
    atom = plan.atom
    c, a, b = atom.c.variables, atom.a.registers, atom.b.registers
    kind, letter = sum_register(atom.c.dtype)
    wide = not atom.a.elements_per_register  # an element is several registers
    sizes = part_registers(atom.ptx) if atom.parts else (c, a, b)
    if wide:
        sizes = c, atom.a.elements, atom.b.elements
    groups, first = [], 0
    for size in sizes:
        groups.append("{" + ", ".join(f"%{first + i}" for i in range(size)) + "}")
        first += size

    def named(register: str, begins: int, count: int, name: str) -> str:
        return ", ".join(f'"{register}"({name}[{begins + i}])' for i in range(count))

    def operand(begins: int, count: int, name: str) -> str:
        if not wide:
            return named("r", begins, count, name)
        return ", ".join(
            f'"{letter}"({double_of_words(name, 2 * i, 2 * i + 1)})' for i in range(count)
        )

    several = f", {len(atom.parts)} instructions" if atom.parts else ""
    if atom.split:
        several = f" of {atom.pieces} parts each, {len(atom.split)} instructions"
    # Where each instruction's registers of c, a and b begin.
    begins = [(0, left * a, right * b) for left, right in atom.split] or atom.parts or ((0, 0, 0),)
    total = "part" if atom.split else "c"
    return {
        "comment": (
            f"{atom.name}: c[{atom.m},{atom.n}] += a[{atom.m},{atom.k}] * b[{atom.k},{atom.n}]"
            f"{several}"
        ),
        "ptx": atom.ptx,
        "c_type": kind,
        "c": c,
        "a": a * atom.pieces,
        "b": b * atom.pieces,
        "apart": bool(atom.split),
        "operands": ", ".join([*groups, groups[0]]),
        "parts": [
            {
                "outputs": named(f"+{letter}", own_c, sizes[0], total),
                "inputs": f"{operand(own_a, sizes[1], 'a')}, {operand(own_b, sizes[2], 'b')}",
            }
            for own_c, own_a, own_b in begins
        ],
    }


def _products(plan: KernelPlan) -> list[dict[str, Any]]:
    """The product instruction of a warpgroup, for each way in which operands lie."""
    columns = plan.tiles.warp[1]
    return [
        product_wrapper(plan.atom, columns, form, function)
        for form, function in product_functions(plan).items()
    ]
