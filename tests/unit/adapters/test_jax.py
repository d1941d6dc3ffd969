"""Array code inside JAX's transformations, on the CPU: what XLA calls there is the reference."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import numpy as np
import pytest

import polygen as pg
from polygen.errors import ArgumentError, DTypeError, PolygenError, UnsupportedProgram

jax = pytest.importorskip("jax")
pgj = pytest.importorskip("polygen.adapters.jax")
jnp = jax.numpy

F = np.float32


def layer(x, w, b):
    return pg.gelu(x @ w.T + b)


def gate(x, w, b):
    return pg.silu(x @ w.T) * (x @ w.T + b)


def two(x, w, b):
    return x @ w.T, pg.relu(x @ w.T + b)


def deep(x, w, b):
    return pg.tanh(x @ w.T * 0.25 + b) @ w + x


def plain(function):
    """The same in JAX's own operations, in f32."""
    return {
        layer: lambda x, w, b: jax.nn.gelu(x @ w.T + b, approximate=False),
        gate: lambda x, w, b: jax.nn.silu(x @ w.T) * (x @ w.T + b),
        two: lambda x, w, b: (x @ w.T, jax.nn.relu(x @ w.T + b)),
        deep: lambda x, w, b: jnp.tanh(x @ w.T * 0.25 + b) @ w + x,
    }[function]


@pytest.fixture
def operands():
    generator = np.random.default_rng(3)
    x, w = (jnp.asarray(generator.integers(-2, 3, s), jnp.bfloat16) for s in ((24, 16), (40, 16)))
    return x, w, jnp.asarray(generator.standard_normal(40), jnp.bfloat16)


def wide(values):
    return jax.tree.map(lambda value: value.astype(F), values)


def near(found, wanted, bits=7):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        scale = float(jnp.abs(wide(b)).max())
        assert float(jnp.abs(wide(a) - wide(b)).max()) <= 2.0**-bits * scale


@pytest.mark.parametrize("function", [layer, gate, two, deep])
def test_a_call_is_what_the_function_says(function, operands):
    wanted = plain(function)(*wide(operands))
    for run in (pgj.call, jax.jit(pgj.call, static_argnums=0)):
        found = run(function, *operands)
        assert all(one.dtype == jnp.bfloat16 for one in jax.tree.leaves(found))
        near(found, wanted, bits=8)


@pytest.mark.parametrize("axes", [(0, None, None), (None, 0, 0), (1, 0, None)])
def test_vmap_makes_one_call_with_a_batch_dim(axes, operands):
    stacked = tuple(
        o if axis is None else jnp.stack([o, o + 1, o - 1], axis)
        for o, axis in zip(operands, axes, strict=True)
    )
    mapped = jax.vmap(lambda *o: pgj.call(layer, *o), axes)
    text = str(jax.make_jaxpr(mapped)(*stacked))
    assert text.count("polygen_launch[") == 1 and "bf16[3,24,40] = polygen_launch" in text
    found = jax.jit(mapped)(*stacked)
    for n, member in enumerate(found):
        own = [
            o if axis is None else jnp.take(o, n, axis)
            for o, axis in zip(stacked, axes, strict=True)
        ]
        assert bool((member == pgj.call(layer, *own)).all())


@pytest.mark.parametrize("function", [layer, gate, two, deep])
def test_derivatives_are_those_of_jax(function, operands):
    def loss(call, *o):
        return sum((n + 1) * wide(r).sum() for n, r in enumerate(jax.tree.leaves(call(*o))))

    own = jax.jit(jax.grad(lambda *o: loss(lambda *a: pgj.call(function, *a), *o), (0, 1, 2)))
    wanted = jax.grad(lambda *o: loss(plain(function), *o), (0, 1, 2))(*wide(operands))
    found = own(*operands)
    assert all(a.dtype == jnp.bfloat16 for a in found)
    near(found, wanted, bits=6)
    near(jax.grad(lambda w: loss(lambda w: pgj.call(function, operands[0], w, operands[2]), w))(
        operands[1]), wanted[1], bits=6)  # fmt: skip


@pytest.mark.parametrize("function, launches", [(layer, 3), (deep, 5)])
def test_products_are_kept_or_computed_again(function, launches, operands):
    def gradients(keep):
        def loss(*o):
            return wide(pgj.call(function, *o, keep=keep)).sum()

        return jax.grad(loss, (0, 1, 2))

    for keep, more in (("products", 0), ("arguments", 1)):
        text = str(jax.make_jaxpr(gradients(keep))(*operands))
        assert text.count("polygen_launch[") == launches + more
    found, again = (jax.jit(gradients(keep))(*operands) for keep in ("products", "arguments"))
    near(found, again, bits=6)
    with pytest.raises(ArgumentError, match=r"keep='all' .*'products' or 'arguments'"):
        pgj.call(function, *operands, keep="all")


def test_second_derivatives_are_refused(operands):
    x, w, b = operands
    first = jax.grad(lambda x: wide(pgj.call(layer, x, w, b)).sum())
    with pytest.raises(PolygenError, match="a second derivative"):
        jax.grad(lambda x: wide(first(x)).sum())(x)


def test_derivatives_are_mapped_too(operands):
    x, w, b = operands
    batch = jnp.stack([x, x + 1])
    gradient = jax.grad(lambda x: wide(pgj.call(layer, x, w, b)).sum())
    found = jax.vmap(gradient)(batch)
    assert bool((found == jnp.stack([gradient(one) for one in batch])).all())


def test_numbers_are_run_time_scalars(operands):
    x, w, _ = operands
    f = pg.fuse(lambda x, w, s: s * (x @ w.T), name="scaled")
    found = [jax.jit(lambda x, w, s=s: pgj.call(f, x, w, s))(x, w) for s in (0.5, 2.0)]
    assert bool((found[0] * 4 == found[1]).all())
    assert float(jax.grad(lambda x: wide(pgj.call(f, x, w, 0.5)).sum())(x)[0, 0]) == float(
        0.5 * wide(w).sum(0)[0]
    )


def test_sizes_that_have_to_be_numbers_are_those_of_the_arrays(operands):
    x, w, _ = operands
    prepared = sys.modules["polygen.adapters.jax.operator"].prepared
    f = pg.fuse(lambda x, w: (x @ w.T)[:, ::2] * (x @ w.T)[:, 1::2], name="interleaved")
    programs = {prepared(f, (one, w))[0] for one in (x, x[:20])}
    assert [t.dims for p in programs for t in p.inputs] == [("D0", "D1"), (40, "D1")]
    product = wide(x) @ wide(w).T
    near(jax.jit(lambda *o: pgj.call(f, *o))(x, w), product[:, ::2] * product[:, 1::2])


def test_what_leaves_the_function_may_be_of_another_type(operands):
    x, w, _ = operands
    assert pgj.call(lambda x, w: x @ w.T, x, w, out_dtype="f32").dtype == F
    assert pgj.call(lambda x, w: x @ w.T, wide(x), wide(w), allow_tf32=True).dtype == F


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda x, w, b: (x, w), ArgumentError, "2 operands given, 3 expected"),
        (lambda x, w, b: (x, w, "b"), ArgumentError, "str is not an array"),
        (lambda x, w, b: (x, w, b[0]), ArgumentError, "has no axes"),
        (lambda x, w, b: (x.astype("int32"), w, b), DTypeError, "x is s32"),
        (lambda x, w, b: (x, w[:, :8], b), PolygenError, "8"),
    ],
)
def test_bad_operands_are_named(change, error, match, operands):
    for run in (pgj.call, jax.jit(pgj.call, static_argnums=0)):
        given = change(*operands)
        if run is not pgj.call and any(isinstance(one, str) for one in given):
            continue
        with pytest.raises(error, match=match):
            run(layer, *given)


def attended(q, k, v):
    """The arguments of `jax.nn.dot_product_attention`: heads behind rows."""
    q, k, v = (x.swapaxes(-3, -2) for x in (q, k, v))
    s = (q @ k.mT) * 0.25
    i, j = pg.indices(s)[-2:]
    return (pg.softmax(pg.where(i >= j, s, -np.inf)) @ v).swapaxes(-3, -2)


def test_attention_is_a_call():
    generator = np.random.default_rng(7)
    q, k, v = (
        jnp.asarray(generator.standard_normal((2, 2, 12, 3, 16)), jnp.bfloat16) for _ in "qkv"
    )
    whole = functools.partial(jax.nn.dot_product_attention, is_causal=True)
    wanted = jax.vmap(whole)(q, k, v)
    near(jax.jit(functools.partial(pgj.call, attended))(q[0], k[0], v[0]), wanted[0])
    near(jax.vmap(functools.partial(pgj.call, attended))(q, k, v), wanted)
    with pytest.raises(PolygenError, match="a fold"):
        jax.grad(lambda q: pgj.call(attended, q, k[0], v[0]).sum())(q[0])


def test_what_goes_wrong_in_a_call_is_said(operands, monkeypatch):
    running = pytest.importorskip("polygen.adapters.jax.running")
    monkeypatch.setattr(running, "evaluate", lambda *_: 1 / 0)
    with pytest.raises(Exception, match="ZeroDivisionError"):
        jax.block_until_ready(pgj.call(layer, *operands))


SHARDED = """
import jax, numpy as np, polygen as pg, polygen.adapters.jax as pgj
from jax.sharding import Mesh, PartitionSpec as P
jnp = jax.numpy
mesh = Mesh(np.array(jax.devices()), ("d",))
x = jnp.arange(16 * 8).reshape(16, 8).astype(jnp.bfloat16) % 5
w = jnp.arange(24 * 8).reshape(24, 8).astype(jnp.bfloat16) % 3
call = lambda x, w: pgj.call(lambda x, w: pg.relu(x @ w.T), x, w)
sharded = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d")))
assert len(jax.devices()) == 2 and bool((sharded(x, w) == call(x, w)).all())

b = jnp.arange(24).astype(jnp.bfloat16) - 11.5  # no sum is at the kink
late = lambda x, w, b: pg.relu(x @ w.T + b)
along = lambda function, outs, *ins: jax.jit(jax.shard_map(
    function, mesh=mesh, in_specs=ins, out_specs=outs))
rows = along(lambda x, w, b: pgj.shared(late, x, w, b, axis_name="d", split={"x": 1, "w": 1}),
             P(), P(None, "d"), P(None, "d"), P())
assert bool((rows(x, w, b) == pgj.call(late, x, w, b)).all())
columns = along(lambda x, w, b: pgj.shared(late, x, w, b, axis_name="d", split={"w": 0, "b": 0}),
                P(None, "d"), P(), P("d"), P("d"))
assert bool((columns(x, w, b) == pgj.call(late, x, w, b)).all())
sums = along(lambda x, w: pgj.shared(lambda x, w: 2.0 * (x @ w.T), x, w, axis_name="d",
             split={"x": 1, "w": 1}), P(), P(None, "d"), P(None, "d"))
assert bool((sums(x, w) == 2 * pgj.call(lambda x, w: x @ w.T, x, w)).all())
folds = lambda x, w: (pg.softmax(x @ w.T), pg.argmax(x @ w.T, axis=1))
named = along(lambda x, w: pgj.call(folds, x, w), P("d"), P("d"), P())
assert all(bool((a == b).all()) for a, b in zip(named(x, w), pgj.call(folds, x, w)))
late_folds = along(lambda x, w: pgj.shared(folds, x, w, axis_name="d", split={"x": 1, "w": 1}),
                   P(), P(None, "d"), P(None, "d"))
for p, q in zip(late_folds(x, w), pgj.call(folds, x, w)):
    assert p.dtype == q.dtype and float(abs(p - q).max()) < 1e-6
own_rows = along(lambda x, w: pgj.shared(folds, x, w, axis_name="d", split={"x": 0}),
                 P("d"), P("d"), P())
assert all(bool((a == b).all()) for a, b in zip(own_rows(x, w), pgj.call(folds, x, w)))
total = lambda run: jax.grad(lambda w: run(x, w, b).astype(jnp.float32).sum())(w)
assert bool((total(rows) == total(lambda *given: pgj.call(late, *given))).all())
print("equal")
"""


def test_shards_call_kernels_of_their_own():
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", SHARDED],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "equal", done.stderr[-2000:]


def test_what_cannot_be_shared_is_refused(operands):
    with pytest.raises(UnsupportedProgram, match=r"split as .* Ways to split: \{'x': 0\}"):
        pgj.shared(layer, *operands, axis_name="d", split={"x": 1})
    with pytest.raises(ArgumentError, match=r"no parameter is called v\. Parameters: x, w, b"):
        pgj.shared(layer, *operands, axis_name="d", split={"v": 1})


def test_importing_polygen_does_not_import_jax():
    done = subprocess.run(
        [sys.executable, "-c", "import sys, polygen; print('jax' in sys.modules)"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "False"
