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


def test_folds_are_exact_on_integers_and_leave_nothing_behind(operands):
    """Several workspaces in one program, again and again: nothing is cleared between calls."""
    x, w, _ = operands

    @jax.jit
    def program(x, w):
        rows = pgj.call(lambda x, w: (x @ w.T).sum(axis=1), x, w)
        index = pgj.call(lambda x, w: pg.argmin((w * w).sum(1) - 2 * (x @ w.T), axis=1), x, w)
        both = pgj.call(lambda x, w: (x @ w.T, pg.max(x @ w.T, axis=0)), x + 1, w)
        return rows, index, both, pgj.call(lambda x, w: pg.softmax(x @ w.T), x, w)

    for n in range(5):
        given = jnp.roll(x, n, axis=0)
        rows, index, (matrix, largest), soft = program(given, w)
        a, b = np.asarray(given, np.float64), np.asarray(w, np.float64)
        assert np.array_equal(rows, (a @ b.T).sum(1))
        assert np.array_equal(index, np.argmin((b * b).sum(1) - 2 * (a @ b.T), 1))
        assert np.array_equal(np.asarray(matrix, np.float64), np.asarray(
            jnp.asarray((a + 1) @ b.T, jnp.bfloat16), np.float64))  # fmt: skip
        assert np.array_equal(largest, ((a + 1) @ b.T).max(0))
        wanted = jax.nn.softmax(jnp.asarray(a @ b.T, jnp.float32))
        assert float(jnp.abs(soft - wanted).max()) <= 1e-6


def test_folds_of_a_batch_are_one_kernel(operands):
    x, w, _ = operands
    batch = jnp.stack([x, x + 1, x - 1])
    mapped = jax.jit(jax.vmap(lambda x: pgj.call(lambda x, w: pg.sum(x @ w.T, axis=1), x, w)))
    wanted = (np.asarray(batch, np.float64) @ np.asarray(w, np.float64).T).sum(2)
    assert np.array_equal(mapped(batch), wanted)


def test_operands_are_copied_into_the_memory_of_xla():
    """Rows of 131 elements, which the copy engine does not take."""
    keys = jax.random.split(jax.random.key(1), 2)
    x, w = (jax.random.randint(k, (2053, 131), -2, 3).astype(jnp.bfloat16) for k in keys)
    found = jax.jit(lambda x, w: pgj.call(lambda x, w: x @ w.T, x, w))(x, w)
    wanted = np.asarray(x, np.float64) @ np.asarray(w, np.float64).T
    assert np.array_equal(np.asarray(found, np.float64), np.asarray(
        jnp.asarray(wanted, jnp.bfloat16), np.float64))  # fmt: skip


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


def test_keys_in_parts_combine():
    if getattr(jax.devices()[0], "compute_capability", "") != "9.0":
        pytest.skip("chains run on warpgroup instructions")
    keys = jax.random.split(jax.random.key(2), 3)
    shapes = (2, 16, 64), (2, 16384, 64), (2, 16384, 64)
    q, k, v = (jax.random.normal(*each, jnp.bfloat16) for each in zip(keys, shapes, strict=True))
    found = jax.jit(lambda *o: pgj.call(lambda q, k, v: pg.softmax((q @ k.mT) * 0.125) @ v, *o))(
        q, k, v
    )
    wide = [x.astype(jnp.float32) for x in (q, k, v)]
    wanted = jax.nn.softmax(wide[0] @ wide[1].mT * 0.125) @ wide[2]
    assert float(jnp.abs(found.astype(jnp.float32) - wanted).max()) <= 0.02
