"""One class of sums for all sizes of a dim: the choice, variants, what is kept and what is said."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from invariant_samples import SAMPLES, Sample

from polygen import decide, invariance, knobs
from polygen.analysis import prospect
from polygen.cli import main
from polygen.decide import candidates, sum_class
from polygen.decision import decision
from polygen.emit.leaf.elements import statements
from polygen.errors import SavedKernelError, SpillError
from polygen.fit import instruction_for
from polygen.generated import content
from polygen.hardware.device import device
from polygen.invariance import sums_of
from polygen.kernel import Kernel
from polygen.pipeline import with_sizes
from polygen.schedule.load import shipped
from polygen.schedule.problem import Fitted
from polygen.schedule.sums import reproducible
from polygen.tune.choose import Offer
from polygen.tune.early import EARLY
from polygen.tune.identity import canonical, invariant_of

BF16 = np.dtype(ml_dtypes.bfloat16)
OTHERS = {"N": 1024, "K": 1024, "L": 512, "B": 4}
SIZES = {"M": 256, "N": 1024, "K": 1024}
EVERY = (*range(1, 18), 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 192, 255, 256, 257, 384, 512)
EVERY += (513, 640, 1000, 1024, 1536, 2047, 2048, 3000, 4095, 4096)


def chosen(sample: Sample, arch: str, rows: tuple[int, ...], **others: int) -> dict[str, set[str]]:
    """The classes that sizes of M get, each with the names of the schedules."""
    target, traced = device(arch), sample.program()
    found: dict[str, set[str]] = {}
    for m in rows:
        sizes = {name: (OTHERS | others | {"M": m})[name] for name in traced.sizes}
        program = with_sizes(traced, sizes)
        schedule, _ = decision(program, target, sizes)
        matched = prospect(program).matched
        sums = sums_of(schedule, instruction_for(matched, target, schedule), matched)
        found.setdefault(sums.text, set()).add(schedule.name)
    return found


@pytest.mark.sample(3)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", SAMPLES)
def test_all_sizes_from_1_to_4096_share_one_class(name, arch):
    if ("e4m3" in name and arch == "sm_80") or ("e5m2" in name and arch == "sm_80"):
        pytest.skip("sm_80 has no 8-bit floats")
    found = chosen(SAMPLES[name], arch, EVERY)
    assert len(found) == 1
    (schedules,) = found.values()
    assert len(schedules) > 1  # or nothing would have been chosen


@pytest.mark.parametrize("sizes", [{"K": 4098}, {"N": 50257, "K": 768}, {"K": 128}, {"N": 77}])
def test_other_sizes_pick_a_class_of_their_own(sizes):
    assert len(chosen(SAMPLES["bias, gelu"], "sm_90a", EVERY[::3], **sizes)) == 1


def test_without_the_promise_sizes_have_several_classes():
    """What the class is for: the free choice takes two kinds of instruction."""
    sample, target = SAMPLES["bias, gelu"], device("sm_90a")
    program = replace(sample.program(), invariant=())
    matched = prospect(program).matched
    texts = set()
    for m in EVERY:
        schedule, _ = decision(program, target, OTHERS | {"M": m})
        texts.add(sums_of(schedule, instruction_for(matched, target, schedule), matched).text)
    assert len(texts) > 1


def test_a_class_is_picked_without_looking_at_the_sizes_of_its_dims():
    program, target = SAMPLES["bf16"].program(), device("sm_90a")
    picked = {sum_class(program, target, OTHERS | {"M": m}) for m in EVERY}
    assert picked == {sum_class(program, target, OTHERS)}


def test_a_class_is_kept_on_disk(monkeypatch, tmp_path):
    program, target = SAMPLES["bf16"].program(), device("sm_90a")
    with knobs.scope(cache_dir=tmp_path, cache=True):
        decide._sum_class.cache_clear()
        picked = sum_class(program, target, OTHERS)
        decide._sum_class.cache_clear()
        monkeypatch.setattr(decide, "shared", lambda *_: "picked again")
        assert sum_class(program, target, OTHERS) == picked
        assert sum_class(program, target, OTHERS | {"K": 99}) == "picked again"
    decide._sum_class.cache_clear()


def test_the_class_that_loses_least_is_picked():
    """Large products need the warpgroup's instruction; without roles they take half as long again.

    With few columns and a short sum it is the other way round.
    """
    program, target = SAMPLES["bf16"].program(), device("sm_90a")
    assert "wgmma" in sum_class(program, target, {"N": 8192, "K": 4096})
    assert "wgmma" not in sum_class(program, target, {"N": 64, "K": 256})


def test_operands_with_m_innermost_get_what_all_of_its_sizes_can_have():
    """M = 4096 allows tensor maps; of M = 4097 threads shift the rows into place."""
    sample = SAMPLES["tt"]
    found = chosen(sample, "sm_90a", EVERY)
    assert len(found) == 1
    assert "wgmma" in next(iter(found))
    free = replace(with_sizes(sample.program(), OTHERS | {"M": 4096}), invariant=())
    schedule, _ = decision(free, device("sm_90a"), OTHERS | {"M": 4096})
    assert schedule.specialised


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_what_the_choice_expects_of_a_schedule_is_what_is_proved_of_its_trees(arch):
    program, target = SAMPLES["gated pair"].program(), device(arch)
    matched = prospect(program).matched
    _, fit = candidates(replace(program, invariant=()), target, OTHERS)
    names: dict[tuple[str, str], Fitted] = {}
    for one in map(fit, shipped(target)):
        if isinstance(one, Fitted):
            names.setdefault((one.schedule.roles.form, str(one.schedule.tile.cta.k)), one)
    assert len(names) > 2
    for one in names.values():
        kernel = SAMPLES["gated pair"].kernel(arch, SIZES, schedule=one.schedule)
        atom = instruction_for(matched, target, one.schedule)
        assert kernel.sums == sums_of(one.schedule, atom, matched, ("M",))


def test_schedules_of_other_k_tiles_are_fitted_to_the_class():
    program, target = SAMPLES["bf16"].program(), device("sm_80")
    matched = prospect(program).matched
    schedule = next(s for s in shipped(target) if s.name == "16x64x128_w16x16_s6")
    own, *others = invariance.in_k_tiles(schedule, matched)
    assert own == schedule
    assert {(one.tile.cta.k, one.pipeline.stages) for one in others} == {(64, 12)}
    role = next(s for s in shipped(device("sm_90a")) if s.specialised)
    assert invariance.in_k_tiles(role, matched) == (role,)


def test_what_was_measured_is_taken_only_if_it_is_of_the_class(monkeypatch):
    """And then as it was, not with other k tiles."""
    program, target = SAMPLES["bf16"].program(), device("sm_90a")
    sizes = {"M": 16, "N": 8192, "K": 4096}
    by_name = {s.name: s for s in shipped(target)}
    wgmma, warps = by_name["pingpong_64x64x64_s10"], by_name["16x32x128_w16x16_s6_b2"]
    offers: list[Offer] = []
    monkeypatch.setattr(decide, "_offers", lambda *_: tuple(offers))
    unmeasured = decision(program, target, sizes)
    offers.append(Offer(warps, "measured"))
    assert decision(program, target, sizes) == unmeasured
    assert decision(replace(program, invariant=()), target, sizes)[1] == f"measured{EARLY}"
    offers.append(Offer(wgmma, "measured, too"))
    schedule, origin = decision(program, target, sizes)
    assert (schedule.name, origin) == (wgmma.name, f"measured, too{EARLY}")


@cache
def kernel(m: int = 4096) -> Kernel:
    return SAMPLES["bias, gelu"].kernel("sm_90a", {"M": m, "N": 4096, "K": 4096})


@cache
def free(m: int = 4096) -> Kernel:
    sample, sizes = SAMPLES["bias, gelu"], {"M": m, "N": 4096, "K": 4096}
    return sample.fused.compile(*sample.operands, arch="sm_90a", sizes=sizes)


def test_kernels_of_two_sizes_say_that_they_share_a_class():
    few, many = kernel(8), kernel()
    assert few.schedule != many.schedule
    assert few.sums == many.sums
    assert few.sums.invariant == ("M",)
    assert few.deterministic
    assert few.sums.digest in reproducible(few.sums)


def test_every_kernel_says_whether_it_is_deterministic():
    assert free().deterministic
    assert free().sums.invariant == ()
    assert "deterministic: the same arguments give the same bits" in free().show("plan")
    assert "wgmma_m64k16_f32_bf16, 4*ceil(K/64) group(s)" in free().show("plan")
    assert f"same bits for every M in kernels of class {kernel().sums.digest}" in str(kernel())
    assert "same bits for every M" in kernel().show("program")
    assert "deterministic" in kernel()._repr_html_()
    assert any("k enters a sum in one order" in str(one) for one in free().passes.plan.proofs)


def test_pointwise_code_is_rounded_as_it_is_written():
    """The compiler would fuse products and sums, here so and there so."""
    assert kernel()._generated.source.options == ("--fmad=false",)
    assert free()._generated.source.options == ()
    assert "// compile with: --fmad=false" in kernel().source
    assert "fmad" not in free().source
    sample = SAMPLES["fused products and sums"]
    sizes = {"M": 64, "N": 64, "K": 64}
    plain = sample.fused.compile(*sample.operands, arch="sm_80", sizes=sizes, out_dtype="f32")
    unfused = sample.kernel("sm_80", sizes)
    assert "fma.rn.f32" in plain.ptx
    assert "fma.rn.f32" not in unfused.ptx


def test_the_code_of_an_element_is_one_whatever_the_schedule():
    texts = {
        tuple(statements(plan, plan.epilogue)[0])
        for plan in (
            SAMPLES["gate"].kernel("sm_90a", {"M": m, "N": n, "K": 1024}).passes.plan
            for m in (1, 200, 4096)
            for n in (1024, 1025)
        )
    }
    assert len(texts) == 1


def test_variants_for_other_alignments_are_of_the_class():
    """Rows of K = 64 allow tensor maps; of K = 63 threads shift them into place."""
    sample = SAMPLES["bias, gelu"]
    made = sample.kernel("sm_90a", {"M": 4096, "N": 4096, "K": 4096})
    assert "wgmma" in made.sums.text
    x, w, b = (np.zeros(shape, BF16) for shape in ((16, 63), (32, 63), (32,)))
    assert made.fitting(x, w, b) is not made
    assert made.fitting(x, w, b).sums == made.sums
    least = SAMPLES["unaligned rows"].kernel("sm_90a", {"M": 4096, "N": 4096, "K": 4096})
    fitting = least.fitting(x, w, b)
    assert fitting.sums == least.sums
    warps = sample.kernel("sm_80", {"M": 4096, "N": 4096, "K": 4096})
    assert warps.fitting(x, w, b) is not warps
    assert warps.fitting(x, w, b).sums == warps.sums


def test_a_given_schedule_is_proved_and_pins_its_variants():
    schedule = next(s for s in shipped("sm_80") if s.name == "64x64x32_w32x32_s4")
    made = SAMPLES["bias, gelu"].kernel("sm_80", SIZES, schedule=schedule)
    assert "2*ceil(K/32)" in made.sums.text
    x, w, b = (np.zeros(shape, BF16) for shape in ((16, 63), (32, 63), (32,)))
    assert made.fitting(x, w, b).schedule == schedule
    assert made.fitting(x, w, b).sums == made.sums


def test_a_choice_that_spills_is_replaced_inside_the_class(monkeypatch):
    from polygen.runtime import nvrtc

    made = SAMPLES["f16"].kernel("sm_90a", {"M": 4, "N": 4096, "K": 4096})
    first, found = made.schedule.name, nvrtc.compile_source

    def compiled(source, **options):
        if f'"{first}"' in source.text:
            raise SpillError("it spills")
        return found(source, **options)

    monkeypatch.setattr(nvrtc, "compile_source", compiled)
    monkeypatch.setenv("POLYGEN_CACHE", "0")
    before = made.sums
    assert made.artifact is not None
    assert made.schedule.name != first
    assert made.sums == before


def test_invariant_kernels_are_kept_saved_and_pickled_apart(tmp_path):
    promised, plain = kernel(), free()
    assert content(promised.program) != content(plain.program)
    sizes = {"M": 4096, "N": 4096, "K": 4096}
    assert canonical(promised.program, sizes) != canonical(plain.program, sizes)
    code = promised.save(tmp_path)
    manifest = json.loads(code.with_suffix(".json").read_text())
    assert manifest["invariant"] == ["M"]
    assert manifest["deterministic"] is True
    assert manifest["options"] == ["--fmad=false"]
    with pytest.raises(SavedKernelError):
        plain.save(tmp_path)
    loaded = Kernel.load(code)
    assert loaded.sums == promised.sums
    assert loaded.program.invariant == ("M",)
    copied = pickle.loads(pickle.dumps(promised))
    assert copied.sums == promised.sums
    assert copied._generated.source.options == promised._generated.source.options


def test_a_problem_says_which_axes_are_invariant():
    program = SAMPLES["batch, one weight"].program()
    text = canonical(program, {"B": 2, "M": 8, "N": 16, "K": 32})
    assert text.splitlines()[-1] == "invariant in0.1"
    assert invariant_of(text, [t.dims for t in program.inputs]) == ("M",)
    bare = canonical(replace(program, invariant=()), {"B": 2, "M": 8, "N": 16, "K": 32})
    assert invariant_of(bare, [t.dims for t in program.inputs]) == ()
    assert text.startswith(bare)


def test_no_kernel_adds_floats_up_as_they_come():
    atomics = re.compile(r"\b(?:atom|red)\.[\w.:]*\b(?:bf16|f16|f32|f64|bf16x2|f16x2)\b|atomicAdd")
    assert atomics.search("red.global.add.f32 [%0], %1;")
    files = sorted((Path(__file__).parents[1] / "golden/kernels").glob("*.cu"))
    assert len(files) > 5
    for file in files:
        assert not atomics.search(file.read_text()), file


@pytest.mark.parametrize("dims", [("N",), ("M", "N"), ("B",), ("B", "M", "N")])
def test_any_dim_of_the_output_can_be_invariant(dims):
    sample = SAMPLES["batch"]
    kernels = [
        sample.fused.compile(
            *sample.operands, arch="sm_90a", invariant=dims,
            sizes={"B": 2, "M": 512, "N": 512, "K": 512} | dict.fromkeys(dims, size),
        )
        for size in (16, 512)
    ]  # fmt: skip
    assert kernels[0].sums == kernels[1].sums
    assert set(kernels[0].sums.invariant) == set(dims)


ARGUMENTS = ["gelu(x @ w.T + b)", "x:bf16[M,K]", "w:bf16[N,K]", "b:bf16[N]", "--arch", "sm_80"]


def test_the_command_line_takes_invariant_dims(capsys):
    words = [*ARGUMENTS, "--size", "M=64", "N=128", "K=128", "--invariant", "M"]
    assert main(["show", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["deterministic"] is True
    assert found["invariant"] == ["M"]
    assert found["sums"][0].startswith("S0: m16n8k16_f32_bf16")
    assert main(["generate", *words, "--json", "-o", "-"]) == 0
    other = json.loads(capsys.readouterr().out)
    assert other["sums_class"] == found["sums_class"]
    assert main(["tune", *words, "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert main(["tune", *words[: words.index("--invariant")], "--list", "--json"]) == 0
    assert 0 < len(listed) < len(json.loads(capsys.readouterr().out))
