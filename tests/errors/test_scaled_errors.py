"""What scaled 8-bit floats refuse, and what is said about it."""

from dataclasses import replace

import pytest

import polygen as pg
from polygen.errors import DTypeError, ScheduleError, ShapeError, UnsupportedProgram
from polygen.schedule.load import load_schedule, schedules_folder
from polygen.schedule.model import Cluster, CtaTile, Schedule

X, W = "e4m3[M,512]", "e4m3[N,512]"


def scaled(left, right=0):
    def function(x, s, w, t):
        y = w * pg.repeat(t, right, axis=1) if right else w * t
        return (x * pg.repeat(s, left, axis=1)) @ y.T

    return function


REFUSED = {
    "a group that is no multiple of the instruction's k": (
        scaled(16, 32), (X, "f32[M,32]", W, "f32[N,16]"), UnsupportedProgram,
        ("factors of 16 neighbours along k", "adds up 32", "Use groups of 32"),
    ),
    "groups that do not divide each other": (
        scaled(96, 64), ("e4m3[M,384]", "f32[M,4]", "e4m3[N,384]", "f32[N,6]"), UnsupportedProgram,
        ("s has groups of 96, t of 64", "groups that divide each other, as 64 and 128"),
    ),
    "a scale of other rows": (
        scaled(128, 128), (X, "f32[N,4]", W, "f32[N,4]"), ShapeError, ("mul of x", "M", "N"),
    ),
    "a scale of too few groups": (
        scaled(128, 128), (X, "f32[M,3]", W, "f32[N,4]"), ShapeError,
        ("repeat(s, 128, axis=1) has 384", "x has 512"),
    ),
    "a sum that is no multiple of the groups": (
        scaled(128, 128), ("e4m3[M,500]", "f32[M,4]", "e4m3[N,500]", "f32[N,4]"), ShapeError,
        ("has 500", "repeat(t, 128, axis=1) has 512", "Sizes must be equal"),
    ),
    "a sum of a symbolic length": (
        scaled(128, 128), ("e4m3[M,K]", "f32[M,G]", "e4m3[N,K]", "f32[N,G]"), ShapeError,
        ("G, whose number is known only at run time",),
    ),
    "a scale for every k": (
        scaled(128), (X, "f32[M,4]", W, "f32[512]"), UnsupportedProgram,
        ("the factor t[k] is another one for every k", "Scale groups, as pg.repeat(t, 128"),
    ),
    "rows by index": (
        lambda x, s, w, rows: (x[rows] * pg.repeat(s, 128, axis=1)) @ w.T,
        ("e4m3[S,512]", "f32[M,4]", W, "s32[M]"), UnsupportedProgram,
        ("rows by index", "pass these"),
    ),
    "another function before the scales": (
        lambda x, s, w, t: (pg.relu(x) * pg.repeat(s, 128, axis=1)) @ w.T,
        (X, "f32[M,4]", W, "f32[N,4]"), DTypeError, ("only 16-bit types", ".astype("),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_what_and_what_is_near(name):
    function, signature, error, words = REFUSED[name]
    sizes = {"M": 64, "N": 64} if error is UnsupportedProgram else {}
    with pytest.raises(error) as caught:
        pg.fuse(function, name="refused").compile(*signature, arch="sm_90a", sizes=sizes)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_products_of_one_kernel_have_blocks_of_one_size():
    def function(x, s, u, v):
        return (x * pg.repeat(s, 128, axis=1)) @ u.T + x @ v.T

    with pytest.raises(UnsupportedProgram, match="S0, S2 are summed in blocks of all, 128"):
        pg.fuse(function, name="refused").compile(
            X, "f32[M,4]", W, W, arch="sm_90a", sizes={"M": 64, "N": 64}, single=True
        )


GIVEN = load_schedule(schedules_folder() / "sm_90a" / "cooperative_128x64x64.toml")
WARPS = load_schedule(schedules_folder() / "sm_90a" / "16x128x128_w16x32_s6.toml")
SCHEDULES = {
    "k tiles that blocks do not end with": (
        replace(GIVEN, tile=replace(GIVEN.tile, cta=CtaTile(128, 64, 256))),
        ("tile.cta.k = 256 with sums in blocks of 128", "tile.cta.k = 128"),
    ),
    "shared sums": (
        replace(
            GIVEN,
            tile=replace(GIVEN.tile, cta=CtaTile(128, 64, 128)),
            cluster=Cluster(k=2),
        ),
        ("cluster.k = 2 with sums in blocks of 128", "Use cluster.k = 1"),
    ),
    "blocks of several k tiles beside products": (
        replace(
            GIVEN,
            tile=replace(GIVEN.tile, cta=CtaTile(128, 64, 64)),
            pipeline=replace(GIVEN.pipeline, overlap=2),
        ),
        ("pipeline.overlap = 2 with tile.cta.k = 64 and blocks of 128", "or tile.cta.k = 128"),
    ),
    "a run of as many blocks as there are sets, and a half": (
        replace(
            GIVEN,
            tile=replace(GIVEN.tile, cta=CtaTile(128, 64, 128)),
            pipeline=replace(GIVEN.pipeline, overlap=3),
        ),
        ("pipeline.overlap = 3", "2 sets of registers in turns", "pipeline.overlap = 2"),
    ),
    "k from behind": (
        replace(WARPS, loops=replace(WARPS.loops, k="backward")),
        ('loops.k = "backward" with sums in blocks of 128', 'Use loops.k = "forward"'),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_that_promote_nothing_are_refused(name):
    schedule, words = SCHEDULES[name]
    with pytest.raises(ScheduleError) as caught:
        pg.fuse(scaled(128, 128), name="refused").compile(
            X, "f32[M,4]", W, "f32[N,4]", arch="sm_90a", sizes={"M": 64, "N": 64}, schedule=schedule
        )
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_runs_of_blocks_are_refused_where_sums_have_none():
    beside = replace(GIVEN, pipeline=replace(GIVEN.pipeline, overlap=4))
    with pytest.raises(
        ScheduleError, match=r"pipeline.overlap = 4 with sums in no blocks"
    ) as caught:
        pg.fuse(lambda x, w: x @ w.T, name="refused").compile(
            X, W, arch="sm_90a", sizes={"M": 64, "N": 64}, schedule=beside
        )
    assert caught.value.nearest == "Use pipeline.overlap = 1"


def test_what_goes_where_blocks_no_longer_share_sums():
    """Each piece of advice, followed, is one that the next refusal does not take back."""
    fused, signature = pg.fuse(lambda x, w: x @ w.T), ("f32[M,K]", "f32[N,K]")
    folder = schedules_folder() / "sm_90a"
    given = load_schedule(folder / "cooperative_128x128x64_w64_s5_k2x16last.toml")
    with pytest.raises(ScheduleError) as error:
        fused.compile(*signature, arch="sm_90a", schedule=given)
    assert "Use cluster.k = 1, without cluster.share and cluster.columns" in str(error.value)
    given = replace(given, cluster=Cluster())
    with pytest.raises(ScheduleError, match=r'Use roles.computes = "before"\.'):
        fused.compile(*signature, arch="sm_90a", schedule=given)
    given = replace(given, roles=replace(given.roles, computes="before"))
    with pytest.raises(ScheduleError, match=r"tile.cta.k = 32\.$"):
        fused.compile(*signature, arch="sm_90a", schedule=given)
    cta = replace(given.tile.cta, k=32)
    given = replace(given, tile=replace(given.tile, cta=cta))
    assert fused.compile(*signature, arch="sm_90a", schedule=given)


def test_fields_that_decide_nothing_once_a_launch_before_computes():
    given = load_schedule(
        schedules_folder() / "sm_90a" / "cooperative_128x128x64_w64_s5_e3p2_f4_made.toml"
    )
    with pytest.raises(ScheduleError) as error:
        pg.fuse(lambda x, w: x @ w.T).compile("f32[M,K]", "f32[N,K]", arch="sm_90a", schedule=given)
    assert 'Use roles.computes = "before", without pipeline.fragments' in str(error.value)


def test_a_share_without_blocks_that_share_is_left_out():
    with pytest.raises(ScheduleError, match=r"Nearest legal: leave it out, or cluster\.k = 2"):
        pg.fuse(lambda x, w: x @ w.T).compile(
            "bf16[M,K]",
            "bf16[N,K]",
            arch="sm_90a",
            schedule=Schedule(cluster=Cluster(share="last")),
        )
