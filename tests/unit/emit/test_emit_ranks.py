"""Launchers of tensors of rank 3 and more: what they refuse, their grids, their tensor maps."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from host_launcher import COMPILER, HostLauncher, interpreted
from launcher_calls import BASE, Call, codes_of, compare_compiled
from tensor_map_samples import plan_of, source_of

from polygen.emit.conditions import refusals
from polygen.emit.launcher import launcher
from polygen.errors import VerifyError
from polygen.frontend.dtypes import BF16, E4M3, F16, F32
from polygen.frontend.program import Program, Tensor
from polygen.frontend.shapes import LARGEST_SIZE
from polygen.lower.plan import Argument, Launch, MapAxis

TILES = Launch("M", "N", 16, 32, 4, 128, 0)


@dataclass(frozen=True)
class Case:
    """A program of products of matrices with batch dims, its tensor maps, and its launch."""

    name: str
    inputs: tuple[Tensor, ...]
    output: Tensor
    launch: Launch
    maps: tuple[Argument, ...] = ()

    @property
    def call(self) -> Call:
        program = Program(self.name, "x @ w", self.inputs, (self.output,), ())
        plan = plan_of(program, self.maps, self.launch, pointers=not self.maps)
        return Call(program, source_of(plan))


def stored(name, dtype, dims, order=None, **rest):
    return Tensor(name, dtype, dims, order or tuple(range(len(dims))), **rest)


CASES = [
    Case(
        "rank_3",
        (stored("x", BF16, ("B", "M", "K")), stored("w", BF16, ("B", "K", "N"), (0, 2, 1))),
        stored("y", F32, ("B", "M", "N")),
        replace(TILES, batches=("B",)),
    ),
    Case(
        "rank_4_any_order",
        (stored("x", F16, ("B", "H", "M", "K"), (0, 2, 1, 3)), stored("w", F16, ("H", "K", "N"))),
        stored("y", F16, ("B", "H", "M", "N"), (3, 1, 0, 2)),
        replace(TILES, batches=("B", "H")),
    ),
    Case(
        "matrices_in_rounds",
        (stored("x", F16, ("B", "H", "M", "K")), stored("w", F16, ("H", "K", "N"))),
        stored("y", F16, ("B", "H", "M", "N")),
        replace(TILES, batches=("B", "H"), layers=65_535),
    ),
    Case(
        "extents_of_1_and_numbers",
        (
            stored("x", F16, ("B", 1, "M", 64)),
            stored("w", F16, (3, 64, "N"), (1, 2, 0), alignment=2, ragged=True),
        ),
        stored("y", F16, ("B", 3, "M", "N")),
        replace(TILES, batches=("B", 3)),
    ),
    Case(
        "maps",
        (
            stored("x", BF16, ("B", "H", "M", "K"), (0, 2, 1, 3)),
            stored("w", BF16, ("H", "K", 256)),
            stored("b", F32, ("N",)),
        ),
        stored("y", BF16, (7, "H", "M", "N")),
        replace(TILES, persistent=132, batches=("B", "H")),
        (
            Argument(
                "map_x", "map", "x", swizzle=128,
                axes=(
                    MapAxis(0, "B", 1), MapAxis(2, "M", 16), MapAxis(1, "H", 1), MapAxis(3, "K", 64)
                ),
            ),
            Argument(  # every second row of the middle 128 columns
                "map_w", "map", "w", swizzle=64,
                axes=(MapAxis(0, "H", 1), MapAxis(1, 20, 10, 3, 2), MapAxis(2, 128, 32, start=64)),
            ),
            Argument("map_b", "map", "b", axes=(MapAxis(None, 1, 1), MapAxis(0, "N", 32))),
            Argument(
                "map_y", "map", "y",
                axes=(
                    MapAxis(0, 1, 1, start=5), MapAxis(1, "H", 2),
                    MapAxis(2, "M", 16), MapAxis(3, "N", 32),
                ),
            ),
        ),
    ),
    Case(
        "rank_5_in_clusters",
        (
            stored("x", E4M3, ("B", "G", "H", "M", "K")),
            stored("w", E4M3, ("N", "K")),
        ),
        stored("y", E4M3, ("B", "G", "H", "M", "N"), (0, 1, 2, 4, 3)),
        replace(TILES, persistent=132, cluster=(2, 1), batches=("B", "G", "H")),
        (
            Argument(
                "map_x", "map", "x", swizzle=128,
                axes=tuple(MapAxis(axis, dim, 1 + axis) for axis, dim in enumerate("BGHMK")),
            ),
        ),
    ),
]  # fmt: skip


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def call(request) -> Call:
    return request.param.call


def many(call, values=None):
    """Batch dims of so many matrices that no kernel counts them, or CUDA none launches."""
    base = values or call.values
    names = [dim for dim in call.source.launch.batches if isinstance(dim, str)]
    yield {**base, **{name: 300 for name in names}}
    for size in (21_846, 65_535, 65_536, LARGEST_SIZE):
        yield from ({**base, name: size} for name in names)
        yield {**base, **{name: size for name in names}}
        yield {**base, "M": 1, "N": 1, "K": 64, names[0]: size}


def test_the_tests_of_the_launcher_are_those_of_python(call):
    codes = codes_of(call, [*call.around(), *many(call)])
    every = refusals(call.source.conditions, call.source.launch, call.tensors)
    assert {0, *(refusal.code for refusal in every)} <= codes, "each condition is broken"


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
def test_the_compiled_launcher_does_what_python_does(call, tmp_path):
    host = HostLauncher(call.source, call.program, tmp_path)
    compare_compiled(call, [*call.around(), *many(call)], host)


def refused(call, **changed):
    """The sentence of the condition that arguments break, or nothing."""
    code = interpreted(call.source, {**call.values, **changed})
    every = refusals(call.source.conditions, call.source.launch, call.tensors)
    return next((refusal.sentence for refusal in every if refusal.code == code), "")


def test_steps_of_every_axis_but_the_innermost():
    call = CASES[1].call
    columns = call.values["x_stride1"]
    assert refused(call, x_stride1=columns + 8) == ""
    assert refused(call, x_stride1=columns + 4) == "x_stride1 is a multiple of 8 if H > 1"
    assert refused(call, x_stride1=columns + 4, H=1) == ""
    assert refused(call, x_stride0=-8) == "x_stride0 is not negative if B > 1"
    assert refused(call, x_stride2=0, x_stride0=0) == "", "inputs may be repeated along any axis"
    assert refused(call, y_stride0=40) == "y_stride0 leads beyond a row of y if B > 1"
    most = call.values["y_stride1"]
    assert refused(call, y_stride1=most - 24, y_stride3=2**20) == (
        "y_stride1 leads beyond the faster axes of y if H > 1"
    )


def test_rows_of_other_axes_than_the_last():
    call = CASES[0].call
    assert refused(call, K=BASE + 1) == "K is a multiple of 8: rows of x, w are whole copies"


def test_outputs_of_any_rank_share_no_memory():
    call = CASES[1].call
    span = call.arrays(call.values).reach("w", (0, 1, 2)) * 2
    place = call.values["w"] + (span - 2) // 16 * 16
    assert refused(call, y=place) == "y shares no memory with w"
    assert refused(call, y=place + 16) == ""


def test_as_many_matrices_as_the_grid_has_room_for():
    call = replace(CASES[1], output=stored("y", F16, ("B", "H", "M", "N"))).call
    sentence = "M and N make at most 65535 groups of tiles, B x H at most 65535 matrices"
    assert refused(call, B=13_107, H=5) == ""
    for sizes in ({"B": 13_108, "H": 5}, {"B": 65_536, "H": 1}, {"B": 2**31 - 2**16, "H": 2**30}):
        assert refused(call, **sizes) == sentence


def test_as_many_matrices_as_rounds_count():
    call = CASES[2].call
    sentence = f"M and N make at most 65535 groups of tiles, B x H at most {LARGEST_SIZE} matrices"
    assert refused(call, B=13_108, H=5) == ""
    for sizes in ({"B": 2**30, "H": 2}, {"B": 2**31 - 2**16, "H": 2}):
        assert refused(call, **sizes) == sentence


def test_as_many_tiles_as_persistent_blocks_count():
    call = CASES[4].call
    sizes = {"M": 1, "N": 1, "H": 1, "K": 64}
    sentence = f"M and N of B x H matrices make at most {LARGEST_SIZE} tiles"
    many, few = {**sizes, "B": 2**30, "H": 2}, {**sizes, "B": 2**30 - 2**15, "H": 2}
    assert refused(call, **many) == sentence
    assert refused(call, **few) != sentence
    assert refused(call, **{**sizes, "B": 2**30, "N": 33}) == sentence


def test_one_matrix_has_no_condition_on_its_tiles():
    case = CASES[4]
    alone = replace(case, launch=replace(case.launch, batches=())).call
    assert not {"grid", "work"} & {one.kind for one in alone.source.conditions}


def test_the_header_names_the_blocks_along_z():
    plain, batched, persistent = (CASES[n].call.source.header for n in (0, 1, 4))
    assert "The blocks along x, y and z." in plain
    assert "int M, int N, int B, unsigned grid[3]" in plain
    assert "grid[2] = (unsigned)(1LL * B * H);" in batched
    assert "unsigned resident, unsigned grid[3]" in persistent and "grid[2] = 1;" in persistent
    case = replace(CASES[0], launch=TILES)
    header = case.call.source.header
    assert "The blocks along x and y." in header and "grid[2];" not in header


def test_the_header_says_which_axes_a_map_has():
    header = CASES[4].call.source.header
    assert "boxes of 1 x 16 x 1 x 64 elements along the stored axes, swizzle 128" in header
    assert (
        "boxes of 1 x 10 x 32 elements along (axis 0: H; axis 1: 20 from 3 by 2; axis 2: 128 "
        "from 64), swizzle 64 bytes" in header
    )
    assert "boxes of 1 x 32 elements along (no axis: 1; axis 0: N)" in header


@pytest.mark.parametrize(
    "axes",
    [
        (),
        tuple(MapAxis(axis, 8, 1) for axis in range(6)),
        (MapAxis(0, "B", 1), MapAxis(2, "K", 8, step=2)),
    ],
)
def test_maps_that_no_copy_engine_has(axes):
    case = CASES[0]
    maps = (Argument("map_x", "map", "x", axes=axes),)
    program = Program("bad", "x", case.inputs, (case.output,), ())
    with pytest.raises(VerifyError, match=r"map_x: no tensor map has the axes.*1 to 5 axes"):
        launcher(plan_of(program, maps, case.launch))
