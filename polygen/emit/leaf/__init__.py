"""Leaves in CUDA: a module for each way of doing something, registered in one table."""

from polygen.emit.leaf import (  # noqa: F401 - importing registers
    bar,
    combine_folds,
    compute_copy,
    dots,
    elements,
    fill_threads,
    find_pages,
    finish_folds,
    finish_panels,
    fold_elements,
    fold_parts,
    groups,
    lines,
    load_threads,
    locate,
    locate_rows,
    make_across,
    make_chunks,
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
    shift_chunks,
    store_pairs,
    store_parts,
    store_rows,
    tally,
    turn_chunks,
    walk_row,
)
from polygen.emit.leaf.table import kind_of, kinds, render
from polygen.emit.proofs import copies as _copies  # noqa: F401 - likewise
from polygen.emit.proofs import fills as _fills  # noqa: F401
from polygen.emit.proofs import folded as _folded  # noqa: F401
from polygen.emit.proofs import keys as _keys  # noqa: F401
from polygen.emit.proofs import leave as _leave  # noqa: F401
from polygen.emit.proofs import lines as _lines  # noqa: F401 - likewise
from polygen.emit.proofs import locate as _locate  # noqa: F401
from polygen.emit.proofs import made as _made  # noqa: F401
from polygen.emit.proofs import make_fragments as _make_fragments  # noqa: F401
from polygen.emit.proofs import panels as _panels  # noqa: F401
from polygen.emit.proofs import partial_sums as _partial_sums  # noqa: F401
from polygen.emit.proofs import parts as _parts  # noqa: F401
from polygen.emit.proofs import products as _products  # noqa: F401
from polygen.emit.proofs import promotions as _promotions  # noqa: F401
from polygen.emit.proofs import realigned as _realigned  # noqa: F401
from polygen.emit.proofs import results as _results  # noqa: F401
from polygen.emit.proofs import rows as _rows  # noqa: F401
from polygen.emit.proofs import scan as _scan_proofs  # noqa: F401
from polygen.emit.proofs import tally as _tally  # noqa: F401
from polygen.emit.proofs import turned as _turned  # noqa: F401
from polygen.emit.proofs import walks as _walks  # noqa: F401

__all__ = ["kind_of", "kinds", "render"]
