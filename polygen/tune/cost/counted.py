"""What is counted of a kernel: the numbers that the cost model prices."""

from __future__ import annotations

from typing import NamedTuple


class Counts(NamedTuple):
    """What one kernel does. "Block" is a thread block; sizes in bytes.

    One is made for every schedule that is compared, and with so many numbers a tuple is made in a
    third of the time of a record of another kind.

    Attributes:
        roles: 1 with roles, 0 without.
        turns: consumers that take turns at whole tiles; 0: they share them.
        blocks: of a cluster.
        split: of these, blocks that share the sums of a tile.
        clusters: of output tiles, the last ones perhaps partly outside the result; those that have
            products.
        slots: clusters that run at once; without roles, multiprocessors.
        rounds: clusters that the busiest slot works through.
        resident: blocks of a multiprocessor.
        k_tiles: of the sums; of those that blocks share, one block's.
        element_bytes: of the operands.
        ahead: k tiles by which copies run ahead.
        workers: warps of a block that multiply; with roles, warpgroups.
        own: sums of one worker's tile.
        products: multiply-adds of a block per k tile.
        instructions: warpgroup instructions of a block per k tile; 0 without roles.
        filled: bytes copied into a block's shared memory per k tile.
        fetched: of these, bytes that the block itself asks the L2 cache for.
        box_rows: rows of the boxes in which it asks.
        threaded: bytes of tiles that threads shift into place per k tile, those outside the
            operands included.
        made: bytes of tiles that threads compute per k tile, likewise.
        made_functions: evaluated for them per k tile.
        made_waits: for what they are computed from, per k tile, without roles.
        thread_rounds: of them per k tile: what is on its way at once is written before the next.
        narrow: of the bytes that threads copy, those that no whole chunks can be copied of.
        narrow_copies: of these, each as wide as it may be.
        outside: bytes outside the operands that the copy engine has filled with zeros.
        in_flight: k tiles whose products may still run when the next are issued.
        operand_reads: bytes that products or fragment loads read from shared memory per k tile,
            times the wavefronts that bank conflicts make of one.
        passes: over the sums of a tile before its results, where blocks of a cluster cover rows.
        reading: of these, those that read matrices.
        sent: bytes of sums that a block sends to those that share them, per tile.
        panels: steps in which one worker finishes its share of a tile.
        waits: that one worker passes per tile.
        matrix_bytes: of the epilogue's matrices, read per tile.
        result_bytes: written per tile.
        functions: evaluated per tile.
        from_registers: 1 if results are stored straight from the registers.
        in_lines: 1 if threads move the panels of the epilogue.
        read_bytes: read from device memory at least: operands and matrices once.
        written_bytes: written there.
        along_bytes: of the operands that tiles of a group share while the group advances, per
            group.
        batches: matrices of results.
        across_bytes: of the other operands, of one matrix of results.
        groups: of the raster: how often the other operands are swept.
        astride: of the bytes fetched, those of rows that lie astride lines of the cache.
        copied: of the operands that are copied first, to rows that start at lines.
        copied_rows: of these.
        made_from: read where computed operands are made first.
        made_first: of these operands, written.
        first_functions: evaluated for them.
        first_passes: of blocks through rows that are made whole.
        others: clusters of output tiles without products.
        exchanged: 1 if operands are exchanged.
        lanes: 1 if lanes multiply, without tensor cores.
        loaded: elements that they read into registers, per k tile.
        folded: terms that are folded into sums and the like, per tile.
        indexed: into the place of the largest or the smallest.
        exponentials: into sums of exponentials.
        unstored: 1 if nothing but folds leaves.
        converted: elements of fragments that consumers compute, per k tile.
        converted_functions: functions beyond arithmetic in them.
        making_steps: fragments that one consumer computes after each other, per k tile.
        making_groups: of these, groups that are computed before they are multiplied.
        meetings: times that blocks send each other sums of a tile.
        last_split: blocks that share the sums of a tile of the last round; 1: none do. The other
            counts are of tiles that a block has for itself.
        last_rounds: of these tiles, how many the busiest block has a part of.
        last_tiles: how many there are.
        promoted: sums of blocks that are added to whole ones, per k tile.
        beside: whether they are while the next block is multiplied.
        terms: products of tensor cores for one of the program's, of operands that warps split.
        making_vectors: vectors along k that it reads numbers of for them, over all of them, where
            it computes them element by element.
        paired_vectors: likewise, where it computes pairs.
        tallied: instructions of folds of operands, per k tile, of what rings have.
        unringed: likewise, of what no ring has.
        streamed: sets of rows that a warp reads one after another, where elements are only folded.
        parts: bytes of the parts of folds that its launches write and read.
        lines: bytes of the lines of memory that hold what a tile folds.
        combined: times that a block of the launch that follows waits for some of them.
        seldom: whether a block folds few of its tiles, of which the results leave.
    """

    roles: int
    turns: int
    blocks: int
    split: int
    clusters: int
    slots: int
    rounds: int
    resident: int
    k_tiles: int
    element_bytes: int
    ahead: int
    workers: int
    own: int
    products: int
    instructions: int
    filled: int
    fetched: int
    box_rows: int
    threaded: int
    made: int
    made_functions: int
    made_waits: int
    thread_rounds: int
    narrow: int
    narrow_copies: int
    outside: int
    in_flight: int
    operand_reads: int
    passes: int
    reading: int
    sent: int
    panels: int
    waits: int
    matrix_bytes: int
    result_bytes: int
    functions: int
    from_registers: int
    in_lines: int
    read_bytes: int
    written_bytes: int
    along_bytes: int
    batches: int
    across_bytes: int
    groups: int
    astride: int
    copied: int
    copied_rows: int
    made_from: int = 0
    made_first: int = 0
    first_functions: int = 0
    first_passes: int = 0
    others: int = 0
    exchanged: int = 0
    lanes: int = 0
    loaded: int = 0
    folded: int = 0
    indexed: int = 0
    exponentials: int = 0
    unstored: int = 0
    converted: int = 0
    converted_functions: int = 0
    making_steps: int = 0
    making_groups: int = 0
    meetings: int = 1
    last_split: int = 1
    last_rounds: int = 0
    last_tiles: int = 0
    promoted: int = 0
    beside: bool = False
    terms: int = 1
    making_vectors: int = 0
    paired_vectors: int = 0
    tallied: int = 0
    unringed: int = 0
    streamed: int = 0
    parts: int = 0
    lines: int = 0
    combined: int = 0
    seldom: bool = False

    @property
    def tiles(self) -> int:
        """Output tiles, those of partly filled clusters included."""
        return self.clusters * self.blocks // self.split

    @property
    def idle(self) -> int:
        """Slots without a cluster in the last round, or without a part of its tiles."""
        if self.last_rounds:
            return -self.last_tiles % (self.slots // self.last_split) * self.last_split
        return -self.clusters % self.slots

    @property
    def busiest(self) -> float:
        """Tiles that the busiest slot works through, parts of the last ones counted as such."""
        return self.rounds + self.last_rounds / self.last_split
