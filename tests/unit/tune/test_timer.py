"""The timer on NumPy arrays: it must notice every wrong kernel, and its anchor's mistakes too."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import ml_dtypes
import numpy as np
import pytest
from tuning_samples import SIGNATURE, fused

from polygen.errors import PolygenError
from polygen.frontend.dtypes import BF16, E4M3, F16, F32, dtype
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Tensor
from polygen.tune import gpu
from polygen.tune.data import empty, operands, poison, stored
from polygen.tune.gpu import Timer, Tools, differing
from polygen.tune.reference import as_f32, row_axes, sampled
from polygen.tune.trials import Batch, Contender

SIZES = {"M": 40, "N": 24, "K": 32}
PROGRAMS = [
    ("gelu(x @ w.T + b)", SIGNATURE),
    ("relu(x @ w + b) * g", ("x:f16[M,K]", "w:f16[K,N]", "b:f16[N]", "g:f16[M,N]")),
    ("s * (x @ w.T) + c", ("x:tf32[M,K]:col", "w:tf32[N,K]", "s:f32", "c:f32[M,1]")),
    ("x @ w.T, relu(x @ w.T)", ("x:bf16[M,K]", "w:bf16[N,K]:col")),
    ("(x @ w.T).T + g", ("x:bf16[M,K]", "w:bf16[N,K]", "g:bf16[N,M]")),
    ("where(x @ w.T > b, tanh(x @ w.T), b * b)", SIGNATURE),
    ("x @ w.T", ("x:e4m3[M,K]", "w:e4m3[N,K]")),
    ("relu((x * g + 1) @ w.T) + b", ("x:bf16[M,K]", "g:bf16[K]", "w:bf16[N,K]", "b:f32[N]")),
    ("x @ (q.astype('f16') * s[:, None]).T", ("x:f16[M,K]", "q:s8[N,K]", "s:f32[N]")),
    (
        "relu((x[r] * s[r][:, None]) @ w.T) + t[r]",
        ("x:bf16[M,K]", "r:s32[M]", "s:f32[M]", "w:bf16[N,K]", "t:f32[M,N]"),
    ),
    ("(x - 1) @ w", ("x:tf32[M,K]", "w:tf32[K,N]")),
]


def program_of(sample):
    return fused(*sample).program(*sample[1])


def plain(program, given):
    """Stored operands as NumPy arrays of their meaning."""
    types = {t.name: t.dtype for t in program.inputs}
    return {
        name: as_f32(np, value, types[name]) if isinstance(value, np.ndarray) else value
        for name, value in given.items()
    }


@pytest.mark.parametrize("sample", PROGRAMS, ids=lambda sample: sample[0])
def test_sampled_rows_are_those_of_the_whole_result(sample):
    program = program_of(sample)
    given = operands(np, program, SIZES, 0, integers=True)
    wanted = evaluate(program, plain(program, given), SIZES, round_outputs=False)
    rows, axes = [0, 7, 39], row_axes(program)
    found = sampled(np, program, given, rows)
    for tensor, whole in zip(program.outputs, wanted, strict=True):
        own = np.take(whole, rows, axis=axes[tensor.name])
        np.testing.assert_allclose(np.broadcast_to(found[tensor.name], own.shape), own, rtol=2e-7)


def test_operands_have_their_layout_and_their_kind_of_values():
    program = program_of(PROGRAMS[2])
    integers = operands(np, program, SIZES, 0, integers=True)
    assert integers["x"].shape == (40, 32) and integers["x"].strides == (4, 160)
    assert set(np.unique(integers["x"])) == {-2, -1, 0, 1, 2}
    normal = operands(np, program, SIZES, 0, integers=False)
    assert not (normal["x"].view(np.uint32) & 0x1FFF).any()  # tf32 holds ten bits
    sums = normal["x"] @ normal["w"].T
    assert 0.5 < sums.std() < 2
    assert isinstance(normal["s"], float)
    assert not np.array_equal(
        normal["x"].ravel()[:9], operands(np, program, SIZES, 1, integers=False)["x"].ravel()[:9]
    )


def test_operands_have_gaps_between_their_rows():
    program = program_of(PROGRAMS[2])  # x is column-major
    rows = {"x.pitch": 44, "w.pitch": 37, "y0.pitch": 64}
    usual, apart = (operands(np, program, s, 0, integers=True) for s in (SIZES, SIZES | rows))
    assert apart["x"].strides == (4, 176) and apart["w"].strides == (148, 4)
    assert {name: np.shape(v) for name, v in apart.items()} == {
        name: np.shape(v) for name, v in usual.items()
    }
    assert empty(np, program.outputs[0], SIZES | rows).strides[0] == 64 * 4


@pytest.mark.parametrize("dtype", [BF16, F16, F32, E4M3])
def test_one_wrong_element_is_noticed_and_rounding_is_not(dtype):
    tensor = Tensor("y", dtype, ("M", "N"), (0, 1))
    values = np.linspace(-3, 3, 40 * 24, dtype=np.float32)
    good = stored(dtype, values).reshape(40, 24)
    assert differing(np, tensor, good, good.view(f"u{good.itemsize}")) == 0
    if dtype in (BF16, F16):
        near = (good.view(np.uint16) ^ 1).view(good.dtype)
        assert differing(np, tensor, near, good) == 0
    bad = good.copy()
    bad[3, 5] = stored(dtype, np.float32([4.0]))[0]
    assert differing(np, tensor, bad, good) == 1
    poisoned = empty(np, tensor, SIZES)
    poison(poisoned)
    assert np.isnan(as_f32(np, poisoned, dtype)).all()
    poisoned[1:] = good[1:]
    assert differing(np, tensor, poisoned, good) == 24


# --- a timer whose kernels are Python functions
class Fake:
    """Kernels by name, and times by name; what was launched last is what is timed."""

    def __init__(self, program):
        self.program, self.last, self.times = program, "", {}

    def load(self, name, mistake, _):
        def launch(arrays, scalars, outs, stream):
            self.last = name
            given = dict(zip([t.name for t in self.program.inputs], arrays, strict=True))
            results = evaluate(self.program, plain(self.program, given), SIZES)
            for out, result in zip(outs, results, strict=True):
                out[...] = mistake(result)

        return launch

    def interleaved(self, calls, repeats, warm):
        return {key: [self.one(call)] * repeats for key, call in calls.items()}

    def one(self, call):
        call()
        return self.times.get(self.last, 10.0)

    def tools(self):
        return Tools(
            np, self.load, lambda: None, self.interleaved,
            lambda call, warm, repeats: [self.one(call) / 1e3] * repeats,
            lambda call: lambda: call(None),
        )  # fmt: skip


def right(result):
    return result


def one_element(result):
    result = result.copy()
    result[-1, -1] += 1
    return result


def one_tile_missing(result):
    result = result.copy()
    result[8:16, 8:16] = np.array(np.nan, result.dtype)
    return result


def refused(result):
    raise PolygenError("no")


def contender(name, mistake):
    return Contender(f"key {name}", name, (name, mistake))


@pytest.fixture
def fake():
    return Fake(program_of(PROGRAMS[0]))


def run(fake, *contenders, anchor=right, brief=True):
    stages = []
    timer = Timer(fake.tools(), fake.program, SIZES, 0)
    batch = Batch(contender("anchor", anchor), contenders, 5, 3.0, brief)
    found = timer(batch, lambda stage, limit: stages.append((stage, limit)))
    return {key.removeprefix("key "): trial for key, trial in found.items()}, stages


def test_wrong_contenders_are_named_and_the_others_timed(fake):
    fake.times = {"good": 8.0}
    found, stages = run(
        fake, contender("good", right), contender("bad", one_element),
        contender("hole", one_tile_missing), contender("no", refused),
    )  # fmt: skip
    assert {name: trial.state for name, trial in found.items()} == {
        "anchor": "timed", "good": "timed", "bad": "wrong", "hole": "wrong", "no": "refused",
    }  # fmt: skip
    assert "1 elements of y0" in found["bad"].reason and "64 elements" in found["hole"].reason
    assert found["good"].microseconds == 8.0 and found["good"].repeats == 5 and found["good"].graph
    assert [name for name, _ in stages] == [
        "check key anchor", "check key good", "check key bad", "check key hole", "check key no",
        "time",
    ]  # fmt: skip
    assert stages[1][1] == 3.0


def test_comparisons_are_compiled_in_the_time_of_the_anchor(fake, monkeypatch):
    """CuPy takes seconds for them where builders keep all cores busy; a contender has three."""
    stages, used = ["none"], []
    whole = gpu.apart

    def noted(*arguments, **options):
        used.append(stages[-1])
        return whole(*arguments, **options)

    monkeypatch.setattr(gpu, "apart", noted)
    timer = Timer(fake.tools(), fake.program, SIZES, 0)
    batch = Batch(contender("anchor", right), (contender("bad", one_element),), 5, 3.0, True)
    timer(batch, lambda stage, _: stages.append(stage))
    assert used == ["check key anchor", "check key bad"]


class Noted(np.ndarray):
    """An array that says what is computed of it, and of which types: one kernel each in CuPy."""

    used: ClassVar[set[tuple[str, ...]]] = set()

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        plain = [one.view(np.ndarray) if isinstance(one, Noted) else one for one in inputs]
        kinds = (str(np.asarray(one).dtype) for one in plain)
        self.used.add((ufunc.__name__, method, *kinds))
        options = {
            name: tuple(o.view(np.ndarray) for o in value) if name == "out" else value
            for name, value in options.items()
        }
        found = getattr(ufunc, method)(*plain, **options)
        return found.view(Noted) if isinstance(found, np.ndarray) else found

    def fill(self, value):
        self.used.add(("fill", str(self.dtype)))
        self.view(np.ndarray).fill(value)


class Noting:
    """NumPy whose arrays say what is computed of them."""

    def __getattr__(self, name):
        found = getattr(np, name)
        if isinstance(found, np.ufunc | type) or not callable(found):
            return found

        def call(*values, **options):
            made = found(*values, **options)
            return made.view(Noted) if type(made) is np.ndarray else made

        return call


@pytest.mark.parametrize("sample", [PROGRAMS[n] for n in (0, 1, 6)], ids=lambda sample: sample[0])
@pytest.mark.parametrize("mistake", [right, one_element])
def test_what_a_check_computes_was_computed_for_the_anchor(sample, mistake):
    """Kernels that CuPy compiles in a contender's seconds make it look as if it hung."""
    fake, used, stages = Fake(program_of(sample)), {}, []
    tools = replace(fake.tools(), arrays=Noting())
    timer = Timer(tools, fake.program, SIZES, 0)

    def stage(name, limit):
        Noted.used = used.setdefault(name, set())
        stages.append(name)

    anchor = contender("anchor", right)
    timer(Batch(anchor, (contender("own", mistake),), 5, 3.0, True), stage)
    first, own = (used[f"check key {name}"] for name in ("anchor", "own"))
    assert own and own <= first, own - first


def test_an_anchor_that_is_wrong_stops_everything(fake):
    with pytest.raises(PolygenError, match="anchor gives wrong results"):
        run(
            fake,
            anchor=lambda result: np.asarray(result.astype(np.float32) + 1).astype(
                ml_dtypes.bfloat16
            ),
        )


def test_a_slow_contender_is_not_timed_at_length_in_the_first_round(fake):
    fake.times = {"slow": 1000.0}
    found, _ = run(fake, contender("slow", right))
    assert found["slow"].repeats == 1 and found["slow"].microseconds == pytest.approx(1000.0)
    found, _ = run(fake, contender("slow", right), brief=False)
    assert found["slow"].repeats == 5


def test_long_kernels_are_not_timed_as_graphs(fake):
    fake.times = {"anchor": 500.0, "good": 400.0}
    found, _ = run(fake, contender("good", right))
    assert not found["good"].graph


# --- results that depend on more than their row: a small problem is compared whole
SMALL = {"M": 16, "N": 24, "K": 32}
FOLDED = [
    ("logsumexp(x @ w.T + b, axis=1)", SIGNATURE),
    ("argmin(b - 2 * (x @ w.T), axis=1)", SIGNATURE),
    ("softmax(x @ w.T) * b", SIGNATURE),
    ("x.T @ d, d.sum(axis=0)", ("x:bf16[K,M]", "d:bf16[K,N]")),
    ("round(x @ w.T + b).astype('s8')", SIGNATURE),
    ("(x @ w.T > b).any(axis=1)", SIGNATURE),
]


class Sized(Fake):
    """Kernels of any sizes: those of their arrays."""

    def load(self, name, mistake, _):
        def launch(arrays, scalars, outs, stream):
            self.last = name
            given = dict(zip([t.name for t in self.program.inputs], arrays, strict=True))
            sizes = {
                dim: count
                for tensor in self.program.inputs
                for dim, count in zip(tensor.dims, np.shape(given[tensor.name]), strict=True)
            }
            results = evaluate(self.program, plain(self.program, given), sizes)
            for out, result in zip(outs, results, strict=True):
                out[...] = mistake(result)

        return launch


def last_wrong(result):
    result = result.copy()
    if result.dtype == np.bool_:
        result[..., -1] = ~result[..., -1]
    else:
        result[..., -1] += np.array(3, result.dtype)
    return result


def small(sample, anchor, *contenders):
    """What a timer finds that compares a small problem."""
    fake = Sized(program_of(sample))
    timer = Timer(fake.tools(), fake.program, SIZES, 0, SMALL)
    batch = Batch(contender("anchor", anchor), contenders, 5, 3.0, True)
    return timer(batch, lambda stage, limit: None)


def test_whole_numbers_and_truths_are_compared_as_such():
    for name, off, exact, wanted in (
        ("s32", 1, True, 1), ("s32", 1, False, 0), ("s32", 2, False, 1), ("u8", 2, False, 1),
        ("bool", 1, True, 1), ("bool", 1, False, 1),
    ):  # fmt: skip
        tensor = Tensor("y", dtype(name), ("M", "N"), (0, 1))
        good = np.zeros((3, 4), tensor.dtype.storage)
        found = good.copy()
        found[1, 2] += np.array(off, found.dtype)
        assert differing(np, tensor, found, good, exact=exact) == wanted, (name, off, exact)


@pytest.mark.parametrize("sample", FOLDED, ids=lambda sample: sample[0])
def test_folds_are_compared_whole_on_a_small_problem(sample):
    found = small(sample, right, contender("good", right), contender("bad", last_wrong))
    assert {name: trial.state for name, trial in found.items()} == {
        "key anchor": "timed", "key good": "timed", "key bad": "wrong",
    }  # fmt: skip


@pytest.mark.parametrize("sample", FOLDED, ids=lambda sample: sample[0])
def test_an_anchor_that_folds_wrongly_stops_everything(sample):
    with pytest.raises(PolygenError, match="anchor gives wrong results") as error:
        small(sample, last_wrong)
    assert "NumPy says" in str(error.value)
