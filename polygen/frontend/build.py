"""Array code to `Program`.

1. The function is run on traced arguments; the graph's roots are what it returns.
2. What they read is written as statements by `polygen.frontend.statements`.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from polygen.errors import (
    DTypeError,
    PolygenError,
    ShapeError,
    SignatureError,
    TraceError,
    told,
)
from polygen.frontend.doubles import check_doubles
from polygen.frontend.dtypes import ALWAYS_STORED, DType
from polygen.frontend.dtypes import dtype as to_dtype
from polygen.frontend.grouping import ends_of, in_groups
from polygen.frontend.iterators import Iterators
from polygen.frontend.nodes import Node, ProductNode, walk
from polygen.frontend.packed import stored, taken_apart
from polygen.frontend.part_folds import folded_by_parts
from polygen.frontend.program import Program, Tensor
from polygen.frontend.scattering import require_returned, require_unread
from polygen.frontend.shapes import check_tensor
from polygen.frontend.split_folds import split_where_folded
from polygen.frontend.statements import Builder
from polygen.frontend.summed_products import with_products
from polygen.frontend.trace import Trace
from polygen.frontend.traced import Traced

MAX_OUTPUTS = 8


def build_program(
    function: Callable[..., Any],
    name: str,
    source: str,
    tensors: Sequence[Tensor],
    out_dtypes: object = None,
    acc_dtype: object = "f32",
) -> Program:
    """Traces a function of arrays into a Program.

    Args:
        function: array code; it returns one value or a tuple or list of up to eight.
        name: what the kernel is called; made a C identifier.
        source: the expression or function text, for people.
        tensors: one per argument, in call order; one without a name takes the parameter's.
        out_dtypes: None, one dtype for all outputs, or a sequence of one (or None) per output. By
            default an output that ends in `.astype` has that dtype, and another the dtype of the
            matmul's operands (f32 for tf32, f16 for the 8-bit floats, f32 for s8 and u8, or s32
            where the output is the bare product).
        acc_dtype: f32, or f16 for f16 operands; s8 and u8 operands always accumulate in s32.

    Returns:
        The Program; outputs are named y0, y1, …, row-major. An argument that is stored into is an
        output under its own name, as it lies.

    Raises:
        TraceError: the function does something a trace cannot follow, or leaves an argument unused.
        ShapeError: operands or outputs have dims that do not fit.
        DTypeError: operand, accumulator or output dtypes do not fit.
        SignatureError: `tensors` does not fit the function's parameters.
        UnsupportedProgram: no contraction, or an einsum that is none.
    """
    described = _named(function, tensors)
    inputs = given = tuple(map(stored, described))
    trace = Trace()
    arguments = [Traced(trace, trace.input(tensor)) for tensor in inputs]
    seen = [taken_apart(*pair) for pair in zip(arguments, described, strict=True)]
    result = _run(function, name, seen)
    roots = _roots(result, trace)
    require_returned(trace.assigned, roots, name)
    assigned = {one.target.tensor.name: one for one in trace.assigned}
    inputs = tuple(tensor for tensor in inputs if tensor.name not in assigned)
    wanted = _wanted(out_dtypes, len(roots))
    names = [str(name) for tensor in given for name in (tensor.name, *tensor.dims)]
    builder = Builder(_prefix("v", given), Iterators(names), acc_dtype)
    stores = {one.target: one for one in trace.assigned}
    values = [stores[root].value if root in stores else root for root in roots]
    values = folded_by_parts(trace, split_where_folded(trace, with_products(trace, values)))
    nodes = (node for value in values for node in walk(value, products=False))
    beside = any(isinstance(node, ProductNode) for node in nodes)
    for position, value in enumerate(values):
        builder.collect(value, position, beside=beside)
    builder.contract(trace.positions())
    output = _prefix("y", given)
    outputs = tuple(
        builder.assigned(replace(stores[root], value=value), dtype)
        if root in stores
        else builder.output(f"{output}{position}", value, dtype)
        for position, (root, value, dtype) in enumerate(zip(roots, values, wanted, strict=True))
    )
    statements = tuple(builder.statements)
    require_unread(trace.assigned, statements)
    ends = ends_of(values)
    if ends is not None:
        group = builder.iterators.group()
        statements = in_groups(statements, (*inputs, *outputs), ends, group)
    read = {access.name for statement in statements for access in statement.reads}
    read |= {ends.tensor.name} if ends is not None else set()
    unused = [tensor.name for tensor in inputs if tensor.name not in read]
    if unused:
        raise TraceError(
            f"unused argument {', '.join(unused)}", where=name, nearest="Remove it, or use it"
        )
    in_place = tuple((t.name, at) for at, t in enumerate(given) if t.name in assigned)
    program = Program(_identifier(name), source, inputs, outputs, statements, in_place=in_place)
    check_doubles(program)
    alone = {program.ends, *program.gathered}
    return replace(program, inputs=tuple(_read_alone(tensor, alone) for tensor in inputs))


def _read_alone(tensor: Tensor, alone: set[str]) -> Tensor:
    """Ends of groups and indices as kernels read them: element by element, at any address."""
    return replace(tensor, alignment=tensor.dtype.bytes) if tensor.name in alone else tensor


def _run(function: Callable[..., Any], name: str, arguments: Sequence[Traced]) -> Any:
    """What the function returns; its own exceptions are named as such."""
    try:
        return function(*arguments)
    except (PolygenError, KeyboardInterrupt):
        raise
    except BaseException as error:  # sys.exit() too: it would end polygen without a word
        raise TraceError(f"the function raises {told(error)}", where=name) from error


def _identifier(name: str) -> str:
    text = re.sub(r"[^A-Za-z0-9_]", "_", name) or "kernel"
    return f"_{text}" if text[0].isdigit() else text


def _prefix(letter: str, inputs: Sequence[Tensor]) -> str:
    """`letter`, with underscores until no argument and no dim is called prefix and number."""
    names = [str(name) for tensor in inputs for name in (tensor.name, *tensor.dims)]
    while any(re.fullmatch(rf"{letter}\d+", name) for name in names):
        letter += "_"
    return letter


def _named(function: Callable[..., Any], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The tensors, checked, each with a name; they must fit the function's parameters."""
    parameters = _parameters(function, len(tensors))
    inputs = []
    for position, tensor in enumerate(tensors):
        parameter = parameters[position] if position < len(parameters) else f"arg{position}"
        if tensor.name in parameters and tensor.name != parameter:
            raise SignatureError(
                f"argument {position + 1} is described as {tensor.name}",
                where=str(tensor),
                why=f"the function's parameters are {', '.join(parameters)}",
                nearest="Describe them in that order",
            )
        inputs.append(check_tensor(replace(tensor, name=tensor.name or parameter)))
    names = [tensor.name for tensor in inputs]
    for tensor in inputs:
        if names.count(tensor.name) > 1:
            raise SignatureError(f"two arguments are called {tensor.name}")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", tensor.name):
            raise SignatureError(f"{tensor.name!r} is not a name", nearest="Use a C identifier")
        for owner in inputs:
            if tensor.name in owner.dims:
                raise SignatureError(
                    f"{tensor.name} is both an argument and a dim of {owner.name}",
                    nearest=f"Call the dim {tensor.name.upper()}_SIZE",
                )
    return tuple(inputs)


def _parameters(function: Callable[..., Any], count: int) -> list[str]:
    """Names of the positional parameters; empty if Python does not tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p.name for p in positional if p.default is p.empty]
    keyword_only = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if keyword_only:
        raise SignatureError(
            f"parameter {', '.join(keyword_only)} is keyword-only",
            nearest="Arguments are positional; give it a default or drop the *",
        )
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if count < len(required) or (count > len(positional) and not variadic):
        raise SignatureError(
            f"{count} arguments are described and the function takes {len(required)}",
            why=f"its parameters are {', '.join(p.name for p in positional) or 'none'}",
            nearest='Describe each, as in "bf16[M,K]"',
        )
    return [p.name for p in positional]


def _roots(result: Any, trace: Trace) -> list[Node]:
    values = list(result) if isinstance(result, (tuple, list)) else [result]
    if not 1 <= len(values) <= MAX_OUTPUTS:
        raise TraceError(
            f"the function returns {len(values)} values", nearest=f"Return 1 to {MAX_OUTPUTS}"
        )
    for position, value in enumerate(values):
        if inspect.iscoroutine(value):
            value.close()  # or Python warns, beside the message
            raise TraceError("the function is asynchronous", nearest="Write def, not async def")
        if not isinstance(value, Traced) or value.trace is not trace:
            raise TraceError(
                f"output {position} is a {type(value).__name__}",
                why="it was not computed from the arguments",
                nearest="Return an expression of the arguments, or a tuple of them",
            )
    return [value.node for value in values]


def _wanted(out_dtypes: object, count: int) -> list[DType | None]:
    """The requested dtype per output, None where the default applies."""
    given = list(out_dtypes) if isinstance(out_dtypes, (tuple, list)) else [out_dtypes] * count
    if len(given) != count:
        raise DTypeError(
            f"out_dtype names {len(given)} dtypes for {count} outputs",
            nearest="Give one for all, or one for each",
        )
    return [None if item is None else to_dtype(item, ALWAYS_STORED) for item in given]


def build_for(
    function: Callable[..., Any],
    name: str,
    source: str,
    tensors: Sequence[Tensor],
    sizes: Mapping[str, int],
    out_dtype: Any = None,
    acc_dtype: str = "f32",
    named: bool = False,
) -> Program:
    """The program of arrays of known sizes: numbers stand where a name of a size will not do.

    Args:
        function: array code.
        name: what the kernel is called.
        source: the function's text, for people.
        tensors: the arrays, with names for their sizes.
        sizes: of these names.
        out_dtype: as for `build_program`.
        acc_dtype: as for `build_program`.
        named: whether people gave the names, so that two of one size are not one.

    Raises:
        PolygenError: as for `build_program`.
    """

    def trace(tensors: Sequence[Tensor]) -> Program:
        return build_program(function, name, source, tensors, out_dtype, acc_dtype)

    while True:
        try:
            return trace(tensors)
        except PolygenError as error:
            if named and _two_names(error):
                raise
            tensors = with_sizes_of(tensors, numbers_for(error, trace, tensors, sizes))


def _two_names(error: PolygenError) -> bool:
    """Whether dims with names of their own would have to be one."""
    pair = error.differing if isinstance(error, ShapeError) else None
    return pair is not None and all(isinstance(dim, str) for dim in pair)


def numbers_for(
    error: PolygenError,
    trace: Callable[[Sequence[Tensor]], Program],
    tensors: Sequence[Tensor],
    sizes: Mapping[str, Any],
) -> dict[str, int]:
    """The sizes that a trace has to know as numbers, of those that it was refused for.

    Args:
        error: what `trace` refused `tensors` with.
        trace: the program for given tensors.
        tensors: the arrays, with names for their sizes.
        sizes: of these names; what stands for a number, in a library that traces, becomes one.

    Returns:
        At least one number, by name.

    Raises:
        PolygenError: `error`, where no number helps.
    """
    pair = error.differing if isinstance(error, ShapeError) else None
    asked = error.unknown
    if not asked and pair and sizes.get(str(pair[0]), pair[0]) == sizes.get(str(pair[1]), pair[1]):
        asked = tuple(map(str, pair))
    fixed = {dim: int(sizes[dim]) for dim in asked if dim in sizes}
    if not fixed:
        raise error
    for dim in reversed(fixed) if len(fixed) > 1 else ():  # one of them may do, the inner first
        with contextlib.suppress(PolygenError):
            trace(with_sizes_of(tensors, {dim: fixed[dim]}))
            return {dim: fixed[dim]}
    return fixed


def with_sizes_of(tensors: Sequence[Tensor], sizes: Mapping[str, int]) -> list[Tensor]:
    """The tensors with numbers in the place of some names of sizes."""
    return [
        replace(t, dims=tuple(sizes.get(d, d) if isinstance(d, str) else d for d in t.dims))
        for t in tensors
    ]
