"""Array code to `Program`.

1. The function is run on traced arguments; the graph's roots are what it returns.
2. Each matmul reached from a root becomes a contraction in its own (i, j, k), numbered first.
3. A pointwise node becomes a statement over the whole domain of the output it is computed for.
   Walking down from an output, `index` says which of the output's iterators (or 0) indexes each
   axis of a node: a broadcast axis drops to 0, a view permutes. So `(x @ w).T + r` reads v0[j,i]
   and r[i,j].
4. A (node, index, domain) triple is computed once; the last statement of an output casts to its
   dtype.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from polygen.errors import (
    DTypeError,
    PolygenError,
    ShapeError,
    SignatureError,
    TraceError,
    UnsupportedProgram,
    told,
)
from polygen.frontend.dtypes import BOOL, F32, STORED, TF32, DType
from polygen.frontend.dtypes import dtype as to_dtype
from polygen.frontend.expr import (
    ApplyNode,
    Dims,
    InputNode,
    MatmulNode,
    Node,
    ScalarNode,
    ViewNode,
    describe,
    describe_cast,
)
from polygen.frontend.program import (
    Access,
    Constant,
    Contraction,
    Dim,
    Index,
    Pointwise,
    Program,
    Statement,
    Tensor,
)
from polygen.frontend.shapes import accumulator, check_tensor, default_output, shape_text
from polygen.frontend.trace import Trace
from polygen.frontend.traced import Traced

MAX_OUTPUTS = 8

Domain = tuple[tuple[str, Dim], ...]
Indices = tuple[Index, ...]


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
            matmul's operands (f32 for tf32, f16 for the 8-bit floats, f32 for s8, or s32 where the
            output is the bare product).
        acc_dtype: f32, or f16 for f16 operands; s8 operands always accumulate in s32.

    Returns:
        The Program; outputs are named y0, y1, …, row-major.

    Raises:
        TraceError: the function does something a trace cannot follow, or leaves an argument unused.
        ShapeError: operands or outputs have dims that do not fit.
        DTypeError: operand, accumulator or output dtypes do not fit.
        SignatureError: `tensors` does not fit the function's parameters.
        UnsupportedProgram: no contraction, or one that reads computed operands.
    """
    inputs = _named(function, tensors)
    trace = Trace()
    result = _run(function, name, [Traced(trace, trace.input(tensor)) for tensor in inputs])
    roots = _roots(result, trace)
    wanted = _wanted(out_dtypes, len(roots))
    builder = _Builder(_prefix("v", inputs))
    for position, root in enumerate(roots):
        builder.collect(root, position)
    builder.contract(acc_dtype)
    output = _prefix("y", inputs)
    outputs = tuple(
        builder.output(f"{output}{position}", root, dtype)
        for position, (root, dtype) in enumerate(zip(roots, wanted, strict=True))
    )
    statements = tuple(builder.statements)
    read = {access.name for statement in statements for access in statement.reads}
    unused = [tensor.name for tensor in inputs if tensor.name not in read]
    if unused:
        raise TraceError(
            f"unused argument {', '.join(unused)}", where=name, nearest="Remove it, or use it"
        )
    return Program(_identifier(name), source, inputs, outputs, statements)


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
    return [None if item is None else to_dtype(item, STORED) for item in given]


def _source_index(node: ViewNode, index: Indices) -> Indices:
    """How a view's index addresses its source; a dropped axis has size 1."""
    where = {axis: index[position] for position, axis in enumerate(node.axes) if axis is not None}
    return tuple(where.get(axis, 0) for axis in range(len(node.source.dims)))


def _unview(node: Node, index: Indices) -> tuple[Node, Indices]:
    """The node under views, and the index that reaches the same element."""
    while isinstance(node, ViewNode):
        index = _source_index(node, index)
        node = node.source
    return node, index


def _argument_index(dims: Dims, index: Indices, arg: Node) -> Indices:
    """How a node of dims `dims`, indexed by `index`, addresses an argument broadcast to it."""
    skip = len(dims) - len(arg.dims)
    return tuple(
        index[skip + axis] if dim == dims[skip + axis] else 0 for axis, dim in enumerate(arg.dims)
    )


@dataclass(slots=True)
class _Builder:
    """Statements under construction."""

    prefix: str
    statements: list[Statement] = field(default_factory=list)
    matmuls: dict[MatmulNode, str] = field(default_factory=dict)  # to the value's name
    first: dict[Node, MatmulNode] = field(default_factory=dict)  # per output, the first it reads
    memo: dict[tuple[Node, Indices, Domain], Access | Constant] = field(default_factory=dict)

    def collect(self, root: Node, position: int) -> None:
        """Numbers the contractions that an output reads, in the order of the function's text."""
        seen: set[Node] = set()
        found = []
        stack = [root]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if isinstance(node, MatmulNode):
                found.append(node)
            elif isinstance(node, ViewNode):
                stack.append(node.source)
            elif isinstance(node, ApplyNode):
                stack.extend(reversed(node.args))
        if not found:
            raise UnsupportedProgram(
                f"output {position}, {describe(root)}, reads no contraction",
                why="polygen fuses work around a matrix product",
                nearest="Use x @ w in it, or compute it elsewhere",
            )
        self.first[root] = found[0]
        for node in found:
            self.matmuls.setdefault(node, f"{self.prefix}{len(self.matmuls)}")

    def contract(self, acc_dtype: object) -> None:
        """Writes the contraction statements."""
        for number, (node, value) in enumerate(self.matmuls.items()):
            extents = (*node.dims, node.lhs.dims[1])
            self.statements.append(
                Contraction(
                    name=f"S{number}",
                    domain=tuple(zip(("i", "j", "k"), extents, strict=True)),
                    write=Access(value, ("i", "j")),
                    lhs=self._leaf(node.lhs, ("i", "k")),
                    rhs=self._leaf(node.rhs, ("k", "j")),
                    dtype=accumulator(node.lhs.dtype, acc_dtype),
                )
            )

    def _leaf(self, node: Node, index: Indices) -> Access:
        """A matmul operand: an argument, perhaps transposed."""
        node, index = _unview(node, index)
        assert isinstance(node, InputNode)  # the tracer refuses computed operands
        return Access(node.tensor.name, index)

    def output(self, name: str, root: Node, wanted: DType | None) -> Tensor:
        """Writes the statements of one output, and describes it."""
        if len(root.dims) != 2:
            raise ShapeError(
                f"output {describe(root)} is {shape_text(root.dims)}",
                where=name,
                nearest="Outputs have two axes",
            )
        domain: Domain = (("i", root.dims[0]), ("j", root.dims[1]))
        node, index = _unview(root, ("i", "j"))
        dtype = self._output_dtype(name, root, node, wanted)
        if isinstance(node, ApplyNode) and node.function == "cast" and node.dtype == dtype:
            index = _argument_index(node.dims, index, node.args[0])
            node = node.args[0]
        argument = self._lower(node, index, domain)
        self._write(domain, Access(name, ("i", "j")), "cast", (argument,), dtype)
        return Tensor(name, dtype, root.dims, (0, 1))

    def _output_dtype(self, name: str, root: Node, node: Node, wanted: DType | None) -> DType:
        """The dtype of an output: requested, or its last cast's, or after the matmul's operands."""
        dtype = wanted
        if dtype is None and isinstance(node, ApplyNode) and node.function == "cast":
            dtype = node.dtype
        if dtype is None and node.dtype == BOOL:
            raise DTypeError(
                f"output {describe(root)} is bool",
                where=name,
                nearest=f"Write `{describe_cast(root, F32, depth=8)}`",
            )
        if dtype is None:
            operand = self.first[root].lhs.dtype
            dtype = default_output(operand, bare=isinstance(node, MatmulNode))
        if dtype in (TF32, BOOL):
            raise DTypeError(f"an output cannot be {dtype}", where=name, nearest=f"Use {F32}")
        return dtype

    def _write(
        self,
        domain: Domain,
        write: Access,
        function: str,
        args: tuple[Access | Constant, ...],
        dtype: DType,
    ) -> None:
        name = f"P{len(self.statements)}"
        self.statements.append(Pointwise(name, domain, write, function, args, dtype))

    def _lower(self, root: Node, index: Indices, domain: Domain) -> Access | Constant:
        """The access that reads a node at `index`, after writing the statements it needs.

        An explicit stack, because an expression may be deeper than Python's.
        """
        stack = [_unview(root, index)]
        while stack:
            node, at = stack[-1]
            if (node, at, domain) in self.memo:
                stack.pop()
                continue
            operands = self._operands(node, at)
            pending = [op for op in operands if (*op, domain) not in self.memo]
            if pending:
                stack.extend(reversed(pending))
                continue
            self.memo[node, at, domain] = self._value(node, at, operands, domain)
            stack.pop()
        return self.memo[(*_unview(root, index), domain)]

    def _operands(self, node: Node, index: Indices) -> list[tuple[Node, Indices]]:
        if not isinstance(node, ApplyNode):
            return []
        return [_unview(arg, _argument_index(node.dims, index, arg)) for arg in node.args]

    def _value(
        self, node: Node, index: Indices, operands: list[tuple[Node, Indices]], domain: Domain
    ) -> Access | Constant:
        if isinstance(node, ScalarNode):
            return Constant(node.value)
        if isinstance(node, InputNode):
            return Access(node.tensor.name, index)
        if isinstance(node, MatmulNode):
            return Access(self.matmuls[node], index)
        assert isinstance(node, ApplyNode)
        args = tuple(self.memo[(*operand, domain)] for operand in operands)
        value = Access(f"{self.prefix}{len(self.statements)}", ("i", "j"))
        self._write(domain, value, node.function, args, node.dtype)
        return value
