"""Attention as one call of a library, through PyTorch's function that has several of them.

It has whole rows of keys, and causal ones; what else is done with scores is none of its.
"""

from __future__ import annotations

import ast
from typing import Any

from polygen.bench.operations import Operation
from polygen.bench.source import Call
from polygen.errors import BenchError


class _Attention:
    """One of the libraries behind PyTorch's function."""

    backend = ""

    def __init__(self) -> None:
        from torch.nn.attention import SDPBackend  # noqa: PLC0415

        self._backend = getattr(SDPBackend, self.backend)

    def versions(self) -> dict[str, Any]:
        """Nothing beyond PyTorch's."""
        return {}

    def make(self, work: Any) -> Call:
        """The function on the row's tensors: matrices are heads of one sequence.

        Raises:
            BenchError: the row is no attention that it has.
        """
        from torch.nn.attention import sdpa_kernel  # noqa: PLC0415
        from torch.nn.functional import scaled_dot_product_attention  # noqa: PLC0415

        op: Operation = work.row.operation
        if op.inner is None or not op.inner.attention:
            raise BenchError("attention of whole or causal rows alone is its", where=op.name)
        given = [work.operands.timed[name].unsqueeze(0) for name in op.names]
        words = {"is_causal": op.inner.attention == "causal", "scale": factor(op)}

        def call() -> Any:
            with sdpa_kernel(self._backend):
                return scaled_dot_product_attention(*given, **words)[0]

        return call


class Cudnn(_Attention):
    """NVIDIA's library."""

    backend = "CUDNN_ATTENTION"

    def versions(self) -> dict[str, Any]:
        """Its version."""
        import torch  # noqa: PLC0415

        return {"cudnn": torch.backends.cudnn.version()}


class Flash(_Attention):
    """FlashAttention-2, as PyTorch has it."""

    backend = "FLASH_ATTENTION"


def factor(op: Operation) -> float:
    """What scores are multiplied by: the number that stands behind the first product.

    Raises:
        BenchError: there is none.
    """
    for node in ast.walk(ast.parse(op.expression, mode="eval")):
        match node:
            case ast.BinOp(
                left=ast.BinOp(op=ast.MatMult()),
                op=ast.Mult(),
                right=ast.Constant(float() as found),
            ):
                return found
    raise BenchError("scores are multiplied by no number", where=op.expression)
