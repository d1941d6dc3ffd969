"""Schedule files: round trips, defaults, the shipped set, structural checks."""

import re
import tomllib
from dataclasses import replace

import pytest

from polygen.hardware.atom import atom
from polygen.hardware.device import device, devices
from polygen.schedule.load import (
    dumps,
    load_schedule,
    loads,
    schedules_folder,
    shipped,
    shipped_as,
)
from polygen.schedule.model import (
    Cluster,
    CtaTile,
    Epilogue,
    Launches,
    Loops,
    Pipeline,
    Raster,
    Roles,
    Schedule,
    Tile,
    WarpTile,
)
from polygen.schedule.structure import check_structure
from polygen.tune.schedule_name import schedule_name

UNUSUAL = Schedule(
    name='odd "name"',
    device="sm_90a",
    atom="m16n8k8_f32_tf32",
    tile=Tile(CtaTile(32, 48, 24), WarpTile(16, 24)),
    pipeline=Pipeline(5, 0, ("mma", "copy"), 1, 0),
    loops=Loops(("n", "m", "k"), "backward", ("k", "n"), ("epilogue", "main")),
    raster=Raster("n", 3),
    min_blocks=2,
)
SPECIALISED = Schedule(
    name="roles",
    device="sm_90a",
    tile=Tile(CtaTile(128, 96, 64), WarpTile(128, 96)),
    pipeline=Pipeline(stages=5, in_flight=0),
    roles=Roles("pingpong", 24, 240),
    cluster=Cluster(2, 3),
    epilogue=Epilogue("tma", 3, 1),
)


@pytest.mark.parametrize("schedule", [Schedule(), UNUSUAL, SPECIALISED])
def test_round_trip_is_exact_and_stable(schedule):
    text = dumps(schedule)
    assert loads(text, "text") == schedule
    assert dumps(loads(text, "text")) == text
    assert tomllib.loads(text)["format"] == 1


def test_missing_fields_take_defaults():
    assert loads("format = 1", "text") == Schedule()
    found = loads("format = 1\n[tile.cta]\nm = 64\n", "text")
    assert found.tile == Tile(CtaTile(64, 128, 64), WarpTile(64, 64))


FILES = sorted(schedules_folder().glob("*/*.toml"))


# Endings of names, and what of a schedule they say.
ENDINGS = {
    r"_w(\d+)": lambda s: (s.tile.warp.m,),
    r"_w(\d+)x(\d+)": lambda s: (s.tile.warp.m, s.tile.warp.n),
    r"_s(\d+)": lambda s: (s.pipeline.stages,),
    r"_e(\d+)p(\d+)": lambda s: (s.epilogue.slots, s.epilogue.prefetch),
    r"_c(\d+)x(\d+)": lambda s: (s.cluster.m, s.cluster.n),
    r"_k(\d+)": lambda s: (s.cluster.k,),
    r"_k(\d+)(last)": lambda s: (s.cluster.k, s.cluster.share),
    r"_k(\d+)x(\d+)(last)": lambda s: (s.cluster.k, s.cluster.columns, s.cluster.share),
    r"_m(\d+)": lambda s: (s.raster.group,) if s.raster.along == "m" else (),
    r"_n(\d+)": lambda s: (s.raster.group,) if s.raster.along == "n" else (),
    r"_b(\d+)": lambda s: (s.min_blocks,),
    r"_columns(\d+)": lambda s: (s.epilogue.columns,),
    r"_f(\d+)": lambda s: (s.pipeline.fragments,),
    r"_g(\d+)": lambda s: (s.pipeline.together,),
    r"_(spread)": lambda s: (s.pipeline.copies,),
    r"_(registers|lines)": lambda s: (s.epilogue.through,),
    r"_(exchanged)": lambda s: ("exchanged",) if s.exchange else (),
    r"_(made)": lambda s: ("made",) if s.from_registers else (),
    r"_t(\d)": lambda s: (s.roles.turns,) if s.in_turns else (),
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shipped_files_are_named_after_their_content(path):
    found = load_schedule(path)
    cta = found.tile.cta
    assert found.name == path.stem
    assert found.device in device(path.parent.name).schedule_families
    form = f"{found.roles.form}_" if found.specialised else "dots_" if found.by_lanes else ""
    size = f"{form}{cta.m}x{cta.n}x{cta.k}"
    if found.of_elements:  # which are of no k
        size = f"elements_{cta.m}x{cta.n}"
    assert found.name.startswith(size)
    said = set()
    for ending in re.findall(r"_[a-z][0-9a-z]*", found.name.removeprefix(size)):
        ((pattern, values),) = [
            (p, re.fullmatch(p, ending).groups()) for p in ENDINGS if re.fullmatch(p, ending)
        ]
        assert values == tuple(map(str, ENDINGS[pattern](found))), ending
        said.add(pattern)
    assert found.specialised or found.without_rings or r"_s(\d+)" in said
    assert not found.without_rings or found.pipeline.lookahead == found.pipeline.fragments - 1
    assert (r"_c(\d+)x(\d+)" in said) == (found.cluster.tiles > 1)
    assert any(pattern.startswith(r"_k(\d+)") for pattern in said) == (found.cluster.k > 1)
    assert (r"_(exchanged)" in said) == found.exchange
    assert (r"_(made)" in said) == found.from_registers
    assert (r"_t(\d)" in said) == (found.roles.turns != Schedule().roles.turns)
    name = "wgmma_m64k16_f32_bf16" if found.specialised else "m16n8k16_f32_bf16"
    name = "dot_k256_f32_bf16" if found.by_lanes else name
    name = f"{found.atom}_f32" if found.of_elements else name
    check_structure(found, atom(name), found.name)


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in FILES
        if (path.parent.name == "sm_90a" and re.search(r"_s\d", path.stem))
        or re.match("dots|elements", path.stem)
    ],
    ids=lambda path: path.stem,
)
def test_systematic_names_leave_no_decision_out(path):
    assert schedule_name(load_schedule(path)) == path.stem


def test_specialised_is_what_has_a_form():
    assert SPECIALISED.specialised and not Schedule().specialised
    families = {schedule.device: schedule.specialised for schedule in map(load_schedule, FILES)}
    assert families == {
        "sm_70": False, "sm_75": False, "sm_80": False, "sm_90a": True,
    }  # fmt: skip


@pytest.mark.parametrize("device", devices(), ids=str)
def test_every_device_has_shipped_schedules(device):
    found = shipped(device)
    assert len(found) >= 10
    assert {schedule.device for schedule in found} <= set(device.schedule_families)
    assert shipped(device.name) == found


def test_readme_lists_every_field():
    text = (schedules_folder() / "README.md").read_text(encoding="utf-8")

    def paths(table, prefix=""):
        for key, value in table.items():
            if isinstance(value, dict):
                yield from paths(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}"

    for path in paths(tomllib.loads(dumps(Schedule()))):
        parent, _, leaf = path.rpartition(".")
        assert f"`{path}`" in text or (f"`{parent}." in text and f"`.{leaf}`" in text), path


def test_launches_are_written_only_where_they_are_unusual():
    assert "launch" not in dumps(Schedule())
    copying = replace(Schedule(), launch=Launches(realign=True))
    assert "[launch]\nrealign = true\n" in dumps(copying)
    assert loads(dumps(copying), "a test") == copying


def test_a_shipped_schedule_is_found_by_the_name_of_its_file():
    for target in devices():
        every = {one.name: one for one in shipped(target)}
        assert {name: shipped_as(target, name) for name in every} == every
    assert shipped_as(device("sm_90a"), "none of them") is None
