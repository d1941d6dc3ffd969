"""Chains of products in tf32 and f32 on the PTX machine: exact on whole numbers, and broken ones.

Elements are as wide as sums: what the first product leaves in a thread's registers is its operand
of the second in another order of the keys, in which rows of values are then loaded. Whole numbers
that a tf32 holds tell one order from another; those of f32 have up to 22 bits, in two parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from chain_samples import arrays_of, by_warps, run
from generated import edited
from machine.conftest import ptx_of

import polygen as pg
from polygen.comparison import is_exact, operands_off
from polygen.emulated import emulate
from polygen.frontend.evaluate import evaluate, reference

HEADS = ("tf32[B,S,64]", "tf32[B,T,64]", "tf32[B,T,64]")
SIZES = {"B": 2, "S": 70, "T": 90, "M": 70, "N": 90, "H": 2, "G": 3}
_MOST = 2**11  # whole numbers up to here are tf32


def softmax(q, k, v):
    return pg.softmax((q @ k.mT) * 0.125) @ v


def kept(q, k, v):
    return pg.relu(q @ k.mT) @ v


def causal(q, k, v):
    s = q @ k.mT
    i, j = pg.indices(s)[-2:]
    return pg.where(j <= i, s, 0.0) @ v


def arrays_for(signature: tuple[str, ...], long: int = -1, **sizes: int) -> list[np.ndarray]:
    """-2 to 2; of matrices two in three are 0. `long`: of which numbers have 13 bits."""
    rng, found = np.random.default_rng(len(signature)), []
    for at, one in enumerate(signature):
        dims = one.partition("@")[0].rstrip("]").split("[")[1].split(",")
        shape = [int(d) if d.isdigit() else (SIZES | sizes)[d] for d in dims]
        numbers = rng.integers(-2, 3, shape)
        if len(shape) > 1:
            numbers = numbers * (rng.random(shape) < 1 / 3)
        if at == long:
            numbers.reshape(-1)[::7] = 4097 * np.sign(numbers.reshape(-1)[::7])
        found.append(numbers.astype(np.float32))
    return found


def exact(
    function: Callable,
    signature: tuple[str, ...],
    *,
    arch: str = "sm_80",
    schedule="auto",
    long: int = -1,
    **sizes: int,
) -> None:
    """The kernel's results are the program's, to the bit; no findings."""
    kernel = pg.fuse(function).compile(*signature, arch=arch, schedule=schedule)
    assert kernel.passes.plan.chained is not None and not kernel.schedule.specialised
    arrays = arrays_for(signature, long, **sizes)
    done = kernel.emulation(*arrays)
    assert done.report.findings == ()
    named = dict(zip((t.name for t in kernel.program.inputs), arrays, strict=True))
    (wanted,) = evaluate(kernel.program, named)
    assert np.array_equal(done.results.astype(np.float64), wanted)
    assert wanted.any() and np.abs(wanted).max() < 2**24


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (70, 130), (129, 67), (3, 400)])
def test_any_lengths(rows: int, keys: int) -> None:
    exact(kept, HEADS, S=rows, T=keys, B=1)


@pytest.mark.sample(2)
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a", "sm_120"])
def test_masks_on_every_target(arch: str) -> None:
    exact(causal, HEADS, arch=arch)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("depth", "columns"), [(128, 128), (32, 48), (256, 256), (96, 80), (35, 24), (20, 7)]
)
def test_head_dims(depth: int, columns: int) -> None:
    """Of any number: rows of 35 elements are copied one by one, in the background all the same."""
    signature = (f"tf32[S,{depth}]", f"tf32[T,{depth}]", f"tf32[T,{columns}]")
    exact(kept, signature)


@pytest.mark.sample(2)
@pytest.mark.parametrize("turned", ["q", "k", "v"])
def test_operands_with_their_rows_innermost(turned: str) -> None:
    """Each is then loaded in another form: of values, two neighbours of a column at once."""

    def function(q, k, v):
        q, k, v = (x.mT if name == turned else x for x, name in zip((q, k, v), "qkv", strict=True))
        return causal(q, k, v)

    names = [("S", "64"), ("T", "64"), ("T", "64")]
    at = "qkv".index(turned)
    names[at] = names[at][::-1]
    exact(function, tuple(f"tf32[{','.join(one)}]" for one in names), S=72, T=88)


def test_heads_in_groups_and_inside_rows() -> None:
    def function(q, k, v):
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        return kept(q, k, v).swapaxes(1, 2)

    exact(function, ("tf32[B,S,H,64]", "tf32[B,T,H,64]", "tf32[B,T,H,64]"))
    exact(kept, ("tf32[B,H,G,S,64]", "tf32[B,H,1,T,64]", "tf32[B,H,1,T,64]"), B=1)


@pytest.mark.sample(2)
@pytest.mark.parametrize("mask", ["none", "causal", "lengths"])
def test_softmax(mask: str) -> None:
    """Terms are summed as they are and multiplied as tf32, of 11 bits."""

    def function(q, k, v, *length):
        s = (q @ k.mT) * 0.125
        i, j = pg.indices(s)[-2:]
        seen = {"none": j >= 0, "causal": j <= i}
        own = seen[mask] if mask in seen else j < length[0][:, None, None]
        s = pg.where(own, s, -np.inf)
        return pg.softmax(s) @ v, pg.logsumexp(s, axis=-1)

    arrays = arrays_of(3, (2, 70, 64), (2, 90, 64), (2, 90, 64), dtype=np.float32)
    if mask == "lengths":
        given, length = (*HEADS, "s32[B]"), np.array([33, 90], np.int32)
        run(lambda q, k, v, n: function(q, k, v, n), given, [*arrays, length],
            arch="sm_80", tolerance=2**-10)  # fmt: skip
    else:
        run(lambda q, k, v: function(q, k, v), HEADS, arrays, arch="sm_80", tolerance=2**-10)


def test_keys_in_parts() -> None:
    arrays = arrays_of(4, (2, 40, 64), (2, 330, 64), (2, 330, 64), dtype=np.float32)
    run(softmax, HEADS, arrays, arch="sm_80", schedule=by_warps(part=128), tolerance=2**-10)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "schedule",
    [
        by_warps(1, 64, 8, fragments=1, lookahead=0),
        by_warps(3, 32, 24, stages=3, distance=2, order=("mma", "copy")),
    ],
    ids=["keys of one instruction", "products first"],
)
def test_schedules_that_are_given(schedule) -> None:
    exact(causal, HEADS, schedule=schedule, S=110, B=1)


LAYERS = {
    "an MLP": (
        lambda x, u, d: pg.relu(x @ u) @ d, "tf32[M,32]", "tf32[32,N]", "tf32[N,24]",
    ),
    "with biases": (
        lambda x, u, d, e, f: pg.relu(x @ u + e) @ d - f,
        "tf32[M,32]", "tf32[32,N]", "tf32[N,24]", "f32[N]", "f32[24]",
    ),
    "weights as torch has them": (
        lambda x, u, d: pg.relu(x @ u.T) @ d.T, "tf32[M,32]", "tf32[N,32]", "tf32[24,N]",
    ),
    "three": (
        lambda x, a, b, c: pg.relu(pg.relu(x @ a) @ b) @ c,
        "tf32[M,16]", "tf32[16,24]", "tf32[24,40]", "tf32[40,16]",
    ),
    "three, the other way round": (
        lambda x, a, b, c: pg.relu(pg.relu(x @ a.T) @ b.T) @ c.T,
        "tf32[M,16]", "tf32[24,16]", "tf32[40,24]", "tf32[16,40]",
    ),
    "a gate": (
        lambda x, g, u, d: (pg.relu(x @ g) * (x @ u)) @ d,
        "tf32[M,16]", "tf32[16,40]", "tf32[16,40]", "tf32[40,24]",
    ),
    "gates in front": (
        lambda x, g, u, d, e: pg.relu((pg.relu(x @ g) * (x @ u)) @ d) @ e,
        "tf32[M,16]", "tf32[16,24]", "tf32[16,24]", "tf32[24,32]", "tf32[32,8]",
    ),
}  # fmt: skip


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_in_a_row(name: str) -> None:
    function, *signature = LAYERS[name]
    exact(function, tuple(signature))


def test_what_is_multiplied_again_is_the_nearest_tf32() -> None:
    """2049 lies between two of them, as far from the one as from the other: away from zero."""
    signature = ("tf32[M,16]", "tf32[16,N]", "tf32[N,8]")
    kernel = pg.fuse(lambda x, u, d: (x @ u) @ d).compile(*signature, arch="sm_80")
    x, u, d = (np.zeros(shape, np.float32) for shape in ((8, 16), (16, 8), (8, 8)))
    np.fill_diagonal(x, _MOST)
    np.fill_diagonal(u, 1)
    np.fill_diagonal(d, 1)
    x[:, 15] = [1, -1, 2, 3, 1, -1, 2, 3]
    u[15] = 1
    sums = x.astype(np.float64) @ u
    with np.errstate(divide="ignore"):
        unit = 2.0 ** np.maximum(np.floor(np.log2(np.abs(sums))) - 10, 0)
    wanted = np.sign(sums) * np.floor(np.abs(sums) / unit + 0.5) * unit
    assert (wanted != sums).any()
    assert np.array_equal(kernel.emulate(x, u, d), wanted)


# --- f32 ------------------------------------------------------------------------------------------
def in_f32(signature: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(one.replace("tf32", "f32") for one in signature)


@pytest.mark.sample(2)
@pytest.mark.parametrize("long", [0, 1, 2])
def test_what_is_multiplied_keeps_the_digits_of_f32(long: int) -> None:
    """Of rows, of keys, of values; scores have up to 17 bits."""
    exact(causal, in_f32(HEADS), long=long, B=1)
    of_columns = in_f32(("tf32[S,40]", "tf32[T,40]", "tf32[24,T]"))
    exact(lambda q, k, v: kept(q, k, v.mT), of_columns, long=long, S=72, T=88)


@pytest.mark.sample(3)
@pytest.mark.parametrize("arch", ["sm_86", "sm_90a", "sm_120"])
def test_f32_on_every_target(arch: str) -> None:
    exact(kept, in_f32(HEADS), arch=arch, long=1, B=1)


@pytest.mark.sample(3)
@pytest.mark.parametrize(("depth", "columns"), [(128, 128), (192, 192), (35, 24)])
def test_head_dims_in_f32(depth: int, columns: int) -> None:
    signature = (f"f32[S,{depth}]", f"f32[T,{depth}]", f"f32[T,{columns}]")
    exact(kept, signature, long=2)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_in_f32(name: str) -> None:
    function, *signature = LAYERS[name]
    exact(function, in_f32(tuple(signature)), long=1)


@pytest.mark.parametrize("part", [0, 128])
def test_softmax_in_f32(part: int) -> None:
    arrays = arrays_of(5, (2, 40, 64), (2, 330, 64), (2, 330, 64), dtype=np.float32)
    schedule = by_warps(keys=32, part=part) if part else "auto"
    run(softmax, in_f32(HEADS), arrays, arch="sm_80", schedule=schedule, tolerance=2**-20)


# --- what checks allow ----------------------------------------------------------------------------
WIDTHS = ("tf32[M,64]", "tf32[64,64]", "tf32[64,64]")
CHECKED = {
    "softmax in tf32": (softmax, HEADS, 2.0**-10, False),
    "softmax in f32": (softmax, in_f32(HEADS), 2.0**-18, False),
    "an MLP": (*LAYERS["an MLP"], 0.0, True),
    "sums of tanh": (lambda x, a, b: np.tanh(x) @ a @ b, WIDTHS, 2.0**-10, False),
    "sums of whole numbers": (lambda x, a, b: x @ a @ b, WIDTHS, 0.0, True),
    "three in tf32": (*LAYERS["three"], 2.0**-10, False),
    "three in f32": (LAYERS["three"][0], *in_f32(LAYERS["three"][1:]), 0.0, True),
    "in 16 bits": (softmax, tuple(one.replace("tf32", "bf16") for one in HEADS), 2.0**-7, False),
}


@pytest.mark.parametrize("name", CHECKED)
def test_checks_allow_what_is_rounded_again(name: str) -> None:
    """What layers of tf32 make of small integers need not be a tf32; two products' is."""
    function, *signature, off, exact_ = CHECKED[name]
    signature = signature[0] if isinstance(signature[0], tuple) else signature
    program = pg.fuse(function).program(*signature)
    assert (max(operands_off(program).values(), default=0.0), is_exact(program)) == (off, exact_)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["softmax in tf32", "three in tf32", "sums of tanh"])
def test_kernels_pass_them(name: str) -> None:
    function, *signature, _, _ = CHECKED[name]
    signature = signature[0] if isinstance(signature[0], tuple) else signature
    report = pg.fuse(function).compile(*signature, arch="sm_80").check()
    assert report.ok, report


# --- mistakes forced into the text ----------------------------------------------------------------
BROKEN = {
    "values in the instruction's own order": [
        ("s * 8 + 2 * (lane % 4),", "s * 8 + lane % 4,"),
        ("s * 8 + 2 * (lane % 4) + 1,", "s * 8 + lane % 4 + 4,"),
    ],
    "a key twice": [
        (
            "weights[m][s][0] = round_to_tf32(__float_as_uint(scores[m][s][0]))",
            "weights[m][s][0] = round_to_tf32(__float_as_uint(scores[m][s][1]))",
        )
    ],
    "not rounded": [("weights[m][s][0] = round_to_tf32", "weights[m][s][0] = ")],
}


def _changed(edits: list, kind: str = "tf32") -> tuple[set[str], np.ndarray, np.ndarray]:
    """The findings of a changed kernel, what it gives, and what it should."""
    heads = (f"{kind}[{side},64]" for side in "STT")
    kernel = pg.fuse(softmax).compile(*heads, arch="sm_80")
    source = kernel.passes.source
    changed = replace(source, text=edited(source.text, edits))
    arrays = arrays_of(3, (70, 64), (90, 64), (90, 64), dtype=np.float32)
    done = emulate(kernel.program, changed, ptx_of(changed), arrays)
    return {one.code for one in done.report.findings}, done.results, reference(softmax, arrays)


def test_mistakes_give_wrong_values() -> None:
    _, right, wanted = _changed([("#pragma", "#pragma")])
    assert np.abs(right - wanted).max() < 2**-10
    for name, edits in BROKEN.items():
        _, found, _ = _changed(edits)
        assert (found != right).any(), name
        assert name == "not rounded" or np.abs(found - wanted).max() > 0.1, name


def test_the_rest_of_a_weight_is_multiplied() -> None:
    _, right, wanted = _changed([("#pragma", "#pragma")], "f32")
    assert np.abs(right - wanted).max() < 2**-20
    split = "split_to_tf32(weights[m][s][1], weights[m][s][5]);"
    _, found, _ = _changed([(split, f"{split} weights[m][s][5] = 0;")], "f32")
    assert 2**-16 < np.abs(found - wanted).max() < 2**-8
