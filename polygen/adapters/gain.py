"""What a group gains, predicted: the kernel's time, and that of a library's products and one
pointwise kernel.

Both products are priced by polygen's cost model, so that what is compared is the fusion. Of few
rows polygen has schedules that libraries have not (`Schedule.for_few_rows`: operands exchanged, or
lanes that multiply): there a library's product is priced by the others, as far as libraries were
measured to take longer. A library adds a vector, or another product, to a product for nothing. What
its pointwise kernel reads of products is taken to be in the L2 cache as far as that keeps it, so
that small groups are not flattered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from polygen.decide import candidates
from polygen.decision import as_run, decision
from polygen.errors import ScheduleError
from polygen.frontend.dtypes import F32, TF32
from polygen.frontend.indices import size_value
from polygen.frontend.program import Access, Contraction, Pointwise, Program, Tensor
from polygen.hardware.cost_parameters import cost_parameters
from polygen.hardware.device import Device
from polygen.pipeline import with_sizes
from polygen.schedule.load import shipped
from polygen.schedule.model import Schedule
from polygen.schedule.problem import Fitted, Problem
from polygen.schedule.tuned import tuned
from polygen.tune.choose import choose
from polygen.tune.cost import cost, predict_all

_WHOLE = 16  # bytes: the alignment that the cost model was fitted to


@dataclass(frozen=True, slots=True)
class Gain:
    """Microseconds of a group as one kernel, and apart."""

    fused: float
    apart: float

    @property
    def ratio(self) -> float:
        """How many times as long it takes apart."""
        return self.apart / self.fused

    def __str__(self) -> str:
        return f"{self.fused:.1f} us, apart {self.apart:.1f} us, {self.ratio:.2f} times as long"


def predicted(
    program: Program,
    device: Device,
    sizes: Mapping[str, int],
    followed: Collection[str] = (),
) -> Gain:
    """The gain of a program with pointwise work.

    Args:
        program: what a kernel computes.
        device: the target.
        sizes: of its symbolic dims.
        followed: outputs that, apart, would be computed in kernels which there are anyway.

    Raises:
        PolygenError: no kernel can be made of it.
    """
    products = sum(library_time(bare(program, one), device, sizes) for one in program.contractions)
    return Gain(
        microseconds(program, device, sizes),
        products + pointwise_time(program, device, sizes, followed),
    )


def unknown(program: Program, sizes: Mapping[str, int], *, library: bool = False) -> str:
    """Why a prediction would say nothing about a program; empty: it does.

    Libraries and compilers multiply single rows, and rows that begin anywhere, in ways of their
    own, of which polygen's cost model knows nothing: pricing both sides by it flatters the kernel.

    Args:
        program: what a kernel computes, with the order in which each array is stored.
        sizes: of its symbolic dims.
        library: whether a library would multiply a single row of x in ``x @ w``, and no code that a
            compiler makes: of these it is known that they take no less time.
    """
    known = with_sizes(program, dict(sizes)).tensors
    multiplied = [access.name for product in program.contractions for access in product.reads]
    for name in (*multiplied, *(tensor.name for tensor in program.outputs)):
        if name in known and known[name].alignment < _WHOLE:
            return f"rows of {name} are no multiple of {_WHOLE} bytes: not predicted"

    for product in program.contractions:
        domain, written = dict(product.domain), set(product.write.iterators)
        for access, other in (product.reads, product.reads[::-1]):
            if library and access is product.lhs:
                continue
            own = (written & set(access.iterators)) - set(other.iterators)
            if math.prod(size_value(domain[iterator], sizes) for iterator in own) == 1:
                return f"{access.name} has a single row: not predicted"
    return ""


def microseconds(program: Program, device: Device, sizes: Mapping[str, int]) -> float:
    """Predicted time of a program's kernel.

    Raises:
        PolygenError: no kernel can be made of it.
    """
    return _time(*_chosen(program, device, sizes), device)


def library_time(program: Program, device: Device, sizes: Mapping[str, int]) -> float:
    """Predicted time of a library's kernel for a product.

    Args:
        program: a product, stored as its operands are.
        device: the target.
        sizes: of its symbolic dims.

    Raises:
        PolygenError: no kernel can be made of it.
    """
    chosen, problem, fit = _chosen(program, device, sizes)
    own = _time(chosen, problem, fit, device)
    if not chosen.schedule.for_few_rows:
        return own
    found = [fit(one) for one in shipped(device) if not one.for_few_rows]
    others = [one for one in found if isinstance(one, Fitted)]
    without = min(predict_all(device, others, problem), default=own)
    return max(own, min(without, own * cost_parameters(device).few_rows_library))


def _time(
    chosen: Fitted, problem: Problem, fit: Callable[[Schedule], Fitted | str], device: Device
) -> float:
    """Predicted time of the automatic choice: what was measured to be the fastest takes no longer
    than what would be chosen without measurements.
    """
    own = cost(device, chosen, problem).microseconds
    measured = tuned(device).get(problem)
    if measured is None or measured.schedule != chosen.schedule.name:
        return own
    other = fit(choose(device, problem, fit)[0])
    return min(own, cost(device, other, problem).microseconds) if isinstance(other, Fitted) else own


def _chosen(
    program: Program, device: Device, sizes: Mapping[str, int]
) -> tuple[Fitted, Problem, Callable[[Schedule], Fitted | str]]:
    """The automatic choice for a program, what the model knows of it, and what fits others.

    Raises:
        PolygenError: no kernel can be made of it.
    """
    known = {name: sizes[name] for name in program.sizes}
    program = with_sizes(program, known)
    schedule, _ = decision(program, device, known)
    problem, fit = candidates(as_run(program, schedule), device, known)
    fitted = fit(schedule)
    if isinstance(fitted, str):
        raise ScheduleError(fitted, where=schedule.name)
    return fitted, problem, fit


def bare(program: Program, product: Contraction) -> Program:
    """One product of a program as a program, stored as its operands are."""
    tensors, made = program.tensors, _multiplied(program, product)
    kind = next(t.dtype for t in (*made, *tensors.values()) if t.name == product.lhs.name)
    stored = F32 if kind == TF32 else kind
    extents = dict(product.domain)
    domain = tuple((i, extents[i]) for i in product.write.iterators)
    output = Tensor(
        program.outputs[0].name, stored, tuple(e for _, e in domain), tuple(range(len(domain)))
    )
    names = {access.name for access in product.reads}
    here = tuple(iterator for iterator, _ in domain)
    return Program(
        f"{program.name}_product",
        str(product),
        (*(tensor for tensor in program.inputs if tensor.name in names), *made),
        (output,),
        (product, Pointwise("P_cast", domain, Access(output.name, here), "cast",
                            (product.write,), stored)),
    )  # fmt: skip


def _multiplied(program: Program, product: Contraction) -> tuple[Tensor, ...]:
    """What a product multiplies of what another one makes, as arrays."""
    writers = {statement.write.name: statement for statement in program.statements}
    found = []
    for access in product.reads:
        writer = writers.get(access.name)
        if isinstance(writer, Pointwise):
            sizes = dict(writer.domain)
            dims = tuple(sizes[it] for it in writer.write.iterators)
            found.append(Tensor(access.name, writer.dtype, dims, tuple(range(len(dims)))))
    return tuple(found)


def pointwise_time(
    program: Program,
    device: Device,
    sizes: Mapping[str, int],
    followed: Collection[str] = (),
) -> float:
    """Predicted time of a kernel that does a program's pointwise work on products in memory.

    Where kernels behind do all of it, in passing, what they move besides is all that it takes: they
    read products in the place of its results.
    """
    worked = [tensor for tensor in program.outputs if not _is_library_s(program, tensor.name)]
    if not worked:
        return 0.0

    def stored(tensor: Tensor) -> float:
        return tensor.dtype.bytes * math.prod(tensor.shape(sizes))

    parameters = cost_parameters(device)
    kept = sum(stored(bare(program, one).outputs[0]) for one in program.contractions)
    kept = max(0.0, kept - parameters.l2_share * parameters.l2_bytes)
    passing = all(tensor.name in followed for tensor in worked)
    read = {access.name for statement in program.pointwise for access in statement.reads}
    arrays = sum(stored(tensor) for tensor in program.inputs if tensor.name in read)
    written = sum(stored(tensor) for tensor in worked)
    rate = parameters.memory_share * parameters.memory * 1e3  # bytes per microsecond
    if passing:
        return (arrays + written) / rate
    return parameters.start + (kept + arrays + written) / rate


def is_pointwise_work(program: Program) -> bool:
    """Whether there is more than what a library adds to products."""
    return not all(_is_library_s(program, tensor.name) for tensor in program.outputs)


def _is_library_s(program: Program, name: str) -> bool:
    """Whether a value is what a library's products give: sums, perhaps with a vector added, or with
    what another product gives, which it adds to while it multiplies.
    """
    found: set[str] = set()
    for one in program.statements:
        if not isinstance(one, Pointwise) or _adds_to(program, one, found):
            found.add(one.write.name)
    return name in found


def _adds_to(program: Program, one: Pointwise, given: Collection[str]) -> bool:
    """Whether a library computes a statement while it multiplies, of what its products give."""
    values = [a for a in one.reads if a.name not in program.tensors]
    arrays = [a for a in one.reads if a.name in program.tensors]
    vectors = all(len(set(a.iterators)) <= 1 for a in arrays)
    if one.function != "cast" and not (one.function == "add" and vectors):
        return False
    own = 1 if one.function == "cast" or arrays else 2
    every = len(values) == own and len(one.args) == len(values) + len(arrays)
    return every and all(value.name in given for value in values)
