"""Hostile and careless array code, arguments and files, given in Python: one clear message each.

The second half of `test_hostile_inputs`: what users write in functions, give to `compile`, and do
with kernels. Each is refused with a `PolygenError` on its own account.
"""

from __future__ import annotations

import functools
import pickle

import numpy as np
import pytest
from messages import check_message

import polygen as pg
from polygen import knobs
from polygen.errors import PolygenError, ScheduleFileError

G = ("bf16[M,K]", "bf16[N,K]")
B = ("bf16[B,M,K]", "bf16[B,N,K]")
GATHERED = ("bf16[M,K]", "s32[T]", "bf16[N,K]")
GROUPED = ("bf16[T,K]", "bf16[E,K,N]", "s32[E]")
SCALED = ("bf16[M,K]", "s8[N,K]", "bf16[N,G]")
FIXED = ("bf16[64,32]", "bf16[48,32]")


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with knobs.scope(cache_dir=tmp_path / "cache", arch=None, schedule=None, debug=False):
        yield


def compiled(function, *signature, **options):
    return pg.fuse(function, name="f").compile(
        *signature, **{"arch": "sm_80", "single": True, **options}
    )


AXES = ["2", "-3", "1.5", "'a'", "(0, 0)", "(0, 1, 2)", "()", "(0, -2)", "10**30", "float('nan')"]
FOLDS = [
    "sum", "mean", "max", "min", "prod", "all", "any", "argmax", "argmin", "logsumexp", "softmax",
    "rms_norm", "layer_norm",
]  # fmt: skip


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", FOLDS)
def test_axes_of_folds_are_refused_under_the_name_that_was_called(name, axis):
    with pytest.raises(PolygenError) as caught:
        compiled(lambda x, w: getattr(pg, name)(x @ w.T, axis=eval(axis)), *G)
    check_message(f"polygen: {caught.value}\n")
    assert str(caught.value).startswith(f"{name} of x @ w.T"), caught.value


# Python's expressions over x, w and v = x @ w.T, of symbolic sizes.
EXPRESSIONS = [
    "np.sum(v, axis=1, dtype='f64')", "np.sum(v, axis=1, out=np.zeros(3))",
    "np.sum(v, axis=1, where=True)", "np.sum(v, axis=1, initial='a')", "np.cumsum(v, axis=1)",
    "np.median(v)", "pg.layer_norm(v, eps='a')",
    "pg.rms_norm(None)", "pg.indices(3)[0] + v", "pg.indices(v)[0]", "pg.indices(x)[0] + v",
    "pg.indices(v)[5]", "pg.dropout(v, 1.0, seed=1)", "pg.dropout(v, 2, seed=1)",
    "pg.dropout(v, -0.1, seed=1)", "pg.dropout(v, float('nan'), seed=1)",
    "pg.dropout(v, 'a', seed=1)", "pg.dropout(v, 0.1)", "pg.dropout(v, 0.1, seed=1.5)",
    "pg.dropout(v, 0.1, seed=10**40)", "pg.dropout(v, 0.1, seed=-1)",
    "pg.dropout(v, 0.1, seed=None)", "pg.dropout(v, 0.1, seed=x)", "pg.dropout(v, 0.1, seed=[])",
    "pg.random.uniform(3, seed=1) + v", "pg.random.normal(v, seed=1)", "pg.random.seed(3)",
    "x[..., None, 0] @ w.T", "x[:, :, :, :] @ w.T", "x[1:0] @ w.T", "x[5:2:-1] @ w.T",
    "x[::0] @ w.T", "x[::-1] @ w.T", "x[0.5] @ w.T", "x[True] @ w.T", "x[x > 0] @ w.T",
    "x[[1, 2]] @ w.T", "x[np.array([1, 2])] @ w.T", "x[10**30] @ w.T", "x[-10**30:] @ w.T",
    "x[:'a'] @ w.T", "x[:, None, :, None] @ w.T", "x[..., ...] @ w.T", "x[object()] @ w.T",
    "x[w] @ w.T", "x[w, w] @ w.T", "x[{}] @ w.T", "x[lambda: 0] @ w.T",
    "v + x.reshape(-1, -1)", "x.reshape(0, -1) @ w.T", "x.reshape() @ w.T",
    "x.reshape(3, 5) @ w.T", "x.reshape((x.shape[0], 'a')) @ w.T", "x.reshape(-2, 4) @ w.T",
    "x.reshape(10**30) @ w.T", "x.reshape(None) @ w.T", "v.swapaxes(0, 5)", "v.swapaxes('a', 1)",
    "v.swapaxes(0)", "v.transpose('a')", "v.transpose(0)", "v.transpose(0, 0)",
    "v.transpose((0, 1, 2))", "v.flatten()", "v.ravel()", "v.squeeze(1)", "x.view('f16') @ w.T",
    "v.copy()", "v.item()", "v.tolist()", "v.astype(None)", "v.astype(float)", "v.astype(complex)",
    "v.astype(int)", "v.dot(w.T)", "v.fill(3)", "v.H", "v.clip('a')", "v.round(3)", "v.repeat(2)",
    "v.repeat(3, axis=9)", "v.take([0])", "v.nonzero()", "v.sort()", "v.argsort()", "v.cumsum()",
    "v + v.dtype", "v + v.shape[7]", "v + v.shape['a']", "v.size * v", "v.data", "v.flat",
    "v.real", "v.imag", "v.__array__()", "v.__len__()", "v.__iter__()", "v.__float__()",
    "np.einsum('', x, w)", "np.einsum('mk', x, w)", "np.einsum('mk,nk->', x, w)",
    "np.einsum('mk,nk->mn,', x, w)", "np.einsum('mk,nk->mnn', x, w)",
    "np.einsum('mk,nk->mq', x, w)", "np.einsum('mk,nk->mn->', x, w)",
    "np.einsum('mk,nkk->mn', x, w)", "np.einsum('1k,nk->n', x, w)",
    "np.einsum('mk,nk,mn->mn', x, w)", "np.einsum('é k,nk->n', x, w)",
    "np.einsum('mk;nk->mn', x, w)", "np.einsum('m' * 200 + ',nk->mn', x, w)",
    "np.einsum('mk,nk->mkn', x, w)", "np.einsum('mk,nk->mk', x, w)", "np.einsum('mk,mk->m', x, w)",
    "pg.einsum(None, x, w)", "pg.einsum('mk,nk->mn', x, w, x)",
    "np.einsum('mk,nk->mn', x, w, out=x)", "pg.einsum('mk,nk->mn', x, w, foo=1)",
    "np.matmul(x, w.T, axes=[(0, 1), (0, 1), (0, 1)])", "np.dot(x, w)",
    "np.tensordot(x, w, axes=3)", "np.outer(x, w)", "np.kron(x, w)",
    "np.vdot(x, w)", "np.linalg.inv(v)", "np.fft.fft(v)", "np.pad(x, 1) @ w.T", "np.roll(v, 1)",
    "np.flip(v)", "np.tile(v, 2)", "np.where(v > 0, 1, 2, 3)", "pg.where(None, v, 1)",
    "np.var(v, ddof='a')", "np.var(v, 5)", "np.average(v, weights=v[0])", "np.linalg.norm(v, 'a')",
    "np.std(v, ddof=x)", "np.linalg.norm(v, x, 1)", "np.trace(v, 0.5)", "np.trace(v, 0, 1, 1)",
    "np.take_along_axis(v, x, 1)", "np.take_along_axis(v, 3, 1)", "np.ptp(v, 'a')", "v.trace()",
    "np.diagonal(x)", "np.vecdot(x, 3)", "np.matvec(x, 3)", "np.count_nonzero(v, x)",
    "np.average(v, weights=[1, 2])", "np.average(v, 1, np.ones(3))",
    "np.zeros_like(v) + v", "np.ones(x.shape) + x", "np.full_like(v, 3) + v",
    "v + np.arange(w.shape[0])", "sum(v for _ in range(x.shape[0]))", "v * len(x)", "f'{v:.3f}'",
    "[row for row in v][0]", "{v: 1}", "pickle.dumps(x)", "setattr(x, 'foo', 1) or v",
    "x.__setitem__(0, 1) or v", "3 in v", "divmod(v, 2)", "round(v, 2)", "abs(x)", "pow(v, 2, 3)",
    "v << 1", "x @ [[1, 2], [3, 4]]", "np.ones((3, 3)) @ x", "np.ones((3, 3)) + v",
    "np.float64(1e300) * v", "np.array('a') + v", "np.datetime64('2020-01-01') + v",
    "(v, None)", "((v,),)", "()", "(u for u in [v])", "1 / 0", "{}[3]", "None.foo", "undefined",
    "np.concatenate([]) @ w.T", "np.concatenate([x, x], axis=5) @ w.T",
    "np.concatenate([v, 3], axis=1)", "pg.stack([v, v], axis=7)", "pg.split(v, 0)",
    "pg.split(v, 'a')", "np.tril(v, 'a')", "np.tril(v, 0.5)", "pg.unpack(None)",
    "pg.grouped_matmul(x, w, None)", "pg.grouped_matmul(x, w, [1, 2])", "pg.per_group(x, w) + v",
    "np.lib.stride_tricks.sliding_window_view(x, 3, axis=9)", "x.shape", "x.dtype", "pg", "np.pi",
]  # fmt: skip


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_functions(text):
    known = {"np": np, "pg": pg, "pickle": pickle}
    with pytest.raises(PolygenError) as caught:
        compiled(lambda x, w: eval(text, known | {"x": x, "w": w, "v": x @ w.T}), *G)
    check_message(f"polygen: {caught.value}\n")


def made(text):
    """A function of the parameters that its body names, by the body's text."""
    return lambda *signature, **options: functools.partial(
        compiled, eval(text, {"np": np, "pg": pg}), *signature, **options
    )


def stores(*statements):
    known = {"np": np}
    exec("def f(x, w, rows, out):\n " + "\n ".join(statements), known)
    return known["f"]


PROGRAMS = {
    "batch dims": made("lambda x, w: x @ w.mT")("bf16[B,M,K]", "bf16[C,N,K]"),
    "batch sizes": made("lambda x, w: x @ w.mT")("bf16[2,M,K]", "bf16[3,N,K]"),
    "transposed batch": made("lambda x, w: x @ w.T")(*B),
    "scalar": made("lambda x, w, s: s @ w")(*G, "f32[]"),
    "rows by floats": made("lambda x, r, w: x[r] @ w.T")(G[0], "bf16[T]", G[1]),
    "rows by bytes": made("lambda x, r, w: x[r] @ w.T")(G[0], "s8[T]", G[1]),
    "rows by two": made("lambda x, r, w: x[r, r] @ w.T")(*GATHERED),
    "rows by columns": made("lambda x, r, w: x[:, r] @ w.T")(*GATHERED),
    "ends of floats": made("lambda x, w, e: pg.grouped_matmul(x, w, e)")(*GROUPED[:2], "f32[E]"),
    "ends of others": made("lambda x, w, e: pg.grouped_matmul(x, w, e)")(*GROUPED[:2], "s32[F]"),
    "one group": made("lambda x, w, e: pg.grouped_matmul(x, w, e)")(
        "bf16[T,K]", "bf16[K,N]", "s32[E]"
    ),
    "stored twice": functools.partial(
        compiled, stores("out[rows] = x @ w.T", "out[rows] = x @ w.T", "return out"), *G,
        "s32[M]", "bf16[R,N]",
    ),
    "stored and lost": functools.partial(
        compiled, stores("out[rows] = x @ w.T", "return x @ w.T"), *G, "s32[M]", "bf16[R,N]"
    ),
    "stored by floats": functools.partial(
        compiled, stores("out[rows] = x @ w.T", "return out"), *G, "f32[M]", "bf16[R,N]"
    ),
    "repeated never": made("lambda x, q, s: x @ (q * pg.repeat(s, 0, axis=1)).T")(*SCALED),
    "repeated backwards": made("lambda x, q, s: x @ (q * pg.repeat(s, -1, axis=1)).T")(*SCALED),
    "repeated in part": made("lambda x, q, s: x @ (q * pg.repeat(s, 1.5, axis=1)).T")(*SCALED),
    "repeated text": made("lambda x, q, s: x @ (q * pg.repeat(s, 'a', axis=1)).T")(*SCALED),
    "repeated elsewhere": made("lambda x, q, s: x @ (q * pg.repeat(s, 8, axis=9)).T")(*SCALED),
    "odd nibbles": made("lambda x, q: x @ q.astype('bf16').T")("bf16[M,63]", "i4[N,63]"),
    "split unevenly": made("lambda x, w: pg.split(x @ w.T, 3, axis=1)[0]")(G[0], "bf16[7,K]"),
    "empty part": made("lambda x, w: x[5:5] @ w.T")(*FIXED),
    "row outside": made("lambda x, w: x[64] @ w.T")(*FIXED),
    "step of zero": made("lambda x, w: x[::0] @ w.T")(*FIXED),
    "window outside": made(
        "lambda x, w: np.lib.stride_tricks.sliding_window_view(x, 99, axis=0) @ w.T"
    )(*FIXED),
}  # fmt: skip


@pytest.mark.parametrize("make", PROGRAMS.values(), ids=PROGRAMS)
def test_programs(make):
    with pytest.raises(PolygenError) as caught:
        make()
    check_message(f"polygen: {caught.value}\n")


def option(**options):
    return functools.partial(compiled, lambda x, w: x @ w.T, *G, **options)


ARGUMENTS = {
    "sizes as text": option(sizes="M=4"),
    "sizes in pairs": option(sizes=[("M", 4)]),
    "a size": option(sizes=3),
    "sizes of lists": option(sizes={"M": [4]}),
    "sizes of none": option(sizes={None: 3}),
    "sizes of bytes": option(sizes={"M": b"4"}),
    "sizes of a check": lambda: option()().check("M=4"),
    "sizes of floats": option(sizes={"M": np.float32(64)}),
    "static number": option(static=3),
    "static numbers": option(static=["M", 3]),
    "static object": option(static=object()),
    "static bytes": option(static=b"M"),
    "static nothing": option(static=""),
    "invariant number": option(invariant=3),
    "invariant numbers": option(invariant=("M", 3)),
    "invariant object": option(invariant=object()),
    "invariant nothing": option(invariant=""),
    "invariant sum": option(invariant="K"),
    "arch object": option(arch=object()),
    "arch float": option(arch=90.5),
    "arch words": option(arch="hopper"),
    "schedule object": option(schedule=object()),
    "schedule nothing": option(schedule=""),
    "schedule loud": option(schedule="AUTO"),
    "schedule spaced": option(schedule=" auto "),
    "schedule true": option(schedule=True),
    "out types of too many": option(out_dtype=("f16", "f16")),
    "out nibbles": option(out_dtype="i4"),
    "out spaced": option(out_dtype=" f16"),
    "acc loud": option(acc_dtype="F32"),
    "fused text": lambda: pg.fuse("x @ w.T"),
    "fused class": lambda: pg.fuse(int),
    "fused name": lambda: pg.fuse(lambda x, w: x @ w.T, name=3),
    "fused no name": lambda: pg.fuse(lambda x, w: x @ w.T, name=""),
    "fused too much": lambda: pg.fuse(functools.partial(lambda x, w: x @ w.T, 1, 2, 3)),
    "schedule file number": lambda: pg.load_schedule(3),
    "schedule file none": lambda: pg.load_schedule(None),
    "schedule file nothing": lambda: pg.load_schedule(""),
    "schedule file nul": lambda: pg.load_schedule("a\0"),
    "schedule folder": lambda: pg.load_schedule("/"),
    "kernel none": lambda: pg.Kernel.load(None),
    "kernel number": lambda: pg.Kernel.load(3),
    "kernel nothing": lambda: pg.Kernel.load(""),
    "kernel nul": lambda: pg.Kernel.load("a\0"),
    "kernel missing": lambda: pg.Kernel.load("nowhere.json"),
    "kernel folder": lambda: pg.Kernel.load("/"),
}


FOLDERS = [None, 3, "a\0b", "q" * 300, b"out", "/dev/null", "/dev/null/x"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: ascii(folder)[:20])
def test_folders_to_save_in(folder):
    with pytest.raises(PolygenError) as caught:
        option()().save(folder)
    check_message(f"polygen: {caught.value}\n")


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 9000, b"", b"null", b"[]", b"\xff"])
def test_manifests(tmp_path, text):
    (tmp_path / "pg_f.json").write_bytes(text)
    with pytest.raises(PolygenError) as caught:
        pg.Kernel.load(tmp_path / "pg_f.json")
    check_message(f"polygen: {caught.value}\n")


@pytest.mark.parametrize("make", ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments(make):
    with pytest.raises(PolygenError) as caught:
        make()
    text = str(caught.value)
    check_message(f"polygen: {text}\n")
    assert "<function" not in text and " at 0x" not in text


def attention(*signature):
    return compiled(
        lambda q, k, v: pg.softmax(q @ k.mT, axis=-1) @ v, *signature, arch="sm_90a"
    ).source


def test_the_types_that_a_chain_is_told_to_have():
    with pytest.raises(PolygenError, match="Pass all of them as one type, f16, bf16, tf32 or f32"):
        attention(*("f32[B,S,64]",) * 2, "bf16[B,S,64]")
    for kind in ("f16", "tf32", "f32"):
        assert attention(*(f"{kind}[B,S,64]",) * 3)


def test_an_array_to_add_to_is_another_one():
    add = stores("out[rows] += x @ w.T", "return out")
    with pytest.raises(PolygenError, match=r"out\[rows\] = before\[rows\] \+ value"):
        compiled(add, *G, "s32[M]", "bf16[R,N]", arch="sm_90a")
    known = {}
    exec("def f(x, w, rows, before, out):\n out[rows] = before[rows] + x @ w.T\n return out", known)
    assert compiled(known["f"], *G, "s32[M]", *("bf16[R,N]",) * 2, arch="sm_90a").source


@pytest.mark.parametrize("parts", ["0", "-1", "'a'", "[1.5]", "None"])
def test_parts_that_no_number_mends(parts):
    with pytest.raises(PolygenError) as caught:
        compiled(lambda x, w: pg.split(x @ w.T, eval(parts))[0], *G)
    assert "static" not in str(caught.value), caught.value


@pytest.mark.parametrize("operand", [[[1.0]], None, "x", b"x", {}, object()])
def test_operands_of_calls(operand):
    with pytest.raises(PolygenError, match="neither an array nor a number") as caught:
        pg.fuse(lambda x, w: x @ w.T)(operand, operand)
    check_message(f"polygen: {caught.value}\n")


def test_a_name_that_is_nearly_one():
    with pytest.raises(AttributeError, match="Did you mean: 'softmax'"):
        _ = pg.softmx
    assert not hasattr(pg, "nothing_like_it")


def test_an_automatic_choice_is_suggested_as_it_is_written():
    with pytest.raises(ScheduleFileError, match='write "auto"'):
        option(schedule="AUTO")()
    assert option(schedule="auto")().source


@pytest.mark.parametrize("index", ["[::0]", "[1:0]", "[-1:-4]", "[2:5:-1]", "[7:7]"])
def test_what_is_empty_for_every_size_needs_no_number(index):
    """A number in the place of the size would be refused too."""
    with pytest.raises(PolygenError) as caught:
        compiled(lambda x, w: eval(f"x{index}", {"x": x}) @ w.T, *G)
    assert "static" not in str(caught.value), caught.value


def test_an_order_of_evaluation_means_nothing_else():
    ordered = compiled(lambda x, w: np.einsum("mk,nk->mn", x, w, optimize=True), *G)
    plain = compiled(lambda x, w: np.einsum("mk,nk->mn", x, w), *G)
    assert ordered.program.statements == plain.program.statements


def test_there_are_enough():
    assert len(EXPRESSIONS) + len(PROGRAMS) + len(ARGUMENTS) + len(AXES) * len(FOLDS) >= 300
