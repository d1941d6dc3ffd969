"""Folds inside JAX's transformations: what they mean, and the workspace that XLA gives them."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest

import polygen as pg
from polygen.errors import GradientError, ToolchainMissing
from polygen.kernel import Kernel

jax = pytest.importorskip("jax")
pgj = pytest.importorskip("polygen.adapters.jax")
export = pytest.importorskip("jax.export")
jnp = jax.numpy

F = np.float32


def nearest(x, w):
    return pg.argmin((w * w).sum(1) - 2 * (x @ w.T), axis=1)


def several(x, w):
    return x @ w.T, pg.logsumexp(x @ w.T, axis=0), pg.argmax(x @ w.T, axis=1)


def plainly(v):
    return v / jnp.sqrt((v * v).mean(-1, keepdims=True) + 1e-5)


def _layer_norm(v):
    return (v - v.mean(-1, keepdims=True)) / jnp.sqrt(v.var(-1, keepdims=True) + 1e-5)


# Each with the same in JAX's own operations, of f32.
PROGRAMS = {
    "softmax": (lambda x, w: pg.softmax(x @ w.T), lambda x, w: jax.nn.softmax(x @ w.T)),
    "rms_norm": (lambda x, w: pg.rms_norm(x @ w.T, eps=1e-5), lambda x, w: plainly(x @ w.T)),
    "layer_norm": (
        lambda x, w: pg.layer_norm(x @ w.T, eps=1e-5), lambda x, w: _layer_norm(x @ w.T)
    ),
    "rows": (lambda x, w: (x @ w.T).sum(axis=1), lambda x, w: (x @ w.T).sum(1)),
    "a number": (lambda x, w: pg.max(x @ w.T), lambda x, w: (x @ w.T).max()),
    "nearest": (nearest, lambda x, w: jnp.argmin((w * w).sum(1) - 2 * (x @ w.T), 1)),
    "several": (
        several,
        lambda x, w: (
            x @ w.T, jax.scipy.special.logsumexp(x @ w.T, 0), jnp.argmax(x @ w.T, 1)
        ),
    ),
    "norm first": (
        lambda x, w: pg.rms_norm(x, eps=1e-5) @ w.T, lambda x, w: plainly(x) @ w.T
    ),
    "gradients": (lambda x, w: (x @ w.T, w.sum(1)), lambda x, w: (x @ w.T, w.sum(1))),
    "variance": (lambda x, w: np.var(x @ w.T, axis=1), lambda x, w: (x @ w.T).var(1)),
}  # fmt: skip


@pytest.fixture
def operands():
    return whole_numbers((24, 16), (40, 16))


def whole_numbers(*shapes):
    generator = np.random.default_rng(5)
    return tuple(jnp.asarray(generator.integers(-2, 3, s), jnp.bfloat16) for s in shapes)


def wide(values):
    return jax.tree.map(lambda value: value.astype(F), values)


def near(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert a.shape == b.shape
        if b.dtype == jnp.int32:
            assert a.dtype == jnp.int32 and bool((a == b).all())
            continue
        bits = 8 if a.dtype == jnp.bfloat16 else 16
        assert float(jnp.abs(wide(a) - b).max()) <= 2.0**-bits * float(jnp.abs(b).max())


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_is_what_the_function_says(name, operands):
    function, plain = PROGRAMS[name]
    wanted = plain(*wide(operands))
    for run in (pgj.call, jax.jit(pgj.call, static_argnums=0)):
        near(run(function, *operands), wanted)


@pytest.mark.parametrize("axes", [(0, None), (None, 1), (1, 0)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_batch_is_mapped(name, axes, operands):
    function, plain = PROGRAMS[name]
    stacked = tuple(
        o if axis is None else jnp.stack([o, -o, o + 1], axis)
        for o, axis in zip(operands, axes, strict=True)
    )
    found = jax.jit(jax.vmap(functools.partial(pgj.call, function), axes))(*stacked)
    near(found, jax.vmap(plain, axes)(*wide(stacked)))


def test_a_batch_of_folds_is_one_call(operands):
    x, w = operands
    for function in (nearest, lambda x, w: pg.softmax(x @ w.T)):
        mapped = jax.vmap(functools.partial(pgj.call, function), (0, None))
        text = str(jax.make_jaxpr(mapped)(jnp.stack([x, x + 1, -x]), w))
        assert text.count("polygen_launch[") == 1 and "scan" not in text


def test_results_have_the_types_of_the_program(operands):
    x, w = operands
    with jax.enable_x64(True):
        given = [jnp.asarray(o, jnp.float64) for o in (x, w)]
        total, least = pgj.call(lambda x, w: ((x @ w.T).sum(1), pg.argmin(x @ w.T, axis=1)), *given)
        assert (total.dtype, least.dtype) == (jnp.float64, jnp.int32)
        assert bool((total == (given[0] @ given[1].T).sum(1)).all())
    found = pgj.call(lambda x, w: np.any(x @ w.T > 3, axis=1), x, w)
    assert found.dtype == jnp.bool_ and bool((found == (wide(x) @ wide(w).T > 3).any(1)).all())


def test_derivatives_of_folds_are_refused_by_name(operands):
    x, w = operands

    def loss(x, w):
        return pgj.call(lambda x, w: pg.softmax(x @ w.T), x, w).sum()

    with pytest.raises(GradientError, match=r"v1, a fold: .* jax\.lax\.stop_gradient"):
        jax.grad(loss)(x, w)
    kept = jax.grad(lambda x: loss(jax.lax.stop_gradient(x), w) + wide(x).sum())(x)
    assert bool((kept == 1).all())


# --- the workspace --------------------------------------------------------------------------------
SIZES = [(64, 96, 32), (331, 4100, 72), (67, 45, 131)]
MEASURED = {
    **{name: function for name, (function, _) in PROGRAMS.items()},
    "relu": lambda x, w: pg.relu(x @ w.T),
}


WITHOUT = ("relu", "norm first", "gradients")  # rows that operands have leave with their tiles


@pytest.fixture
def uncompiled(monkeypatch):
    """Kernels as they are generated: there is no compiler."""

    def missing(_):
        raise ToolchainMissing("no compiler")

    monkeypatch.setattr(Kernel, "artifact", property(missing))


def lowered_for_cuda(function, *operands):
    """What a call is lowered to for CUDA: the types of the foreign call's results."""
    check = export.DisabledSafetyCheck.custom_call("polygen_launch")
    run = jax.jit(functools.partial(pgj.call, function))
    made = export.export(run, platforms=["cuda"], disabled_checks=[check])(*operands)
    (line,) = (one for one in made.mlir_module().splitlines() if "custom_call" in one)
    assert made.out_avals and all(one.dtype != np.uint8 for one in made.out_avals)
    return re.findall(r"tensor<(\w+)>", line.rpartition("->")[2].partition("loc(")[0])


def described(*shapes):
    return [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]


def header_count(kernel, sizes):
    """The workspace of folds as the C header counts it; None: it does not."""
    lines = [one for one in kernel.header.splitlines() if "(unsigned long long)(" in one]
    if not lines or kernel._generated.source.following is None:
        return None
    text = lines[0].partition("(unsigned long long)")[2].rstrip(";")
    return eval(text.replace("LL", "").replace("/", "//"), {}, sizes)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", MEASURED)
def test_xla_is_asked_for_what_the_kernel_takes(name, arch, monkeypatch, uncompiled):
    monkeypatch.setenv("POLYGEN_ARCH", arch)
    function = pg.fuse(MEASURED[name], name="measured")
    asked = []
    for m, n, k in SIZES:
        sizes = {"M": m, "N": n, "K": k}
        *results, last = lowered_for_cuda(function, *described((m, k), (n, k)))
        kernel = function.compile("bf16[M,K]", "bf16[N,K]", arch=arch, sizes=sizes)
        needed, counted = kernel.workspace(sizes), header_count(kernel, sizes)
        assert (last == f"{needed}xui8") == (needed > 0) and counted in (None, needed)
        assert len(results) + (needed == 0) == len(kernel.program.outputs)
        asked.append(needed)
    assert any(asked) == (name not in WITHOUT)


def test_the_kernel_that_is_compiled_counts(monkeypatch):
    """An automatic choice that spills is another kernel, whose parts are others."""
    monkeypatch.setenv("POLYGEN_ARCH", "sm_80")
    function, sizes = pg.fuse(MEASURED["rows"], name="spilled"), {"D0": 331, "D1": 72, "D2": 4100}
    given = ("bf16[D0,D1]", "bf16[D2,D1]")
    other = function.compile(*given, arch="sm_90a", sizes=sizes)
    needed = other.workspace(sizes)
    assert needed != function.compile(*given, arch="sm_80", sizes=sizes).workspace(sizes)

    def compiled(kernel):
        kernel._generated = other._generated

    monkeypatch.setattr(Kernel, "artifact", property(compiled))
    _, last = lowered_for_cuda(function, *described((331, 72), (4100, 72)))
    assert last == f"{needed}xui8"


def test_where_no_target_is_known_none_is_asked_for(monkeypatch):
    monkeypatch.delenv("POLYGEN_ARCH", raising=False)
    running = pytest.importorskip("polygen.adapters.jax.running")

    def nothing(_):
        raise ToolchainMissing("no GPU to compile for")

    monkeypatch.setattr(running, "target", nothing)
    found = lowered_for_cuda(lambda x, w: (x @ w.T).sum(axis=1), *described((64, 32), (96, 32)))
    assert found == ["64xf32"]


# --- launches, up to the driver -------------------------------------------------------------------
@pytest.fixture(params=["sm_80", "sm_90a"])
def gpu(request, monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("cupy")
    from jax_on_a_stand_in import played

    with played(monkeypatch, request.param) as made:
        yield made


def program(x, w):
    """Calls between operations of XLA's, each with a workspace of another size or with none."""
    half = jnp.roll(x, 1, axis=0)
    first = pgj.call(several, x, w)
    second = pgj.call(nearest, half, w)
    rows = pgj.call(lambda x, w: pg.softmax(x @ w.T), half + x, w)
    return first, second + 1, rows, pgj.call(lambda x, w: pg.max(x @ w.T), half - x, w)


def test_workspaces_lie_in_xla_s_memory(gpu):
    x, w = whole_numbers((331, 24), (4100, 24))
    halves = jnp.roll(x, 1, axis=0)
    wanted = (
        PROGRAMS["several"][1](*wide((x, w))),
        PROGRAMS["nearest"][1](*wide((halves, w))) + 1,
        PROGRAMS["softmax"][1](wide(halves + x), wide(w)),
        PROGRAMS["a number"][1](wide(halves - x), wide(w)),
    )
    run = jax.jit(program)
    for _ in range(3):
        near(run(x, w), wanted)
    assert len(gpu.rooms) == 12 and len({count for _, count in gpu.rooms}) == 4
    first, second = gpu.entries[0::2], gpu.entries[1::2]
    assert [f"{entry}_folds" for entry in first] == second and len(second) == 12


def test_a_batch_and_a_loop_have_workspaces_too(gpu):
    x, w = whole_numbers((3, 70, 24), (90, 24))
    near(
        jax.jit(jax.vmap(functools.partial(pgj.call, nearest), (0, None)))(x, w),
        jax.vmap(PROGRAMS["nearest"][1], (0, None))(*wide((x, w))),
    )
    assert len(gpu.rooms) == 1
    once = functools.partial(pgj.call, lambda x, w: (x @ w.T).sum(axis=1))
    near(
        jax.jit(lambda x: jax.lax.map(lambda one: once(one, w), x))(x),
        (wide(x) @ wide(w).T).sum(2),
    )
    assert len(gpu.rooms) == 4 and len({count for _, count in gpu.rooms[1:]}) == 1


def test_keys_are_in_parts_where_that_is_chosen(gpu):
    q, k, v = whole_numbers((1, 16, 64), (1, 8192, 64), (1, 8192, 64))
    found = jax.jit(lambda *o: pgj.call(lambda q, k, v: pg.softmax((q @ k.mT) * 0.05) @ v, *o))(
        q, k, v
    )
    scores = wide(q) @ wide(k).mT * 0.05
    near(found, jax.nn.softmax(scores) @ wide(v))
    (kernel,) = gpu.gpu.kernels.values()
    assert kernel.schedule.tile.part and len(gpu.rooms) == 1


def test_a_workspace_that_is_too_small_is_refused(gpu, monkeypatch):
    running = pytest.importorskip("polygen.adapters.jax.running")
    x, w = whole_numbers((70, 24), (90, 24))

    def nothing(_):
        raise ToolchainMissing("no GPU to compile for")

    with monkeypatch.context() as before:
        before.setattr(running, "target", nothing)
        made = jax.jit(lambda x, w: pgj.call(lambda x, w: (x @ w.T).sum(axis=1), x, w)).lower(x, w)
    with pytest.raises(Exception, match="gives the call 0 bytes of workspace, and its") as error:
        jax.block_until_ready(made.compile()(x, w))
    assert "ArgumentError" in str(error.value) and "with POLYGEN_ARCH=sm_" in str(error.value)
    assert not gpu.entries
