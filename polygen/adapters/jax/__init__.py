"""Polygen in JAX: array code as one kernel, inside `jit`, `vmap`, `grad` and `shard_map`.

    import polygen.adapters.jax as pgj

    @jax.jit
    def layer(x, w, b):
        return pgj.call(lambda x, w, b: pg.gelu(x @ w.T + b), x, w, b)

Importing this imports JAX; `import polygen` does not. docs/jax.md explains.
"""

from polygen.adapters.jax.operator import call
from polygen.adapters.jax.sharding import shared

__all__ = ["call", "shared"]
