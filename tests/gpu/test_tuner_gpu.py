"""The tuner on a real GPU, with kernels that hang and crash among its candidates."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from tuning_samples import Clock

from polygen import knobs
from polygen.api import Fused
from polygen.frontend.parse import parse_expression
from polygen.frontend.signature import parse_signature
from polygen.runtime.cache import compile_cached
from polygen.runtime.measure import device_name
from polygen.tune.crew import Crew
from polygen.tune.gpu import GpuSource
from polygen.tune.identity import candidate_key, canonical
from polygen.tune.lookup import best
from polygen.tune.records import Records, Target, Version
from polygen.tune.search import search
from polygen.tune.task import describe
from polygen.tune.trials import Built
from polygen.tune.tuner import tune

pytestmark = pytest.mark.gpu
BIAS = ("gelu(x @ w.T + b)", ("x:bf16[M,K]", "w:bf16[N,K]", "b:bf16[N]"))
PROGRAMS = [
    (BIAS, {"M": 1024, "N": 1536, "K": 512}),
    (BIAS, {"M": 333, "N": 501, "K": 257}),
    (("relu(x @ w + b) * g", ("x:f16[M,K]", "w:f16[K,N]", "b:f16[N]", "g:f16[M,N]")),
     {"M": 512, "N": 768, "K": 512}),
    (("s * (x @ w.T)", ("x:tf32[M,K]", "w:tf32[N,K]", "s:f32")), {"M": 512, "N": 768, "K": 512}),
    (("x @ w.T", ("x:e4m3[M,K]", "w:e4m3[N,K]")), {"M": 512, "N": 768, "K": 512}),
    (("logsumexp(x @ w.T + b, axis=1)", ("x:bf16[M,K]", "w:bf16[N,K]", "b:bf16[N]")),
     {"M": 1024, "N": 1536, "K": 256}),
    (("softmax(x @ w.T)", ("x:bf16[M,K]", "w:bf16[N,K]")), {"M": 1024, "N": 512, "K": 256}),
    (("x.T @ d, d.sum(axis=0)", ("x:bf16[K,M]", "d:bf16[K,N]")), {"M": 512, "N": 768, "K": 1024}),
    (("argmin(b - 2 * (x @ w.T), axis=1)", ("x:bf16[M,K]", "w:bf16[N,K]", "b:f32[N]")),
     {"M": 1024, "N": 768, "K": 128}),
]  # fmt: skip


def fused(sample):
    names = tuple(parse_signature(text).name for text in sample[1])
    return Fused(parse_expression(sample[0], names), "sample", sample[0], False)


@pytest.mark.parametrize(("sample", "sizes"), PROGRAMS, ids=lambda value: str(value)[:40])
def test_tuning_finds_a_schedule_and_nothing_is_wrong(sample, sizes, tmp_path):
    with knobs.scope(cache_dir=tmp_path, cache=True):
        clock = Clock(step=0.75)  # leaves 0.75 s to the finals, which reserve a little more
        found = tune(
            fused(sample),
            *sample[1],
            sizes=sizes,
            budget=6.0,
            now=clock,
            report=clock.report,
            check_limit=60.0,
        )
        states = dict(found.states)
        assert set(states) <= {"timed", "refused"}, states
        assert sum(states.values()) > 16 and states["timed"] > 0
        assert found.finished and found.seconds <= 6.0
        assert found.best.ratio <= 1.0
        made = describe(fused(sample), sample[1], sizes=sizes)
        looked_up = best(made.program, made.device, made.sizes)
        assert looked_up is not None and looked_up.schedule == found.best.schedule
        again = tune(
            fused(sample),
            *sample[1],
            sizes=sizes,
            budget=3.0,
            now=clock,
            report=clock.report,
            check_limit=60.0,
        )
        assert again.resumed >= states["timed"] and again.best.ratio <= 1.0


@dataclass(frozen=True, slots=True)
class Broken(GpuSource):
    """Some kernels never end, and some stop with an error."""

    broken: tuple[tuple[str, str], ...] = ()

    def _build(self, schedule, stage):
        built = GpuSource._build(self, schedule, stage)
        statement = dict(self.broken).get(candidate_key(schedule))
        if statement is None or not isinstance(built, Built):
            return built
        source, _ = built.payload
        body = source.text.index(") {", source.text.index("__global__")) + 3
        text = source.text[:body] + statement + source.text[body:]
        source = replace(source, text=text)
        return Built((source, replace(compile_cached(source, allow_spills=True), ptx="", log="")))


FOREVER = (
    ' for (;;) asm volatile("nanosleep.u32 100;"); '  # the compiler removes what it sees through
)
TRAP = ' asm volatile("trap;"); '


def test_a_kernel_that_hangs_and_one_that_crashes_cost_only_themselves(tmp_path):
    sample, sizes = PROGRAMS[0]
    with knobs.scope(cache_dir=tmp_path, cache=True):
        made = describe(fused(sample), sample[1], sizes=sizes)
        chosen = made.candidates[:12]
        keys = [candidate_key(one.schedule) for one in chosen]
        broken = ((keys[3], FOREVER), (keys[5], TRAP))
        source = Broken(made.program, made.device, tuple(made.sizes.items()), broken=broken)
        text = canonical(made.program, made.sizes)
        target = Target(text, made.device.name, device_name(), "gpu", sizes=tuple(sizes.items()))
        version = Version("broken", "", "")
        with Records() as records, Crew() as crew:
            found = search(
                chosen,
                made.device,
                made.problem,
                target,
                version,
                source,
                records,
                crew=crew,
                budget=None,
                check_limit=30.0,
            )
            kept = records.measured(records.problem(target), version)
    assert kept[keys[3]].state == "hung" and kept[keys[5]].state == "crashed"
    others = {kept[key].state for key in keys if key not in (keys[3], keys[5])}
    assert others <= {"timed", "refused"} and found.finished
