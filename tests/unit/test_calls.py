"""Direct calls: what is generated, what is found again, and what is forgotten.

Kernels are generated and chosen for real; the compiler, the driver and the GPU are stubs.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from matrix import small
from runtime_samples import Device, artifact, cupy_array

import polygen as pg
from polygen import analysis, decide, decision, knobs, pipeline
from polygen.errors import PressureError, SpillError
from polygen.generated import content, version
from polygen.hardware.device import device
from polygen.runtime import cache

pytest.importorskip("cupy")

WIDE = ctypes.c_uint64
INT = ctypes.c_int32
X, W, Y = 1 << 40, 2 << 40, 3 << 40


def product(x, w):
    return x @ w.T


class Machine:
    """Counts what is generated, analysed and compiled, and records launches."""

    def __init__(self, monkeypatch, folder):
        self.generated, self.analysed, self.compiled = [], [], []
        self.device = Device(kinds=(WIDE, WIDE, WIDE, INT, INT, INT, INT, INT, INT))
        generate, analyse = pipeline.generate, analysis.analysed

        def counted(program, device, sizes, *rest):
            self.generated.append(dict(sizes))
            return generate(program, device, sizes, *rest)

        def analysed(program, **rest):
            self.analysed.append(program)
            return analyse(program, **rest)

        def compile_cached(source):
            self.compiled.append(source)
            return artifact()

        monkeypatch.setattr(pipeline, "generate", counted)
        monkeypatch.setattr(analysis, "analysed", analysed)
        monkeypatch.setattr("polygen.described.compile_cached", compile_cached)
        monkeypatch.setattr("polygen.runtime.launch.cupy_driver", lambda: self.device.driver)
        self.start()

    def start(self):
        """As in a process that has just started."""
        analysis.prospect.cache_clear()
        decide._fitted.cache_clear()
        pipeline.synchronised.cache_clear()
        self.call = pg.fuse(product)

    def run(self, m, n=256, k=512, dtype="f2", strides=None):
        # Equal extents share a parameter, and the stand-in reads as many as it was told of.
        assert len({m, n, k}) == 3
        before = len(self.device.launches)
        x = cupy_array((m, k), X, dtype=dtype, strides=strides)
        w = cupy_array((n, k), W, dtype=dtype)
        y = cupy_array((m, n), Y, dtype=dtype)
        assert self.call(x, w, out=y) is y
        assert len(self.device.launches) == before + 1
        return self.device.launches[-1][-1]


@pytest.fixture
def machine(monkeypatch, tmp_path):
    with knobs.scope(arch="sm_80", cache_dir=tmp_path, cache=True, schedule=None):
        yield Machine(monkeypatch, tmp_path)
    analysis.prospect.cache_clear()
    decide._fitted.cache_clear()


SIZES = (64, 65, 100, 127, 128, 129, 300, 777, 1000, 1024, 2000, 2001, 4096, 5000, 16384)


def test_sizes_with_one_choice_of_schedule_share_a_kernel(machine):
    for m in SIZES:
        assert machine.run(m)[3:6] == (m, 512, 256)
    schedules = {kernel.schedule for kernel in machine.call._variants.values()}
    assert len(machine.generated) == len(machine.call._variants) == len(schedules) < len(SIZES) / 2
    assert len(machine.analysed) == 1, "what sizes do not change is analysed once"
    for m in SIZES:
        machine.run(m)
    assert len(machine.generated) == len(schedules)


def test_the_shared_kernel_is_the_one_that_would_have_been_generated(machine):
    for m in (300, 301, 2000):
        machine.run(m)
        shapes = ((m, 512), (256, 512))
        (used,) = (k for key, k in _by_shapes(machine.call).items() if key == shapes)
        alone = pg.fuse(product).compile(
            "f16[D0,D1]", "f16[D2,D1]", arch="sm_80", sizes={"D0": m, "D1": 512, "D2": 256}
        )
        assert used.source == alone.source


def _by_shapes(fused):
    return {tuple(shape for shape, *_ in key): fused._kernels.get(key) for key in fused._kernels}


def test_another_process_generates_and_analyses_nothing(machine):
    for m in SIZES:
        machine.run(m)
    sources = {kernel.source for kernel in machine.call._variants.values()}
    generated, analysed = len(machine.generated), len(machine.analysed)
    machine.start()
    for m in (*SIZES, 5001):
        machine.run(m)
    assert {kernel.source for kernel in machine.call._variants.values()} == sources
    assert (len(machine.generated), len(machine.analysed)) == (generated, analysed)


def test_what_was_kept_by_another_polygen_is_not_used(machine, monkeypatch):
    machine.run(300)
    assert len(machine.generated) == 1
    monkeypatch.setattr("polygen.generated.version", lambda: version() + " and a changed file")
    machine.start()
    machine.run(300)
    assert (len(machine.generated), len(machine.analysed)) == (2, 2)


def test_damaged_entries_are_made_again(machine):
    machine.run(300)
    entries = list(cache.directory().glob("generated/??/*.bin"))
    assert len(entries) == 3  # the prospect, what synchronises it, and the kernel
    for number, entry in enumerate(entries):
        data = entry.read_bytes()
        entry.write_bytes(data[: len(data) // 2] if number else data[:-40] + data[-39:])
    machine.start()
    machine.run(300)
    assert (len(machine.generated), len(machine.analysed)) == (2, 2)
    machine.start()
    machine.run(300)
    assert (len(machine.generated), len(machine.analysed)) == (2, 2)


def test_nothing_is_kept_where_the_cache_is_off(machine):
    with knobs.scope(cache=False):
        machine.run(300)
        machine.start()
        machine.run(300)
    assert len(machine.generated) == 2
    assert not list(cache.directory().glob("generated/*"))


def test_clearing_the_cache_clears_what_was_generated(machine):
    machine.run(300)
    assert cache.info().bytes > 0
    assert cache.clear() == 0 and cache.info().bytes == 0  # nothing was compiled here


@pytest.mark.parametrize("change", [{"k": 508}, {"k": 511}, {"dtype": "f4"}, {"n": 308}], ids=str)
def test_other_classes_and_types_are_other_kernels(machine, change):
    machine.run(300)
    if change.get("dtype") == "f4":
        machine.call = pg.fuse(product, allow_tf32=True)
    machine.run(300, **change)
    programs = {content(kernel.program) for kernel in machine.call._variants.values()}
    expected = {"f4": 1}.get(change.get("dtype"), 2)
    assert len(programs) == expected and len(machine.generated) == 2


@pytest.mark.parametrize("dtype", ["f2", "f4"])
def test_batches_of_any_number_share_a_kernel(machine, dtype):
    machine.call = pg.fuse(lambda x, w: x @ w.mT, name="batched", allow_tf32=True)
    for count in (60, 61):
        x = cupy_array((count, 300, 512), X, dtype=dtype)
        w = cupy_array((count, 256, 512), W, dtype=dtype)
        y = cupy_array((count, 300, 256), Y, dtype=dtype)
        assert machine.call(x, w, out=y) is y
        assert machine.device.launches[-1][-1][3:7] == (count, 300, 512, 256)
    (kernel,) = machine.call._variants.values()
    assert {"f2": "f16", "f4": "tf32"}[dtype] == str(kernel.program.inputs[0].dtype)
    assert len(machine.generated) == 1


def test_rows_further_apart_take_a_variant_that_is_kept_too(machine):
    for _ in range(2):
        machine.run(300, strides=(1032, 2))  # steps of 8 bytes only
    assert len(machine.generated) == 1
    assert machine.generated[0]["x.pitch"] == 516
    machine.start()
    machine.run(300, strides=(1032, 2))
    assert len(machine.generated) == 1


def test_arrays_of_one_shape_have_a_kernel_for_each_pitch(machine):
    """By turns, without looking twice: how far rows lie apart is part of what calls are told by."""
    strides = (None, (1032, 2), (1040, 2), (1152, 2))
    for _ in range(2):
        for one in strides:
            machine.run(300, strides=one)
    assert len(machine.call._kernels) == len(strides)
    alignments = [k.program.inputs[0].alignment for k in machine.call._kernels.values()]
    assert sorted(alignments) == [8, 16, 16, 16]
    assert len(machine.generated) == len(machine.call._variants)


@pytest.mark.parametrize(("extra", "astride"), [(0, 0), (8, 7 / 8), (64, 0), (4, 15 / 16)])
def test_the_choice_sees_how_far_rows_lie_apart(machine, extra, astride):
    made = pg.fuse(product)
    x, w = (
        cupy_array((n, 1024), at, dtype="f2", strides=(2048 + 2 * extra, 2))
        for n, at in ((4096, X), (2048, W))
    )
    with knobs.scope(arch="sm_90a"):
        kernel = made._kernel_for((x, w))
    sizes = {"D0": 4096, "D1": 1024, "D2": 2048}
    assert kernel.program.inputs[0].alignment == (8 if extra == 4 else 16)
    problem, _ = decide.candidates(kernel.program, device("sm_90a"), kernel._sizes)
    assert problem.astride == (astride, astride)
    assert kernel._sizes == sizes | (
        {"x.pitch": 1024 + extra, "w.pitch": 1024 + extra} if extra else {}
    )
    if extra == 8:  # rows of a box lie in two lines of the cache: larger tiles, or shared ones
        usual = decision.decision(kernel.program, device("sm_90a"), sizes)[0]
        assert kernel.schedule.cluster.m * kernel.schedule.cluster.n > 1
        assert usual.name != kernel.schedule.name


def test_tables_are_bounded(machine, monkeypatch):
    monkeypatch.setattr("polygen.api._MOST_SHAPES", 4)
    monkeypatch.setattr("polygen.api._MOST_VARIANTS", 2)
    machine.start()
    for m in range(64, 64 + 20):
        machine.run(m)
    assert len(machine.call._kernels) <= 4 and len(machine.call._variants) <= 2
    assert analysis.prospect.cache_info().maxsize is not None
    assert decide._fitted.cache_info().maxsize is not None


def test_a_choice_that_spills_is_replaced_for_all_who_share_it(machine, monkeypatch):
    refused = []

    def spills(source):
        if not refused:
            refused.append(source.text)
            raise SpillError("it spills")
        return artifact()

    monkeypatch.setattr("polygen.described.compile_cached", spills)
    machine.run(300)
    (kernel,) = machine.call._variants.values()
    assert kernel.source != refused[0] and "spill" in kernel.schedule_origin
    machine.run(301)
    assert len(machine.generated) == 2
    machine.start()  # another process knows it from the disk
    machine.run(300)
    (again,) = machine.call._variants.values()
    assert len(machine.generated) == 2
    assert again.source == kernel.source and again.schedule_origin == kernel.schedule_origin


@pytest.mark.usefixtures("machine")
def test_a_launch_that_spills_holds_no_words_of_rows(monkeypatch):
    """The tile is not what spills there, and another one would spill as well."""
    tried = []

    def spills(source):
        tried.append(source.text)
        refusal = SpillError("a launch beside the kernel spills")
        refusal.beside = True
        if len(tried) == 1:
            raise refusal
        return artifact()

    monkeypatch.setattr("polygen.described.compile_cached", spills)
    normed = pg.fuse(lambda x, w: pg.layer_norm(x @ w.T), name="normed")
    sizes = {"M": 8192, "N": 4096, "K": 512}
    kernel = normed.compile("bf16[M,K]", "bf16[N,K]", arch="sm_80", sizes=sizes)
    before = kernel.schedule
    assert before.epilogue.row_words > 0 and kernel.cubin is not None
    assert kernel.schedule == replace(before, epilogue=replace(before.epilogue, row_words=0))
    assert "epilogue.row_words" in kernel.schedule_origin and len(tried) == 2


def test_products_that_the_compiler_serialises_are_replaced_too(machine, monkeypatch):
    def refuses(source):
        machine.compiled.append(source)
        if len(machine.compiled) == 1:
            raise PressureError("C7512")
        return artifact()

    monkeypatch.setattr("polygen.described.compile_cached", refuses)
    machine.run(300)
    assert len(machine.compiled) == len(machine.generated) == 2


def test_constants_that_are_equal_but_not_the_same_are_not_mixed_up(machine):
    factor = [0.0]
    machine.call = pg.fuse(lambda x, w: (x @ w.T) * factor[0], name="scaled")
    machine.run(300)
    factor[0] = -0.0
    machine.run(301)
    texts = [kernel.source for kernel in machine.call._variants.values()]
    assert len(texts) == 2 and sum("-0.0" in text for text in texts) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (x @ w.T)[:, ::2],
        lambda x, w: np.concatenate([x @ w.T, x @ w.T * 2], axis=1),
        lambda x, w: (x @ w.T) * pg.repeat(w[:, 0][None, :64], 4, axis=1),
        lambda x, w: (x @ w.T).reshape(-1, 16, 16),
        lambda x, w: np.split(x @ w.T, 2, axis=1)[0],
    ],
)
@pytest.mark.usefixtures("machine")
def test_sizes_that_have_to_be_numbers_are_those_of_the_arrays(function):
    """N alone: the rows keep their name, and kernels of other heights are the same."""
    call, w = pg.fuse(function, name="numbers"), cupy_array((256, 512), W, dtype="f2")
    found = [call._kernel_for((cupy_array((m, 512), X, dtype="f2"), w)) for m in (300, 301)]
    (program,) = {kernel.program for kernel in found}
    rows, depth = program.inputs[0].dims
    assert rows == "D0" and depth in ("D1", 512) and program.inputs[1].dims[0] == 256


def test_a_choice_that_the_proofs_refuse_says_what_was_taken_instead(machine, monkeypatch):
    taken = decision.decision
    refused = small()
    monkeypatch.setattr("polygen.api.decision", lambda *given: (refused, "tuned long ago"))
    machine.run(300)
    (kernel,) = machine.call._variants.values()
    chosen, origin = taken(kernel.program, device("sm_80"), {"D0": 300, "D1": 512, "D2": 256})
    assert (kernel.schedule, kernel.schedule_origin) == (chosen, origin)
