"""Leaves in CUDA: a module for each way of doing something, registered in one table."""

from polygen.emit.leaf import (  # noqa: F401 - importing registers
    bar,
    compute_copy,
    dots,
    elements,
    fill_threads,
    finish_panels,
    fold_parts,
    groups,
    lines,
    load_threads,
    locate,
    make_fragments,
    mbarrier,
    move_cp_async,
    move_staged,
    move_threads,
    move_tma,
    multiply_mma_sync,
    multiply_wgmma,
    partial_sums,
    row_exchange,
    scan,
    store_pairs,
    store_parts,
    store_rows,
    tally,
)
from polygen.emit.leaf.table import kind_of, kinds, render

__all__ = ["kind_of", "kinds", "render"]
