"""Mistakes in schedule files: all at once, each with its path and the nearest legal value."""

from dataclasses import replace

import pytest

import polygen as pg
from polygen.errors import ScheduleError, ScheduleFileError
from polygen.hardware.atom import atom
from polygen.schedule.load import load_schedule, loads
from polygen.schedule.model import Cluster, CtaTile, Pipeline, Roles, Schedule, Tile, WarpTile
from polygen.schedule.structure import check_structure


def problems(text):
    with pytest.raises(ScheduleFileError) as caught:
        loads(text, "some.toml")
    assert str(caught.value).startswith("some.toml: ")
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("naem = 'x'", "naem: unknown key. Nearest legal: name."),
        ("[pipeline]\ndistanse = 2", "pipeline.distanse: unknown key. Nearest legal: pipeline.dis"),
        ("[tile.cta]\nq = 2", "tile.cta.q: unknown key. Legal: m, n, k"),
        ("[tile.cta]\nm = '3'", "tile.cta.m: '3' is not an integer"),
        ("[tile.cta]\nm = 64.0", "tile.cta.m: 64.0 is not an integer"),
        ("[pipeline]\nstages = true", "pipeline.stages: True is not an integer"),
        ("name = 3", "name: 3 is not a string"),
        ("tile = 3", "tile: is not a table. Write [tile]"),
        ("[tile]\ncta = [1]", "tile.cta: is not a table. Write [tile.cta]"),
        ("[pipeline]\nstages = 0", "pipeline.stages: 0 is too small. Nearest legal: 1"),
        ("[pipeline]\ndistance = -1", "pipeline.distance: -1 is too small. Nearest legal: 0"),
        ("[tile.warp]\nn = -8", "tile.warp.n: -8 is too small. Nearest legal: 1"),
        ("[loops]\nk = 'forwards'", "loops.k: 'forwards' is unknown. Nearest legal: 'forward'."),
        ("[epilogue]\nthrough = 'x'", "epilogue.through: 'x' is unknown. Legal: smem, registers"),
        ("[raster]\nalong = 'k'", "raster.along: 'k' is unknown. Legal: m, n"),
        ("[smem]\nswizzle = 'xor8'", "smem.swizzle: 'xor8' is unknown. Nearest legal: 'xor8_shift"),
        ("atom = 'm16n8k16'", "atom: 'm16n8k16' is unknown. Nearest legal: 'm16n8k16_f"),
        ("device = 'sm_88'", "device: unknown architecture 'sm_88'. Nearest: sm_87."),
        ("device = '80'", "device: write '80' as 'sm_80'"),
        ("[loops]\nmma = ['k','m']", "loops.mma: ['k', 'm'] is not a permutation of k, m, n"),
        ("[loops]\nmma = 'kmn'", "loops.mma: 'kmn' is not a list of strings"),
        ("[pipeline]\norder = ['mma','mma']", "pipeline.order: ['mma', 'mma'] is not a permut"),
        ("[loops]\nphases = ['main']", "loops.phases: ['main'] is not a permutation of main, epi"),
        ("[loops]\ngrid = ['m','m']", "loops.grid: ['m', 'm'] is not a list of distinct m, n, k"),
        ("[loops]\ngrid = []", "loops.grid: [] is not a list of distinct m, n, k"),
    ],
)
def test_each_mistake(text, message):
    (found,) = problems(f"format = 1\n{text}\n")
    assert found.startswith(message)


def test_all_mistakes_at_once():
    found = problems(
        "format = 2\nnaem = 'x'\n[pipeline]\nstages = 'three'\ndistance = -1\n[loops]\nk = 'up'\n"
    )
    paths = sorted(problem.split(":")[0] for problem in found)
    assert paths == ["format", "loops.k", "naem", "pipeline.distance", "pipeline.stages"]


def test_format_is_required():
    assert problems("name = 'x'") == ("format: missing. Write format = 1",)
    assert problems("format = '1'") == ("format: '1' cannot be read. Known: 1",)


def test_malformed_toml_gives_line_and_column():
    (found,) = problems("format = 1\nname = \n")
    assert found.startswith("not TOML: ") and "line 2, column 8" in found


def test_missing_file(tmp_path):
    with pytest.raises(ScheduleFileError, match="cannot be read"):
        load_schedule(tmp_path / "none.toml")


def test_file_that_is_not_text(tmp_path):
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScheduleFileError, match="cannot be read"):
        load_schedule(path)


@pytest.mark.parametrize(
    ("cta", "warp", "message"),
    [
        (
            (128, 128, 64),
            (48, 64),
            "tile.warp.m = 48 does not divide tile.cta.m = 128. Nearest legal: 32, 64",
        ),
        (
            (128, 128, 64),
            (64, 256),
            "tile.warp.n = 256 does not divide tile.cta.n = 128. Nearest legal: 128",
        ),
        ((128, 128, 64), (8, 128), "tile.warp.m = 8 is not a multiple of 16"),
        ((128, 132, 64), (64, 12), "tile.warp.n = 12 is not a multiple of 8"),
        (
            (128, 128, 24),
            (64, 64),
            "tile.cta.k = 24 is not a multiple of 16, the shape of m16n8k16_f32_bf16. "
            "Nearest legal: 16, 32",
        ),
        (
            (128, 100, 64),
            (64, 64),
            "tile.warp.n = 64 does not divide tile.cta.n = 100, and no multiple of 8 does. "
            "Nearest legal: tile.cta.n = 64, 128",
        ),
        ((256, 256, 64), (32, 32), "takes 64 warps; a thread block has at most 32"),
    ],
)
def test_structure(cta, warp, message):
    schedule = Schedule(tile=Tile(CtaTile(*cta), WarpTile(*warp)))
    with pytest.raises(ScheduleError) as caught:
        check_structure(schedule, atom("m16n8k16_f32_bf16"), "here")
    assert any(message in problem for problem in caught.value.problems)


def test_structure_lists_all():
    schedule = Schedule(tile=Tile(CtaTile(128, 128, 24), WarpTile(48, 20)))
    with pytest.raises(ScheduleFileError) as caught:
        check_structure(schedule, atom("m16n8k16_f32_bf16"), "here")
    assert len(caught.value.problems) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_blocks": "2"}, "min_blocks: '2' is not an integer"),
        ({"min_blocks": True}, "min_blocks: True is not an integer"),
        ({"exchange": 1}, "exchange: 1 is not true or false"),
        ({"atom": None}, "atom: None is not a string"),
        ({"roles": Roles(form=3)}, "roles.form: 3 is not a string"),
        ({"roles": "cooperative"}, "roles: 'cooperative' is no Roles"),
        ({"tile": None}, "tile: None is no Tile"),
        ({"tile": Tile((128, 128, 64))}, "tile.cta: (128, 128, 64) is no CtaTile"),
        ({"tile": Tile(CtaTile(128.0))}, "tile.cta.m: 128.0 is not an integer"),
        ({"tile": Tile(pixels=[2, 8, 8])}, "tile.pixels: [2, 8, 8] is not a tuple of integers"),
        ({"pipeline": Pipeline(order=(1, 2))}, "pipeline.order: (1, 2) is not a tuple of strings"),
        ({"pipeline": Pipeline(stages=-1)}, "pipeline.stages: -1 is too small. Nearest legal: 1"),
        ({"cluster": Cluster(k="2"), "name": 5}, "cluster.k: '2' is not an integer"),
    ],
)
@pytest.mark.parametrize("chain", [False, True], ids=["product", "chain"])
def test_records_hold_what_files_may(changes, message, chain):
    """Mistakes of a record made in Python are told before any pass sees them."""

    def product(x, w):
        return x @ w.T

    def attention(q, k, v):
        return pg.softmax(q @ k.mT) @ v

    schedule = replace(Schedule(device="sm_90a"), **changes)
    given = (attention, ("bf16[H,S,64]",) * 3) if chain else (product, ("bf16[M,K]", "bf16[N,K]"))
    with pytest.raises(ScheduleFileError) as caught:
        pg.fuse(given[0]).compile(*given[1], arch="sm_90a", schedule=schedule)
    assert message in caught.value.problems
