"""500 random programs on the GPU, outputs poisoned: integers exactly, floats within their bound."""

from __future__ import annotations

import multiprocessing
import os
from functools import partial
from typing import Any

import numpy as np
import pytest
from random_folds import (
    compile_rows,
    fold_program,
    operand_program,
    output_program,
    row_program,
)
from random_products import compile_products, product_program
from random_programs import (
    compile_program,
    has_float_bound,
    layout,
    narrow_program,
    odd_program,
    random_program,
    roomy_program,
    run_random,
)
from random_prologues import compile_fragments, fragment_program, prologue_program

from polygen.runtime.environment import current_arch

pytestmark = pytest.mark.gpu
COUNT = int(os.environ.get("POLYGEN_RANDOM_COUNT", "500"))
KINDS = (
    "any", "roomy", "odd", "products", "roomy products", "prologues", "odd prologues", "folds",
    "role folds", "folds of operands", "role folds of operands", "folds of operands that leave",
    "role folds of operands that leave", "rows of folds",
    "role rows of folds", "narrow", "made prologues",
)  # fmt: skip
FIRST = int(os.environ.get("POLYGEN_RANDOM_FIRST", "0"))


def _on_gpu(kernel: Any, operands: list[Any]) -> list[Any]:
    import cupy

    def put(item: Any) -> Any:
        if not isinstance(item, tuple):
            return item
        tensor, data, pitch, offset = item
        count, strides = layout(tensor, data.shape, pitch)
        kind = tensor.dtype.numpy
        host = np.zeros(count, f"u{kind.itemsize}")  # NumPy strides over no type of ml_dtypes
        view = np.lib.stride_tricks.as_strided(
            host, data.shape, [s * kind.itemsize for s in strides]
        )
        view[...] = data.astype(np.float32).astype(kind).view(host.dtype)
        if kind.itemsize == 1 and tensor.dtype.kind == "float":  # CuPy has no fp8: its bytes
            kind = np.dtype(np.uint8)
        host = host.view(kind)
        base = cupy.zeros(count + offset, kind)
        base[offset:].set(host)
        moved = base.data + offset * kind.itemsize
        return cupy.ndarray(data.shape, kind, moved, [s * kind.itemsize for s in strides])

    arrays = [put(item) for item in operands]
    sizes: dict[str, int] = {}
    for tensor, item in zip(kernel.program.inputs, operands, strict=True):
        if isinstance(item, tuple):
            sizes |= {
                d: n for d, n in zip(tensor.dims, item[1].shape, strict=True) if isinstance(d, str)
            }
    outs = []
    for tensor in kernel.program.outputs:
        shape = tuple(d if isinstance(d, int) else sizes[d] for d in tensor.dims)
        kind = tensor.dtype.numpy
        if tensor.dtype.kind == "float":
            poison = np.full(shape, np.nan, kind)
        else:
            poison = np.full((*shape, kind.itemsize), 0xA5, np.uint8).view(kind)[..., 0]
        eight = tensor.dtype.kind == "float" and kind.itemsize == 1
        outs.append(cupy.asarray(poison.view(np.uint8) if eight else poison))
    kernel(*arrays, out=tuple(outs) if len(outs) > 1 else outs[0])
    kinds = [tensor.dtype.numpy for tensor in kernel.program.outputs]
    return [out.get().view(kind) for out, kind in zip(outs, kinds, strict=True)]


def _one(given: tuple[str, int, bool]) -> str:
    kind, seed, exact = given
    make, compiled = {
        "any": (random_program, compile_program),
        "roomy": (roomy_program, compile_program),
        "odd": (odd_program, compile_program),
        "narrow": (narrow_program, compile_program),
        "products": (product_program, compile_products),
        "folds": (fold_program, compile_program),
        "role folds": (partial(fold_program, roles=True), compile_program),
        "folds of operands": (operand_program, compile_program),
        "role folds of operands": (partial(operand_program, roles=True), compile_program),
        "folds of operands that leave": (output_program, compile_program),
        "role folds of operands that leave": (partial(output_program, roles=True), compile_program),
        "rows of folds": (row_program, compile_rows),
        "role rows of folds": (partial(row_program, roles=True), compile_rows),
        "prologues": (prologue_program, compile_program),
        "odd prologues": (partial(prologue_program, odd=True), compile_program),
        "made prologues": (fragment_program, compile_fragments),
        "roomy products": (partial(product_program, roomy=True), compile_products),
    }[kind]
    case = make(seed)
    if not exact and not has_float_bound(case):
        return ""
    try:
        kernel = compiled(case, str(current_arch()))
        if kernel is None:  # the copy engine brings none of the arrays that consumers would read
            return ""
        return run_random(case, str(current_arch()), _on_gpu, exact, lambda *_: kernel)
    except Exception as error:
        return f"{case}\n  {type(error).__name__}: {error}"


@pytest.mark.parametrize("exact", [True, False], ids=["integers", "floats"])
@pytest.mark.parametrize("kind", KINDS)
def test_random_programs_are_right(kind: str, exact: bool) -> None:
    if ("products" in kind or "folds" in kind) and not exact:
        pytest.skip("no bound is known for sums of several products, and for folds")
    if ("prologues" in kind or kind == "narrow") and not exact:
        pytest.skip("comparisons before a product turn the smallest error into a jump")
    seeds = [(kind, seed, exact) for seed in range(FIRST, FIRST + COUNT)]
    workers = max(1, (os.cpu_count() or 2) - 2)
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        failures = [text for text in pool.imap_unordered(_one, seeds, chunksize=4) if text]
    print(f"\n{kind} random programs: seeds {FIRST}..{FIRST + COUNT - 1}, {len(failures)} wrong")
    assert not failures, "\n".join(failures[:10])
