"""Leaves in CUDA: a module for each way of doing something, registered in one table."""

from polygen.emit.leaf import (  # noqa: F401 - importing registers
    bar,
    combine_folds,
    compute_copy,
    dots,
    elements,
    fill_threads,
    finish_folds,
    finish_panels,
    fold_parts,
    groups,
    lines,
    load_threads,
    locate,
    make_fragments,
    mbarrier,
    merge_keys,
    move_cp_async,
    move_staged,
    move_threads,
    move_tma,
    multiply_mma_sync,
    multiply_wgmma,
    partial_sums,
    promote,
    rest,
    row_exchange,
    scan,
    store_pairs,
    store_parts,
    store_rows,
    tally,
    walk_row,
)
from polygen.emit.leaf.table import kind_of, kinds, render

__all__ = ["kind_of", "kinds", "render"]
