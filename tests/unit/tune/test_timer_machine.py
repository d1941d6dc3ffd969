"""The timer with candidates' kernels on the PTX machine: none of them is refused as wrong."""

from __future__ import annotations

import numpy as np
import pytest

import polygen as pg
from polygen.emulated import emulate
from polygen.errors import PolygenError
from polygen.pipeline import generate
from polygen.runtime.cache import compile_cached
from polygen.tune.gpu import Timer, Tools
from polygen.tune.identity import candidate_key
from polygen.tune.reference import bits
from polygen.tune.task import describe
from polygen.tune.trials import Batch, Contender

MATRICES = ("bf16[M,K]", "bf16[N,K]")
SIZES = {"M": 72, "N": 72, "K": 64}
PROGRAMS = [
    (lambda x, w, c: np.argmin(c - 2 * (x @ w.T), axis=1), (*MATRICES, "f32[N]")),
    (lambda x, w: pg.softmax(x @ w.T), MATRICES),
    (lambda x, d: (x.T @ d, d.sum(axis=0)), ("bf16[K,M]", "bf16[K,N]")),
    (lambda x, u, w: (x @ u.T, x @ w.T), (*MATRICES, "bf16[24,K]@2")),
]
TRIED = 4  # candidates beside the anchor


def load(source, artifact, program):
    """A launcher of a kernel that runs on NumPy."""

    def launch(arrays, scalars, outputs, stream):
        given = [a.view(t.dtype.numpy) for a, t in zip(arrays, program.inputs, strict=True)]
        done = emulate(program, source, artifact.ptx, given)
        assert not scalars and not done.report.findings
        results = done.results if isinstance(done.results, tuple) else (done.results,)
        for out, result in zip(outputs, results, strict=True):
            bits(out)[...] = bits(np.asarray(result))

    return launch


TOOLS = Tools(
    np, load, lambda: None,
    lambda calls, repeats, warm: {key: [10.0] * repeats for key in calls},
    lambda call, warm, repeats: [0.01] * repeats,
    lambda call: lambda: call(None),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("function", "signature"), PROGRAMS)
def test_candidates_give_what_the_anchor_does(function, signature):
    made = describe(pg.fuse(function), signature, sizes=SIZES, arch="sm_90a")
    anchor, *others = made.candidates
    order = np.random.default_rng(0).permutation(len(others))
    built = []
    for fitted in (anchor, *(others[at] for at in order)):
        try:
            source = generate(made.program, made.device, dict(SIZES), fitted.schedule).source
            artifact = compile_cached(source)
        except PolygenError:  # spills, or what proofs refuse
            continue
        key = candidate_key(fitted.schedule)
        built.append(Contender(key, fitted.schedule.name, (source, artifact)))
        if len(built) > TRIED:
            break
    timer = Timer(TOOLS, made.program, SIZES, 0, made.small)
    found = timer(Batch(built[0], tuple(built[1:]), 3, 60.0, True), lambda stage, limit: None)
    assert {found[one.key].state for one in built} == {"timed"}, found
