"""Polygen in PyTorch: `op` makes an operator of array code.

    import polygen.adapters.torch as pgt

    up = pgt.op(lambda x, w, b: pg.gelu(x @ w.T + b))
    y = up(x, w, b)

Importing this imports PyTorch; `import polygen` does not. docs/torch.md explains.
"""

from polygen.adapters.torch.operator import Operator, op

__all__ = ["Operator", "op"]
