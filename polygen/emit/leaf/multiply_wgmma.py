"""Products of a warpgroup on two tiles in shared memory (``wgmma``), through matrix descriptors."""

from __future__ import annotations

from polygen.emit.leaf.table import Text, block, leaf
from polygen.hardware.matrix_layout import ADDRESS_MASK, MatrixLayout
from polygen.lower.plan import Buffer, KernelPlan, Leaf
from polygen.lower.work import Nothing, Product


@leaf("fence", "wgmma", Nothing)
def _(plan: KernelPlan, one: Leaf, work: Nothing) -> Text:
    return Text('asm volatile("wgmma.fence.sync.aligned;" ::: "memory");', inline=True)


@leaf("multiply", "wgmma", Product, ("k", "s", "m"), needs=("warm", "pack", "wgmma", "cursor"))
def _(plan: KernelPlan, one: Leaf, work: Product) -> Text:
    a, b = (plan.buffer(name) for name in work.buffers)
    function = product_functions(plan)[_majors(plan, work)]
    lows = [f"low_{name}{work.total.removeprefix('sum')}" for name in "ab"]
    low_a, low_b = (_low(ring, part) for ring, part in zip((a, b), work.parts, strict=True))
    start_a, start_b = (
        f"{work.counter}.slot * {ring.slot_bytes} + {_step(ring.matrix)}" for ring in (a, b)
    )
    high_a, high_b = (f"0x{ring.matrix.descriptor >> 32:x}u" for ring in (a, b))
    words = (
        f"(unsigned long long){high_a} << 32 | address_a, "
        f"(unsigned long long){high_b} << 32 | address_b"
    )
    return Text(
        block(
            f"const unsigned address_a = {lows[0]} + "
            f"(unsigned)({start_a} + m * {a.matrix.block}) / 16;",
            f"const unsigned address_b = {lows[1]} + (unsigned)({start_b}) / 16;",
            f"{function}({work.total}[m], {words}, k > 0 || s > 0);",
        ),
        f"{one.statement}[i,k,s,m]: {work.total}[m] += {a.name} * {b.name}, "
        "proved to read what the copies wrote",
        (f"const unsigned {lows[0]} = {low_a}, {lows[1]} = {low_b};",),
    )


def product_functions(plan: KernelPlan) -> dict[tuple[str, ...], str]:
    """The innermost dims of both operands -> the wrapper of the instruction that reads them so."""
    forms = dict.fromkeys(_majors(plan, work) for work in plan.of(Product))
    return {
        majors: f"multiply_matrices_{number}" if number else "multiply_matrices"
        for number, majors in enumerate(forms)
    }


def _majors(plan: KernelPlan, work: Product) -> tuple[str, ...]:
    return tuple(plan.buffer(name).matrix.major for name in work.buffers)


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
