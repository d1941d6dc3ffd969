"""Whether memory that PyTorch gave while a graph is captured belongs to that graph.

1. PyTorch has a pool for every capture that it began. The graph keeps the pool, and what is freed
   while it is captured is handed out again within it alone, in stream order.
2. Captures that others began, on streams that PyTorch uses, have no pool: what is freed goes back
   to the program, and the graph must not have it.
3. A pool that the program made, for graphs or for anything, does not say which it serves.
"""

from __future__ import annotations

import sys
from typing import Any

_NOT_OF_A_CAPTURE = 0  # the first of a pool's two numbers, but where a capture made the pool


def of_a_capture(array: Any) -> bool:
    """Whether a tensor lies in a pool that a capture of PyTorch's made.

    Args:
        array: a PyTorch tensor on a GPU, allocated while its stream captures.
    """
    start = array.data_ptr()
    for segment in sys.modules["torch"].cuda.memory_snapshot():
        if 0 <= start - segment["address"] < segment["total_size"]:
            pool = segment.get("segment_pool_id") or (_NOT_OF_A_CAPTURE,)
            return bool(pool[0] != _NOT_OF_A_CAPTURE)
    return False
