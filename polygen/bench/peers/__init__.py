"""The libraries that polygen is measured beside, a module each; each may be missing.

A peer is made once per process, which imports its library, and makes a contender of every row. What
it raises, at either, is the reason that the record gives for its absence.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol

from polygen.bench.source import Call

# Name -> module and class. The order is that of the tables; the costliest come last, so that a
# process that is killed while it makes one has made the others before.
_HOMES = {
    "separate": ("separate", "Separate"),
    "eager": ("eager", "Eager"),
    "eager_joined": ("joined", "EagerJoined"),
    "cupy": ("cupy_cublas", "CupyCublas"),
    "cupy_once": ("cupy_cublas", "CupyOnce"),
    "cublaslt": ("cublaslt", "CublasLt"),
    "cudnn": ("attention", "Cudnn"),
    "flash": ("attention", "Flash"),
    "triton": ("triton_matmul", "TritonMatmul"),
    "inductor": ("inductor", "Inductor"),
    "inductor_joined": ("joined", "InductorJoined"),
}

ABOUT = {
    "separate": "cuBLAS through PyTorch, then one PyTorch kernel per step, in place",
    "eager": "the expression as PyTorch runs it, a kernel per operator; 8-bit products by "
    "`_int_mm` and `_scaled_mm`",
    "eager_joined": "eager on one product with the weights joined beforehand, then its parts",
    "cupy": "cuBLAS through CuPy, then one CuPy kernel per step, in place",
    "cupy_once": "cuBLAS through CuPy, then one CuPy kernel for all steps together, in place",
    "cublaslt": "cuBLASLt with its own bias, relu, gelu and added matrix where it has them, the "
    "fastest of its algorithms by measurement; what it has not as PyTorch kernels in place",
    "triton": "a tiled Triton kernel with the whole expression in its epilogue, without tensor "
    "maps, the fastest of its tiles by measurement",
    "cudnn": "attention by cuDNN, through PyTorch's `scaled_dot_product_attention`",
    "flash": "attention by FlashAttention-2, through the same function",
    "inductor": "torch.compile in the mode max-autotune-no-cudagraphs",
    "inductor_joined": "torch.compile in that mode of one product with the weights joined "
    "beforehand, then its parts",
}


class Peer(Protocol):
    """A library."""

    def versions(self) -> dict[str, Any]:
        """What is worth keeping about the library itself."""
        ...

    def make(self, work: Any) -> Call:
        """A contender for a row.

        Args:
            work: a `polygen.bench.gpu.GpuWork`: row, operands, `timed`, `note`.
        """
        ...


def _maker(module: str, kind: str) -> Callable[[], Peer]:
    def make() -> Peer:
        found: Peer = getattr(importlib.import_module(f"{__name__}.{module}"), kind)()
        return found

    return make


PEERS: dict[str, Callable[[], Peer]] = {n: _maker(*home) for n, home in _HOMES.items()}
