"""`shared`: a function of which the devices of a mesh's axis hold parts, inside `jax.shard_map`.

`polygen.parallel.cuts` says what the parts mean: results that are split, too, or parts of a sum.
These are added up over the axis before whatever reads them runs, as a bias or an activation does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from polygen.adapters.jax import meaning
from polygen.adapters.jax.operator import differentiable, prepared
from polygen.adapters.legality import refusal_in_order
from polygen.api import Fused
from polygen.errors import ArgumentError, UnsupportedProgram
from polygen.frontend.program import Program
from polygen.parallel.cuts import PART, WHOLE, Cut, cuts


def shared(
    function: Callable[..., Any] | Fused,
    *operands: Any,
    axis_name: str,
    split: Mapping[str, int],
    out_dtype: Any = None,
    acc_dtype: str = "f32",
    allow_tf32: bool = False,
) -> Any:
    """Run array code on shards: kernels on every device, sums over devices where it needs them.

    Args:
        function: array code, as for `call`.
        *operands: its arguments, as this device has them.
        axis_name: of the mesh, over which they are split.
        split: parameters of which a device has a part, each with the axis that is split; the
            others are whole, and the same on all.
        out_dtype: as for `call`.
        acc_dtype: likewise.
        allow_tf32: likewise.

    Returns:
        This device's part of a result that is split; else the result, the same on all.

    Raises:
        ArgumentError: `split` names no parameter.
        UnsupportedProgram: the function cannot be computed of such parts.
        PolygenError: operands that no kernel takes.

    Example:
        >>> jax.shard_map(
        ...     lambda x, w, b: pgj.shared(layer, x, w, b, axis_name="d", split={"x": 1, "w": 1}),
        ...     mesh=mesh, in_specs=(P(None, "d"), P(None, "d"), P()), out_specs=P())
    """
    program, arrays, scalars = prepared(
        function, operands, out_dtype=out_dtype, acc_dtype=acc_dtype, allow_tf32=allow_tf32
    )
    cut = _cut(program, split)
    numbers = dict(zip((t.name for t in program.inputs if not t.dims), scalars, strict=True))
    named = dict(zip((t.name for t in program.inputs if t.dims), arrays, strict=True)) | numbers
    results = _run(cut.head, named, axis_name)
    if cut.tail is not None:
        sums = [jax.lax.psum(part, axis_name) for part in results]
        named |= zip((tensor.name for tensor in cut.tail.inputs), sums, strict=False)
        results = meaning.run(cut.tail, [named[tensor.name] for tensor in cut.tail.inputs])
    else:
        both = zip(results, cut.outputs, strict=True)
        results = [jax.lax.psum(r, axis_name) if state == PART else r for r, state in both]
    return results[0] if len(results) == 1 else tuple(results)


def _differing(array: Any, axis_name: str) -> Any:
    if axis_name in jax.typeof(array).manual_axis_type.varying:
        return array
    return jax.lax.pcast(array, axis_name, to="varying")


def _run(program: Program, named: Mapping[str, Any], axis_name: str) -> Any:
    reason = refusal_in_order(program)
    if reason is not None:
        raise reason
    # Gradients of operands that are the same everywhere are sums over devices: those of a cast from
    # what is the same to what may differ.
    arrays = [_differing(named[t.name], axis_name) for t in program.inputs if t.dims]
    scalars = tuple(named[tensor.name] for tensor in program.inputs if not tensor.dims)
    return differentiable(program, scalars)(*arrays)


def _cut(program: Program, split: Mapping[str, int]) -> Cut:
    """The cut that operands are split by."""
    names = [tensor.name for tensor in program.inputs]
    unknown = [name for name in split if name not in names]
    if unknown:
        raise ArgumentError(
            f"no parameter is called {unknown[0]}",
            where="split",
            nearest=f"Parameters: {', '.join(names)}",
        )
    wanted = tuple(split.get(name, WHOLE) for name in names)
    known = cuts(program)
    found = next((cut for cut in known if cut.inputs == wanted), None)
    if found is None:
        ways = (
            {n: s for n, s in zip(names, cut.inputs, strict=True) if s != WHOLE} for cut in known
        )
        raise UnsupportedProgram(
            f"operands that are split as {dict(split)}",
            where=program.name,
            why="no dim of the program has these axes, or what is computed needs all of it",
            nearest=f"Ways to split: {'; '.join(map(str, ways)) or 'none'}",
        )
    return found
