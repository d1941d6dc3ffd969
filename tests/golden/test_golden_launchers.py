"""Every launcher refuses what its alignment class excludes, and takes what Python takes.

The launchers are those of the golden files: their own text is compiled with the system's C++
compiler against stubs of CUDA, or, without one, its tests are read as Python.
"""

from __future__ import annotations

import json

import pytest
from golden_cases import GOLDEN, ROOT
from host_launcher import COMPILER, HostLauncher, interpreted
from launcher_calls import FAR, Call, codes_of, compare_compiled

from polygen.cli import load
from polygen.cli.arguments import parser
from polygen.emit.conditions import refusals
from polygen.generated import Generated, decode, encode
from polygen.kernel import Kernel

# A launch before the kernel makes arrays that no caller has: such launchers are tested with it.
ALONE = [case for case in GOLDEN if case.name != "f32_parts"]


@pytest.fixture(scope="module", params=ALONE, ids=lambda case: case.name)
def kernel(request) -> Kernel:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        options = parser().parse_args(request.param.words)
        options.command = ""
        return load.kernel(options)


@pytest.fixture(scope="module")
def call(kernel) -> Call:
    return Call(kernel.program, kernel.passes.source)


def test_the_launchers_tests_are_the_class(call):
    source, codes = call.source, codes_of(call, call.around())
    every = refusals(source.conditions, source.launch, call.tensors)
    reached = {r.code for r in every if " groups of tiles" not in r.sentence}
    assert reached <= codes, "each condition is broken by something"
    assert 0 in codes
    for refusal in every:
        assert f"//   {refusal.code}: {refusal.sentence}\n" in source.text, "the comment says so"
        assert f"//   {refusal.code}: {refusal.sentence}\n" in source.header


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
def test_the_compiled_launcher_refuses_what_is_outside_the_class(call, tmp_path):
    compare_compiled(call, call.around(), HostLauncher(call.source, call.program, tmp_path))


def test_rows_that_end_inside_a_copy_are_refused_by_name():
    from polygen.api import fuse

    made = fuse(lambda x, w: x @ w.T).compile("bf16[M,K]", "bf16[N,K]", arch="sm_80")
    source = made.passes.source
    values = {"M": 64, "N": 64, "K": 165, "x_stride0": 168, "w_stride0": 168, "y0_stride0": 64}
    values |= {"x": FAR, "w": 2 * FAR, "y0": 3 * FAR}
    code = interpreted(source, values)
    (refusal,) = (
        r
        for r in refusals(source.conditions, source.launch, made.program.tensors)
        if r.code == code
    )
    assert refusal.sentence == "K is a multiple of 8: rows of x, w are whole copies"
    assert interpreted(source, {**values, "K": 168}) == 0


def test_a_kernel_survives_as_json(kernel):
    made = kernel.passes.generated
    assert decode(Generated, json.loads(json.dumps(encode(made)))) == made
