"""``torch.compile`` in the mode that tunes most."""

from __future__ import annotations

from typing import Any

from polygen.bench.products import by_operator, product
from polygen.bench.source import Call
from polygen.bench.torch_code import torch_function

MODE = "max-autotune-no-cudagraphs"


class Inductor:
    """PyTorch's compiler."""

    def versions(self) -> dict[str, Any]:
        """The mode."""
        return {"mode": MODE}

    def make(self, work: Any) -> Call:
        """The function, compiled and tuned for the row's tensors."""
        import torch  # noqa: PLC0415

        torch._dynamo.reset()
        dtype = work.row.dtype
        stands = None if by_operator(dtype) else product(dtype)
        function = torch_function(work.row.operation, stands)
        compiled = torch.compile(function, mode=MODE, fullgraph=True, dynamic=False)
        operands = [work.operands.timed[name] for name in work.row.operation.names]
        compiled(*operands)
        return lambda: compiled(*operands)
