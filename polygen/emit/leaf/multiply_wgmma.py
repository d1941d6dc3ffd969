"""Products of a warpgroup (``wgmma``): tiles in shared memory are named by matrix descriptors.

The right operand is always in shared memory; the left one is there, or in the registers of the
threads, as a fragment of one instruction.
"""

from __future__ import annotations

from typing import Any

from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import set_of, sum_register
from polygen.hardware.atom import Atom
from polygen.hardware.data_file import read
from polygen.hardware.matrix_layout import ADDRESS_MASK, MatrixLayout
from polygen.lower.buffers import Buffer
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.sync_work import Nothing
from polygen.lower.work import Product

REGISTERS = "registers"  # where the left operand lies, beside the ways of lying in shared memory


@leaf("fence", "wgmma", Nothing)
def _(plan: KernelPlan, one: Leaf, work: Nothing) -> Text:
    return Text('asm volatile("wgmma.fence.sync.aligned;" ::: "memory");', inline=True)


@leaf(
    "multiply", "wgmma", Product, ("k", "s", "m"), ("s", "m"),
    needs=("warm", "pack", "wgmma", "cursor"),
)  # fmt: skip
def _(plan: KernelPlan, one: Leaf, work: Product) -> Text:
    function = product_functions(plan)[_form(plan, work)]
    named = work.total.removeprefix("sum").removeprefix("inner")
    own = named or one.statement.removeprefix("multiply")
    in_shared = [(n, name) for n, name in enumerate("ab") if not (work.fragment and n == 0)]
    words, addresses, lows = {"a": work.fragment}, [], []
    for number, name in in_shared:
        ring = plan.buffer(work.buffers[number])
        counter = work.left_counter if number == 0 and work.left_counter else work.counter
        start = f"{counter}.slot * {ring.slot_bytes} + {_step(ring.matrix)}"
        rows = f" + m * {ring.matrix.block}" if number == 0 else ""
        lows.append(f"low_{name}{own} = {_low(ring, work.parts[number])}")
        low = f"low_{name}{own}"
        if _kept(plan, ring):
            addresses += [f"unsigned own_{name} = {low};", f'asm volatile("" : "+r"(own_{name}));']
            low = f"own_{name}"
        addresses.append(f"const unsigned address_{name} = {low} + (unsigned)({start}{rows}) / 16;")
        high = f"0x{ring.matrix.descriptor >> 32:x}u"
        words[name] = f"(unsigned long long){high} << 32 | address_{name}"
    left, sums = work.fragment or work.buffers[0], f"{work.total}{set_of(work.sets)}[m]"
    return Text(
        block(
            *addresses,
            f"{function}({sums}, {words['a']}, {words['b']}, {_added(work)});",
        ),
        f"{one.statement}[{','.join(one.loops)}]: {work.total}[m] += {left} * {work.buffers[1]}, "
        "proved to read what the copies wrote",
        (f"const unsigned {', '.join(lows)};",),
    )


def _kept(plan: KernelPlan, ring: Buffer) -> bool:
    """Whether the compiler would keep the addresses of all steps in registers that it has not.

    Those of a ring of one slot are the same in every iteration of the loops around: one register
    for each step, beside what the consumer holds and what results leave by.
    """
    if plan.chained is None or ring.slots > 1:
        return False
    beside = int(read("registers.toml")["addresses"][plan.atom.scope])
    steps = len(ring.matrix.k_steps)
    needed = plan.resources.registers + beside + steps
    return needed > plan.schedule.roles.consumer_registers


def _added(work: Product) -> str:
    """When sums are added to."""
    if work.overwrites is None:
        return "1"
    counted = (f"{loop} % {each}" if each else loop for loop, each in work.overwrites)
    return " || ".join(f"{one} > 0" for one in counted)


def product_functions(plan: KernelPlan) -> dict[tuple[str, ...], str]:
    """Where both operands lie, and how wide sums are (`_form`) -> the wrapper of the instruction
    that takes them so.
    """
    forms = dict.fromkeys(_form(plan, work) for work in plan.of(Product))
    return {
        form: f"multiply_matrices_{number}" if number else "multiply_matrices"
        for number, form in enumerate(forms)
    }


def _form(plan: KernelPlan, work: Product) -> tuple[str, ...]:
    """The innermost dim of each operand in shared memory, or that the left is in registers."""
    first, second = work.buffers
    left = REGISTERS if work.fragment else plan.buffer(first).matrix.major
    columns = (str(work.columns),) if work.columns else ()
    return (left, plan.buffer(second).matrix.major, *columns)


def product_wrapper(
    atom: Atom, columns: int, form: tuple[str, ...], function: str
) -> dict[str, Any]:
    """The product instruction of a warpgroup, for the template of its wrapper.

    Args:
        atom: the instruction.
        columns: of the result, unless its form says how many.
        form: where both operands lie: "k" or "mn", what is innermost in shared memory; of the left
            one `REGISTERS` too.
        function: the wrapper's name.
    """
    left, per_group = form[0], atom.c.registers
    columns = int(form[2]) if len(form) > 2 else columns
    groups = columns // atom.n
    count = groups * per_group
    kind, letter = sum_register(atom.c.dtype)
    outputs = (f'"+{letter}"(c[{g}][{e}])' for g in range(groups) for e in range(per_group))
    own = atom.a.registers if left == REGISTERS else 1
    first = f"%{count}"
    parameter, inputs = "unsigned long long a", '"l"(a)'
    if left == REGISTERS:
        first = "{" + ", ".join(f"%{count + i}" for i in range(own)) + "}"
        parameter = f"const unsigned (&a)[{own}]"
        inputs = ", ".join(f'"r"(a[{i}])' for i in range(own))
    # Factors of 1 or -1 for both operands, which whole numbers do not have.
    immediates = ", 1, 1" if atom.a.dtype.kind == "float" else ""
    if "mn" in atom.majors:  # what is in registers has no transpose
        immediates += "".join(f", {int(major != 'k')}" for major in form[:2] if major != REGISTERS)
    where = "a in registers, " if left == REGISTERS else ""
    return {
        "function": function,
        "comment": (
            f"{atom.name}: c[{atom.m},{columns}] = a * b (+ c if accumulate), {where}by a warpgroup"
        ),
        "c_type": kind,
        "blocks": groups,
        "registers": per_group,
        "ptx": atom.ptx.format(n=columns),
        "sums": ", ".join(f"%{i}" for i in range(count)),
        "left": parameter,
        "first": first,
        "second": f"%{count + own}",
        "accumulate": f"%{count + own + 1}",
        "immediates": immediates,
        "outputs": ", ".join(outputs),
        "inputs": inputs,
    }


def _low(ring: Buffer, own: str) -> str:
    """The low word of a matrix descriptor for slot 0.

    The address is cut to its field: in a cluster, the upper bits of a shared address hold the
    block's rank, and would run into the next field.
    """
    fields = ring.matrix.descriptor & 0xFFFFFFFF
    return f"((shared + {ring.offset}{own}) & 0x{ADDRESS_MASK:x}u) / 16 + 0x{fields:x}u"


def _step(layout: MatrixLayout) -> str:
    """The start of the k slice of MMA step `s`."""
    steps = layout.k_steps
    step = steps[1] if len(steps) > 1 else 0
    if steps == tuple(s * step for s in range(len(steps))):
        return f"s * {step}"
    per = layout.span // step
    formula = tuple(s // per * layout.box_bytes + s % per * step for s in range(len(steps)))
    assert formula == steps
    return f"s / {per} * {layout.box_bytes} + s % {per} * {step}"
