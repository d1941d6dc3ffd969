"""The expression as PyTorch runs it: a kernel per operator, new memory for each result."""

from __future__ import annotations

from typing import Any

from polygen.bench.products import by_operator, product
from polygen.bench.source import Call
from polygen.bench.torch_code import torch_function


class Eager:
    """PyTorch without a compiler."""

    def versions(self) -> dict[str, Any]:
        """Nothing beyond PyTorch's."""
        return {}

    def make(self, work: Any) -> Call:
        """The function on the row's tensors."""
        dtype = work.row.dtype
        stands = None if by_operator(dtype) else product(dtype)
        function = torch_function(work.row.operation, stands)
        operands = [work.operands.timed[name] for name in work.row.operation.names]
        return lambda: function(*operands)
