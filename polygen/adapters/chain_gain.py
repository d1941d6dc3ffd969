"""What attention as one kernel gains, predicted.

A library's kernel is taken to be as many times as long as it was at least where both were measured
(`hardware/data/chains.toml`). Where the products and the softmax between them are apart, the
products are priced by polygen's cost model, and what is between them as a kernel that reads scores
and writes weights, which the L2 cache keeps as far as it goes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from polygen.adapters.gain import Gain, bare, library_time
from polygen.fit_chain import extent, predicted_time, problem_of, with_roles
from polygen.frontend.indices import size_value
from polygen.frontend.program import Access, Contraction, Program, Tensor
from polygen.hardware.cost_parameters import cost_parameters
from polygen.hardware.data_file import read, take
from polygen.hardware.device import Device
from polygen.rewrite.chain import products_in_chain
from polygen.tune.cost.chains import ChainProblem

_FILE = "chains.toml"
_PRODUCTS = 2  # of what is priced apart
_MEASURED = 2  # bytes of elements of which chains were


def predicted_chain(
    program: Program, device: Device, sizes: Mapping[str, int], library: str
) -> Gain | str:
    """The gain of a chain, or why a prediction would say nothing about it.

    Args:
        program: what a kernel computes, with numbers for the sizes that it has to know.
        device: the target.
        sizes: of its symbolic dims.
        library: whose one kernel it would be; "": products and a softmax apart.

    Raises:
        PolygenError: no kernel can be made of it.
    """
    chain = products_in_chain(program)
    assert chain is not None
    if len(program.contractions) > _PRODUCTS:
        return "layers of products: not predicted"
    reads = (access for product in chain[:2] for access in product.reads if access != chain[2])
    if any(access.name not in program.tensors for access in reads):
        return "attention of operands that a launch before it makes: not predicted"
    kind = program.tensors[chain[0].lhs.name].dtype
    if kind.bytes > _MEASURED:
        return f"attention of {kind} was not measured: not predicted"
    rows = extent(dict(chain[0].domain)[chain[0].lhs.iterators[-2]], sizes)
    if not library:
        if rows == 1:  # which libraries and compilers multiply in ways of their own
            return "a single row: not predicted"
        fused = predicted_time(program, device, sizes)
        return Gain(fused, _apart(program, device, sizes))
    measured = [one for one in take(read(_FILE), "libraries", _FILE) if one["name"] == library]
    if not measured or not with_roles(program, device):
        return f"{library}'s attention was not measured beside polygen's: not predicted"
    problem = problem_of(program, sizes)
    assert problem is not None
    found = [one["ratio"] for one in measured if _covers(one, rows, chain[0], sizes, problem)]
    if not found:
        least = max(one["rows"][0] for one in measured if "causal" not in one)
        return f"fewer rows than the {least} that were measured: not predicted"
    fused = predicted_time(program, device, sizes)
    return Gain(fused, max(found) * fused)


def _covers(
    measured: Mapping[str, Any],
    rows: float,
    scores: Contraction,
    sizes: Mapping[str, int],
    problem: ChainProblem,
) -> bool:
    """Whether attention is as large as what was measured, and masked as it was."""
    least, *most = measured["rows"]
    causal = problem.upper == 0 and problem.lower is None
    domain, own = dict(scores.domain), scores.lhs.iterators
    keys = math.prod(extent(domain[i], sizes) for i in scores.write.iterators if i not in own)
    matrices = math.prod(extent(domain[i], sizes) for i in own[:-2])
    return bool(
        least <= rows
        and all(rows <= one for one in most)
        and keys <= measured.get("keys_most", keys)
        and matrices <= measured.get("matrices_most", matrices)
        and problem.depth >= measured.get("depth_least", 0)
        and (causal or not measured.get("causal", False))
    )


def _apart(program: Program, device: Device, sizes: Mapping[str, int]) -> float:
    """Predicted time of both products and a softmax between them."""
    chain = products_in_chain(program)
    assert chain is not None
    first, second, _ = chain
    known = dict(second.domain)
    item = program.tensors[first.lhs.name].dtype
    axes = second.lhs.iterators
    weights = Tensor("weights", item, tuple(known[axis] for axis in axes), tuple(range(len(axes))))
    last = replace(second, lhs=Access(weights.name, axes))
    widened = replace(program, inputs=(*program.inputs, weights))
    products = library_time(bare(program, first), device, sizes)
    products += library_time(bare(widened, last), device, sizes)

    parameters = cost_parameters(device)
    scores = item.bytes * math.prod(size_value(known[axis], sizes) for axis in axes)
    moved = 2 * max(0.0, scores - parameters.l2_share * parameters.l2_bytes)
    rate = parameters.memory_share * parameters.memory * 1e3  # bytes per microsecond
    return products + parameters.start + moved / rate
