"""Kernels of several sections in what is emitted: launchers count all tiles, records are whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from host_launcher import COMPILER, HostLauncher, interpreted
from launcher_calls import Call, codes_of, compare_compiled
from tensor_map_samples import plan_of, source_of

import polygen as pg
from polygen.emit.conditions import refusals
from polygen.frontend.dtypes import BF16
from polygen.frontend.program import Program, Tensor
from polygen.frontend.shapes import LARGEST_SIZE
from polygen.generated import decode, encode
from polygen.lower.launch import Extents, Launch

ALONE = Launch("M", "N", 16, 32, 4, 128, 0, persistent=132)
LAUNCHES = {
    "two": replace(ALONE, further=(Extents("M", "H"),)),
    "matrices of one": replace(ALONE, further=(Extents("M", 5, ("B",)),)),
    "clusters": replace(ALONE, cluster=(2, 1), further=(Extents("H", "M"), Extents("M", "H"))),
}


def call_of(launch: Launch) -> Call:
    inputs = tuple(
        Tensor(name, BF16, dims, tuple(range(len(dims))))
        for name, dims in (("x", ("M", "K")), ("w", ("B", "N", "K")), ("u", ("H", "K")))
    )
    output = Tensor("y", BF16, ("M", "N"), (0, 1))
    program = Program("sections", "x @ w", inputs, (output,), ())
    return Call(program, source_of(plan_of(program, (), launch, pointers=True)))


@pytest.fixture(scope="module", params=LAUNCHES)
def call(request) -> Call:
    return call_of(LAUNCHES[request.param])


def many(call):
    """So many tiles that no kernel counts them."""
    for size in (2**20, LARGEST_SIZE):
        for names in (("M", "N"), ("M", "H"), ("M", "B"), ("M", "N", "H")):
            yield {**call.values, **dict.fromkeys(names, size)}


def test_the_tests_of_the_launcher_are_those_of_python(call):
    codes_of(call, [*call.around(), *many(call)])


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
def test_the_compiled_launcher_does_what_python_does(call, tmp_path):
    host = HostLauncher(call.source, call.program, tmp_path)
    compare_compiled(call, [*call.around(), *many(call)], host)


def test_the_tiles_of_all_sections_together_are_counted():
    call = call_of(LAUNCHES["two"])
    sentence = f"M x N and M x H make at most {LARGEST_SIZE} tiles together"
    every = refusals(call.source.conditions, call.source.launch, call.tensors)
    half = {"M": 2**25, "K": 8, "B": 1}  # 2^21 rows of tiles
    for columns, wanted in ((2**13, ""), (2**14, sentence)):  # of tiles, 2^8 and 2^9 each
        code = interpreted(call.source, {**call.values, **half, "N": columns, "H": columns})
        found = next((refusal.sentence for refusal in every if refusal.code == code), "")
        assert (found == sentence) == bool(wanted)


def test_a_launch_is_saved_with_its_sections():
    for launch in LAUNCHES.values():
        assert decode(Launch, encode(launch)) == launch


def test_names_that_the_kernel_uses_are_kept_apart():
    kernel = pg.fuse(lambda section, w, u: (section @ w.T, section @ u.T), name="f").compile(
        "bf16[M,K]", "bf16[items_0,K]", "bf16[item,K]", arch="sm_90a"
    )
    for name in ("section", "items_0", "item"):
        assert f"{name}_" in kernel.source.partition("pg_f(")[2].partition(")")[0]
