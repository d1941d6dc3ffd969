"""Array code inside JAX's transformations, on the GPU."""

from __future__ import annotations

import numpy as np
import pytest

import polygen as pg

jax = pytest.importorskip("jax")
pgj = pytest.importorskip("polygen.adapters.jax")
jnp = jax.numpy

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def _cuda():
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")


def layer(x, w, b):
    return pg.relu(x @ w.T + b)


@pytest.fixture
def operands():
    generator = np.random.default_rng(3)
    shapes = (200, 136), (264, 136), (264,)
    return tuple(jnp.asarray(generator.integers(-2, 3, s), jnp.bfloat16) for s in shapes)


def exact(x, w, b):
    return np.maximum(np.asarray(x, np.float64) @ np.asarray(w, np.float64).T + np.asarray(b, np.float64), 0)  # fmt: skip  # noqa: E501


def test_a_call_is_exact_on_integers_in_the_middle_of_a_program(operands):
    x, w, b = operands

    @jax.jit
    def program(x, w, b):
        return pgj.call(layer, x + 1, w, b) * 2

    for _ in range(3):
        found = np.asarray(program(x, w, b), np.float64)
        wanted = jnp.asarray(exact(x + 1, w, b), jnp.bfloat16) * 2
        assert np.array_equal(found, np.asarray(wanted, np.float64))


def test_a_batch_is_one_kernel_and_each_member_right(operands):
    x, w, b = operands
    batch = jnp.stack([x, x + 1, x - 1])
    mapped = jax.jit(jax.vmap(lambda x: pgj.call(layer, x, w, b)))
    for member, own in zip(mapped(batch), batch, strict=True):
        wanted = jnp.asarray(exact(own, w, b), jnp.bfloat16)
        assert bool((member == wanted).all())


def test_derivatives_are_those_of_jax(operands):
    def loss(call, *o):
        return (call(*o).astype(jnp.float32) / 64).sum()

    def plain(x, w, b):
        return jax.nn.relu(x.astype(jnp.float32) @ w.T.astype(jnp.float32) + b)

    own = jax.jit(jax.grad(lambda *o: loss(lambda *a: pgj.call(layer, *a), *o), (0, 1, 2)))
    wanted = jax.grad(lambda *o: loss(plain, *o), (0, 1, 2))(*operands)
    for a, b in zip(own(*operands), wanted, strict=True):
        a, b = a.astype(jnp.float32), b.astype(jnp.float32)
        assert float(jnp.abs(a - b).max()) <= 2.0**-6 * float(jnp.abs(b).max())


def test_long_chains_keep_their_order(operands):
    """Hundreds of calls queued on XLA's stream, each reading what the one before wrote."""
    _, w, _ = operands
    square = jnp.eye(136, dtype=jnp.bfloat16)[::-1]
    x = w

    @jax.jit
    def chain(x):
        for _ in range(201):
            x = pgj.call(lambda x, w: x @ w, x, square)
        return x

    assert bool((chain(x) == w[:, ::-1]).all())


def test_attention_is_one_kernel():
    def attention(q, k, v):
        q, k, v = (x.swapaxes(-3, -2) for x in (q, k, v))
        s = (q @ k.mT) * 0.125
        i, j = pg.indices(s)[-2:]
        return (pg.softmax(pg.where(i >= j, s, -np.inf)) @ v).swapaxes(-3, -2)

    if getattr(jax.devices()[0], "compute_capability", "") != "9.0":
        pytest.skip("chains run on warpgroup instructions")
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (jax.random.normal(key, (2, 4, 300, 6, 64), jnp.bfloat16) for key in keys)
    run = jax.jit(jax.vmap(lambda *o: pgj.call(attention, *o)))
    wide = (x.astype(jnp.float32) for x in (q, k, v))
    wanted = jax.vmap(lambda *o: jax.nn.dot_product_attention(*o, is_causal=True))(*wide)
    assert float(jnp.abs(run(q, k, v).astype(jnp.float32) - wanted).max()) <= 0.02
