"""The expression as PyTorch runs it: a kernel per operator, new memory for each result."""

from __future__ import annotations

from typing import Any

from polygen.bench.operations import torch_function
from polygen.bench.source import Call


class Eager:
    """PyTorch without a compiler."""

    def versions(self) -> dict[str, Any]:
        """Nothing beyond PyTorch's."""
        return {}

    def make(self, work: Any) -> Call:
        """The function on the row's tensors."""
        function = torch_function(work.row.operation)
        operands = [work.operands.timed[name] for name in work.row.operation.names]
        return lambda: function(*operands)
