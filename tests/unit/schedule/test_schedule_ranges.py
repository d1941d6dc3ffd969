"""The ranges that schedules/README.md documents are those that the proofs accept, field by field.

Each field's legal values are put into a schedule that is otherwise good, and so are the values just
outside; what is asked for in order to be refused (a backward k loop, a grid over k) is refused.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from typing import Any

import pytest

import polygen as pg
from polygen.errors import PolygenError
from polygen.schedule.load import schedules_folder
from polygen.schedule.model import CtaTile, Epilogue, Pipeline, Roles, Schedule, Tile, WarpTile

WARPS = Schedule(tile=Tile(CtaTile(64, 64, 32), WarpTile(32, 32)))
ROLES = Schedule(
    device="sm_90a",
    tile=Tile(CtaTile(128, 64, 64), WarpTile(64, 64)),
    roles=Roles("cooperative"),
    epilogue=Epilogue("tma"),
)
STEP = 16  # k of the instructions that bf16 operands run on
fused = pg.fuse(lambda x, w, r: pg.relu(x @ w.T + r), name="f")
SIZES = {"M": 1024, "N": 1024, "K": 1024}


def changed(schedule: Schedule, **values: Any) -> Schedule:
    """The schedule with fields set; ``__`` separates the names of a path."""
    for path, value in values.items():
        names = path.split("__")
        schedule = _set(schedule, names, value)
    return schedule


def _set(record: Any, names: list[str], value: Any) -> Any:
    inner = value if len(names) == 1 else _set(getattr(record, names[0]), names[1:], value)
    return replace(record, **{names[0]: inner})


def compiled(schedule: Schedule) -> pg.Kernel:
    signature = ("bf16[M,K]", "bf16[N,K]", "bf16[M,N]")
    return fused.compile(*signature, arch=schedule.device, sizes=SIZES, schedule=schedule)


def accepted(schedule: Schedule) -> bool:
    """Whether the proofs accept it."""
    try:
        compiled(schedule)
    except PolygenError:
        return False
    return True


# Field -> (base, changes, legal?). Fields whose range depends on others have rules of their own
# below; "format" is the file's, and test_schedule_load.py has it.
W, R = WARPS, ROLES
CASES: dict[str, list[tuple[Schedule, dict[str, Any], bool]]] = {
    "name": [(W, {"name": "anything"}, True)],
    "device": [(W, {"device": "sm_80"}, True), (W, {"device": "sm_81"}, False)],
    "atom": [
        (W, {"atom": "m16n8k16_f32_bf16"}, True),
        (W, {"atom": "m16n8k16_f32_f16"}, False),  # of other types
        (W, {"atom": "nothing"}, False),
    ],
    "min_blocks": [(W, {"min_blocks": n}, n in (1, 2)) for n in (0, 1, 2, 100)]
    + [  # with roles, registers are divided among all threads of all blocks
        (
            R,
            {
                "min_blocks": blocks,
                "tile": Tile(CtaTile(64, 64, 64), WarpTile(64, 64)),
                "roles": Roles("cooperative", 24, own),
                "pipeline__stages": 2,
            },
            legal,
        )
        for blocks, own, legal in ((2, 232, True), (2, 240, False), (3, 136, True), (9, 40, False))
    ],
    "tile.cta.m": [(W, {"tile__cta__m": m}, m != 80) for m in (32, 96, 80)],
    "tile.cta.n": [(W, {"tile__cta__n": n}, n != 48) for n in (32, 96, 48)],
    "functions": [(W, {"functions": f}, f == "fast") for f in ("fast", "short", "exact")],
    "tile.part": [(W, {"tile__part": p}, p == 0) for p in (0, 64, -1)],
    "tile.pixels": [
        (base, {"tile__pixels": sides}, base is R and sides == (128,))
        for base, sides in ((R, (128,)), (R, (64,)), (R, (2, 64)), (R, (0, 128)), (W, (64,)))
    ],
    "tile.joined": [(W, {"tile__joined": joined}, not joined) for joined in (False, True)],
    "tile.cta.k": [(W, {"tile__cta__k": k}, k % 32 == 0) for k in (32, 40, 64)]
    + [(R, {"tile__cta__k": k}, k % STEP == 0) for k in (16, 24, 48, 128)],
    "tile.warp.m": [(W, {"tile__warp__m": m}, m in (16, 64)) for m in (8, 16, 24, 64)],
    "tile.warp.n": [(W, {"tile__warp__n": n}, n in (8, 64)) for n in (4, 8, 24, 64)]
    + [  # with roles one consumer has all columns, or the consumers have all rows
        (R, {"tile": Tile(CtaTile(64, n, 64), WarpTile(64, n))}, n in (16, 256))
        for n in (8, 16, 24, 256, 272)
    ]
    + [
        (
            R,
            {
                "tile": Tile(CtaTile(64 * a, 64 * b, 64), WarpTile(64, 64)),
                "roles": Roles(form, 40, 152),
            },
            legal,
        )
        for a, b, form, legal in (
            (3, 1, "cooperative", True),
            (4, 1, "cooperative", False),
            (1, 3, "cooperative", True),
            (1, 4, "cooperative", False),
            (2, 2, "cooperative", False),
            (1, 1, "pingpong", True),
            (2, 1, "pingpong", False),
        )
    ],
    "pipeline.stages": [(W, {"pipeline": Pipeline(n, n)}, n > 0) for n in (0, 1, 4)],
    "launch.realign": [(W, {"launch__realign": True}, False), (R, {"launch__realign": True}, True)],
    "launch.dependent": [
        (W, {"launch__dependent": True}, False),  # of sm_80
        (W, {"launch__dependent": True, "device": "sm_90"}, True),
        (R, {"launch__dependent": True}, True),
    ],
    "launch.trigger": [
        (W, {"launch__trigger": "loads"}, False),
        (R, {"launch__trigger": "loads"}, True),
        (R, {"launch__trigger": "end"}, False),
    ],
    "launch.ahead": [  # of a kernel among several in order alone
        (W, {"launch__ahead": True}, False),
        (R, {"launch__ahead": True}, False),
        (R, {"launch__ahead": True, "launch__dependent": True}, False),
    ],
    "pipeline.order": [(W, {"pipeline__order": ("mma",)}, False)],
    "pipeline.copies": [(W, {"pipeline__copies": "some"}, False)],
    "loops.mma": [(W, {"loops__mma": order}, True) for order in itertools.permutations("kmn")]
    + [(W, {"loops__mma": ("k", "m")}, False), (R, {"loops__mma": ("m", "k", "n")}, False)],
    "loops.k": [(W, {"loops__k": k}, k == "forward") for k in ("forward", "backward", "up")],
    "loops.grid": [
        (W, {"loops__grid": grid}, sorted(grid) == ["m", "n"])
        for grid in (("m", "n"), ("n", "m"), ("m",), ("k",), ("m", "n", "k"), ("m", "m"))
    ],
    "loops.phases": [
        (W, {"loops__phases": ("epilogue", "main")}, False),
        (W, {"loops__phases": ("main",)}, False),
    ],
    "roles.form": [(R, {"roles__form": "three"}, False)],
    "roles.turns": [
        (
            R,
            {
                "tile": Tile(CtaTile(64, 64, 64), WarpTile(64, 64)),
                "roles": Roles(form, 40, 152, turns=turns),
            },
            (form, turns) in (("pingpong", 2), ("pingpong", 3), ("cooperative", 2)),
        )
        for form in ("pingpong", "cooperative")
        for turns in (0, 1, 2, 3, 4)
    ]
    + [(W, {"roles__turns": 3}, False)],
    "roles.computes": [  # of arguments consumers compute nothing; tests/errors has the rest
        (R, {"roles__computes": who}, who == "producer")
        for who in ("producer", "consumer", "before", "all")
    ],
    "roles.producer_registers": [
        (R, {"roles__producer_registers": n}, n in (24, 40)) for n in (16, 24, 36, 40, 240)
    ],
    "roles.consumer_registers": [
        (R, {"roles__consumer_registers": n}, n in (160, 232)) for n in (32, 160, 228, 232, 240)
    ],
    "cluster.m": [(R, {"cluster__m": n}, n in (1, 2, 8)) for n in (0, 1, 2, 3, 8, 16)]
    + [(W, {"cluster__m": 2}, False)],
    "cluster.n": [(R, {"cluster__n": n}, n in (2, 8)) for n in (0, 2, 3, 8, 16)],
    "cluster.k": [(R, {"cluster__k": n}, n in (1, 2, 4)) for n in (0, 1, 2, 3, 4, 8)]
    + [
        (R, {"cluster__k": 2, "cluster__m": 2}, False),
        (R, {"cluster__k": 2, "roles__form": "pingpong"}, False),
        (R, {"cluster__k": 8, "epilogue__through": "registers"}, True),
        (R, {"cluster__k": 16, "epilogue__through": "registers"}, False),
        (R, {"cluster__k": 2, "epilogue__columns": 32}, True),
        (R, {"cluster__k": 2, "epilogue__columns": 64}, False),
        (W, {"cluster__k": 2}, False),
    ],
    "cluster.share": [
        (R, {"cluster__k": 2, "cluster__share": s}, s != "first") for s in ("last", "first")
    ]
    + [
        (R, {"cluster__share": "last"}, False),  # nobody to share with
        (R, {"cluster__share": "last", "cluster__k": 8}, False),  # shares narrower than a panel
        (R, {"cluster__share": "last", "cluster__k": 2, "epilogue__through": "registers"}, False),
    ],
    "cluster.columns": [
        (R, {"cluster__k": 2, "cluster__share": share, "cluster__columns": n}, n == 16)
        for share, n in (
            ("last", -1),
            ("last", 12),
            ("all", 16),
            ("last", 64),
        )
    ]
    + [(R, {"cluster__columns": 8}, False)],
    "exchange": [
        (W, {"exchange": True}, True),
        (R, {"exchange": True, "epilogue__through": "lines"}, True),
        (R, {"exchange": True, "epilogue__through": "registers", "cluster__k": 2}, True),
        (R, {"exchange": True}, False),  # the copy engine moves rows of n: those of results are m
    ],
    "raster.along": [(W, {"raster__along": a}, a in "mn") for a in ("m", "n", "k")],
    # Of products that go on with sums more (tests/machine/test_machine_rest.py).
    "raster.run": [(one, {"raster__run": n}, n == 1) for one in (W, R) for n in (0, 1, 2)],
    # Of chains more (tests/machine/test_machine_row_order.py).
    "raster.order": [
        (one, {"raster__order": order}, order == "matrix")
        for one in (W, R)
        for order in ("matrix", "longest", "pairs", "k")
    ],
    "raster.group": [(W, {"raster__group": n}, n > 0) for n in (0, 1, 1000)],
    "smem.swizzle": [
        (W, {"smem__swizzle": name}, legal)
        for name, legal in (("none", True), ("xor4_shift0", True), ("xor8_shift0", False))
    ]
    + [(R, {"smem__swizzle": "none"}, False)],
    "epilogue.through": [(W, {"epilogue__through": t}, t != "tma") for t in ("registers", "tma")]
    + [(R, {"epilogue__through": t}, t != "smem") for t in ("registers", "tma", "smem")],
    "epilogue.row_warps": [
        (W, {"epilogue__row_warps": n}, n in (1, 2, 4, 8)) for n in (0, 1, 2, 3, 4, 7, 8, 9, 16)
    ],
    "epilogue.row_words": [
        (W, {"epilogue__row_words": n}, 0 <= n <= 16) for n in (-1, 0, 1, 3, 16, 17)
    ],
    "epilogue.rows": [(W, {"epilogue__rows": r}, r == "after") for r in ("after", "tile", "row")],
    "epilogue.slots": [(R, {"epilogue__slots": n}, n >= 1) for n in (0, 1, 2, 3)],
    "epilogue.prefetch": [(R, {"epilogue__prefetch": n}, n >= 1) for n in (0, 1, 3)],
    "epilogue.columns": [
        (R, {"epilogue__columns": n}, n in (0, 16, 32, 64)) for n in (0, 8, 16, 24, 32, 64, 128)
    ]
    + [(W, {"epilogue__columns": 16}, False)],
}


def flat() -> Iterator[Any]:
    """Every case; of a field's legal values, which take longer, the first is tried in haste."""
    for field, cases in CASES.items():
        first = next((case for case in cases if case[2]), None)
        for case in cases:
            slow = case[2] and case is not first
            yield pytest.param(field, *case, marks=[pytest.mark.slow] * slow)


# Fields whose rules are below.
RULES = {"pipeline.distance", "pipeline.fragments", "pipeline.lookahead", "pipeline.across"} | {
    "pipeline.in_flight",
    "pipeline.overlap",
    "pipeline.together",
}


def a_name(case: Any) -> str:
    if isinstance(case, Schedule):
        return "warps" if case is WARPS else "roles"
    return re.sub(r"\w+=|[^\w,.]+", " ", str(case)).strip()


@pytest.mark.parametrize(("field", "base", "changes", "legal"), [*flat()], ids=a_name)
def test_a_range_is_what_the_proofs_accept(field, base, changes, legal):
    assert accepted(changed(base, **changes)) is legal


# --- rules between fields
def distance_is_legal(stages: int, distance: int, order: tuple[str, ...], copies: str) -> bool:
    if copies == "spread":
        return 1 <= distance <= stages - 1
    if order[0] == "copy":
        return 0 <= distance <= stages - 1
    return 1 <= distance <= stages


DISTANCES = [
    (stages, distance, order, copies)
    for stages in (1, 2, 3)
    for distance in range(stages + 2)
    for order in (("mma", "copy"), ("copy", "mma"))
    for copies in ("whole", "spread")
]
EDGES = [case for case in DISTANCES if case[0] == 2 and case[1] != 1]


@pytest.mark.parametrize(("stages", "distance", "order", "copies"), EDGES)
def test_distances(stages, distance, order, copies):
    pipeline = Pipeline(stages, distance, order, copies=copies)
    wanted = distance_is_legal(stages, distance, order, copies)
    assert accepted(replace(WARPS, pipeline=pipeline)) is wanted


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize(("stages", "distance", "order", "copies"), DISTANCES)
def test_all_distances(stages, distance, order, copies, across):
    pipeline = Pipeline(stages, distance, order, copies=copies, across=across)
    wanted = distance_is_legal(stages, distance, order, copies)
    assert accepted(replace(WARPS, pipeline=pipeline)) is wanted


def lookahead_is_legal(steps: int, fragments: int, lookahead: int, across: bool) -> bool:
    if not across:
        return lookahead < fragments or steps <= fragments
    if lookahead >= fragments or lookahead >= steps:
        return lookahead == 0
    # Step j of the next tile is loaded before the last `lookahead - j` steps of this one are done.
    return not any(
        j % fragments == step % fragments
        for j in range(lookahead)
        for step in range(steps - lookahead + j, steps)
    )


LOOKAHEADS = list(itertools.product((1, 2, 3, 4), (1, 2, 3), (0, 1, 2, 3), (True, False)))
EDGES_OF_LOOKAHEAD = [
    (3, 2, 1, True),
    (2, 2, 2, True),
    (2, 1, 1, True),
    (4, 3, 2, True),
    (4, 2, 2, False),
    (2, 2, 3, False),
    (1, 1, 0, True),
]


def check_lookahead(steps, fragments, lookahead, across):
    pipeline = Pipeline(fragments=fragments, lookahead=lookahead, across=across)
    schedule = changed(replace(WARPS, pipeline=pipeline), tile__cta__k=steps * STEP)
    assert accepted(schedule) is lookahead_is_legal(steps, fragments, lookahead, across)


@pytest.mark.parametrize(("steps", "fragments", "lookahead", "across"), EDGES_OF_LOOKAHEAD)
def test_lookaheads(steps, fragments, lookahead, across):
    check_lookahead(steps, fragments, lookahead, across)


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize(("steps", "fragments", "lookahead", "across"), LOOKAHEADS)
def test_all_lookaheads(steps, fragments, lookahead, across):
    check_lookahead(steps, fragments, lookahead, across)


@pytest.mark.parametrize(("stages", "in_flight"), [(1, 0), (1, 1), (2, 1), (2, 2), (4, 3), (4, 4)])
def test_products_in_flight(stages, in_flight):
    schedule = changed(ROLES, pipeline__stages=stages, pipeline__in_flight=in_flight)
    assert accepted(schedule) is (in_flight <= stages - 1)


def promoted(x, s, w):
    """Sums in blocks of 128."""
    return (x * pg.repeat(s, 128, axis=1)) @ w.T


@pytest.mark.parametrize("overlap", [0, 1, 2, 3, 4, 8, 9, 10])
def test_runs_of_blocks_that_are_promoted_beside_products(overlap):
    """An even number, as inner sums have registers in turns."""
    base = changed(
        ROLES, tile=Tile(CtaTile(64, 64, 128), WarpTile(64, 64)), pipeline__overlap=overlap
    )
    program = promoted, ("e4m3[M,256]", "f32[M,2]", "e4m3[N,256]"), {"M": 64, "N": 64}
    if overlap in (1, 2, 4, 8):
        code(base, *program)
        return
    with pytest.raises(PolygenError, match=r"pipeline\.overlap") as caught:
        code(base, *program)
    assert caught.value.nearest or "Nearest" in str(caught.value)


def scaled(x, g, w):
    """Fragments that consumers make."""
    return (x * g) @ w.T


@pytest.mark.parametrize("together", [0, 1, 2, 3, 4, 8])
def test_steps_that_are_made_together(together):
    """A divisor of the slots of fragments, which are one of the steps of a k tile."""
    base = changed(
        ROLES, tile=Tile(CtaTile(64, 64, 64), WarpTile(64, 64)), roles__computes="consumer"
    )
    base = changed(base, pipeline__fragments=4, pipeline__together=together)
    program = scaled, ("bf16[M,256]", "bf16[256]", "bf16[N,256]"), {"M": 64, "N": 64}
    if together in (1, 2, 4):
        code(base, *program)
        return
    with pytest.raises(PolygenError, match=r"pipeline\.together") as caught:
        code(base, *program)
    assert caught.value.nearest or "Nearest" in str(caught.value)


def test_only_fragments_that_consumers_make_are_made_together():
    with pytest.raises(PolygenError, match=r"pipeline\.together = 2 \(it is of fragments"):
        compiled(changed(ROLES, pipeline__together=2))


def test_the_producer_has_no_more_registers_than_consumers():
    schedule = changed(ROLES, roles__producer_registers=40, roles__consumer_registers=32)
    with pytest.raises(PolygenError) as caught:
        compiled(schedule)
    assert "roles.producer_registers = 32" in caught.value.nearest


# --- fields that decide nothing
DOTS = Schedule(
    device="sm_90a",
    atom="dot",
    tile=Tile(CtaTile(4, 8, 512), WarpTile(4, 1)),
    epilogue=Epilogue("registers"),
)
MADE = changed(ROLES, roles__computes="consumer", epilogue__through="registers")
PLAIN = (lambda x, w, r: pg.relu(x @ w.T + r), ("bf16[M,K]", "bf16[N,K]", "bf16[M,N]"), SIZES)
WIDENED = (
    lambda q, s, x: (q.astype("bf16") * s[:, None]) @ x.T,
    ("s8[M,K]", "bf16[M]", "bf16[N,K]"),
    SIZES,
)
CHAIN = (
    lambda q, k, v: pg.softmax(q @ k.mT, axis=-1) @ v,
    ("bf16[H,S,64]", "bf16[H,L,64]", "bf16[H,L,64]"),
    None,
)
OF_CHAINS = Schedule(
    device="sm_90a",
    tile=Tile(CtaTile(128, 64, 128), WarpTile(64, 64)),
    pipeline=Pipeline(stages=2),
    roles=Roles("cooperative", 24, 240),
    epilogue=Epilogue("registers"),
)
OF_WARPS = Schedule(
    device="sm_80",
    tile=Tile(CtaTile(64, 64, 64), WarpTile(16, 64)),
    pipeline=Pipeline(stages=3, distance=2, fragments=2, lookahead=1),
    epilogue=Epilogue("registers"),
)
FAMILIES = {
    "warps": (WARPS, PLAIN),
    "warps, from registers": (changed(WARPS, epilogue__through="registers"), PLAIN),
    "lanes": (DOTS, PLAIN),
    "roles": (ROLES, PLAIN),
    "roles, from registers": (changed(ROLES, epilogue__through="registers"), PLAIN),
    "roles, in turns": (
        changed(
            ROLES,
            tile=Tile(CtaTile(64, 64, 64), WarpTile(64, 64)),
            roles=Roles("pingpong", 40, 152),
        ),
        PLAIN,
    ),
    "roles, made fragments": (MADE, WIDENED),
    "a chain": (OF_CHAINS, CHAIN),
    "a chain, in panels": (changed(OF_CHAINS, epilogue__through="tma"), CHAIN),
    "a chain, by warps": (OF_WARPS, CHAIN),
}
# Another value of every field that is neither a name nor a size.
OTHERS: dict[str, Any] = {
    "pipeline.stages": 4,
    "pipeline.distance": 1,
    "pipeline.order": ("copy", "mma"),
    "pipeline.fragments": 1,
    "pipeline.lookahead": 0,
    "pipeline.copies": "spread",
    "pipeline.across": False,
    "pipeline.in_flight": 0,
    "pipeline.overlap": 2,
    "pipeline.together": 2,
    "loops.mma": ("m", "n", "k"),
    "loops.k": "backward",
    "loops.grid": ("n", "m"),
    "loops.phases": ("epilogue", "main"),
    "roles.computes": "before",
    "roles.turns": 3,
    "roles.producer_registers": 32,
    "roles.consumer_registers": 144,
    "cluster.m": 2,
    "cluster.n": 2,
    "cluster.k": 2,
    "cluster.share": "last",
    "cluster.columns": 8,
    "raster.along": "n",
    "raster.group": 4,
    "raster.run": 2,
    "raster.order": "pairs",
    "smem.swizzle": "none",
    "epilogue.slots": 1,
    "epilogue.prefetch": 1,
    "epilogue.columns": 16,
    "epilogue.rows": "tile",
    "epilogue.row_warps": 4,
    "epilogue.row_words": 2,
    "min_blocks": 2,
    "exchange": True,
    "functions": "short",
    "tile.part": 256,
    "tile.pixels": (128,),
    "tile.joined": True,
    "launch.realign": True,
    "launch.dependent": True,
    "launch.trigger": "loads",
    "launch.ahead": True,
}
SIZED = {"name", "device", "atom", "roles.form", "epilogue.through"} | {
    f"tile.{tile}.{dim}"
    for tile in ("cta", "warp")
    for dim in "mnk"
    if (tile, dim) != ("warp", "k")
}
# What the document says to decide nothing there, for lack of panels, of rows that need anything, or
# of ranges.
_NO_PANELS = {"epilogue.slots", "epilogue.prefetch"}
SAID = {
    name: {"loops.grid", "epilogue.row_warps", "epilogue.row_words"}
    | ({"launch.realign", "launch.trigger"} if name.startswith("roles") else set())
    for name in FAMILIES
}
SAID["roles"] |= {"tile.pixels"}
for name in ("warps", "warps, from registers", "lanes", "roles, from registers"):
    SAID[name] |= _NO_PANELS
SAID["roles, made fragments"] |= _NO_PANELS
SAID["a chain"] |= {"epilogue.slots", "raster.along", "functions", "launch.trigger"}
SAID["a chain, in panels"] |= {"raster.along", "functions", "launch.trigger"}
SAID["a chain, by warps"] = {"epilogue.row_warps", "epilogue.row_words", "functions"} | _NO_PANELS


def test_every_field_has_another_value():
    fields = set(leaves(Schedule()))
    assert set(OTHERS) | SIZED == fields and not set(OTHERS) & SIZED


def code(schedule: Schedule, function: Any, signature: tuple[str, ...], sizes: Any) -> str:
    """The kernel's text, without comments, which say the schedule."""
    program = pg.fuse(function, name="f")
    made = program.compile(*signature, arch=schedule.device, sizes=sizes, schedule=schedule)
    lines = (line.partition("//")[0].rstrip() for line in made.source.splitlines())
    return "\n".join(filter(None, lines))


# Ways out and turns of the families that the fast tests go through.
SLOW = ("warps, from registers", "roles, from registers", "roles, in turns", "a chain, in panels")


@pytest.mark.parametrize(
    "family", [pytest.param(f, marks=[pytest.mark.slow] * (f in SLOW)) for f in FAMILIES]
)
def test_no_field_is_ignored_in_silence(family):
    """Every field changes the kernel, is refused, or the document says that it decides nothing."""
    base, program = FAMILIES[family]
    usual, ignored = code(base, *program), set()
    for path, value in OTHERS.items():
        other = changed(base, **{path.replace(".", "__"): value})
        assert other != base, path
        try:
            if code(other, *program) == usual:
                ignored.add(path)
        except PolygenError as error:
            assert error.nearest or "Leave it out" in str(error) or "Nearest" in str(error), path
    assert ignored == SAID[family]


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("warps", {"pipeline.in_flight", "roles.producer_registers", "roles.consumer_registers"}),
        ("lanes", {"pipeline.stages", "pipeline.distance", "pipeline.copies", "smem.swizzle"}),
        ("roles", {"pipeline.distance", "pipeline.fragments", "pipeline.lookahead"}),
        ("roles, made fragments", {"pipeline.distance", "pipeline.lookahead", "pipeline.across"}),
        ("a chain", {"pipeline.distance", "pipeline.fragments", "loops.k", "epilogue.columns"}),
        (
            "a chain",
            {"exchange", "cluster.share", "raster.run", "launch.dependent", "launch.ahead"},
        ),
    ],
)
def test_what_decides_nothing_is_refused_by_name(family, fields):
    base, (function, signature, sizes) = FAMILIES[family]
    for field in fields:
        other = changed(base, **{field.replace(".", "__"): OTHERS[field]})
        with pytest.raises(PolygenError, match=f"{re.escape(field)} .*it decides nothing there"):
            code(other, function, signature, sizes)


# --- the document
def leaves(record: Any, prefix: str = "") -> list[str]:
    found = []
    for field in dataclasses.fields(record):
        value, path = getattr(record, field.name), f"{prefix}{field.name}"
        found += leaves(value, f"{path}.") if is_dataclass(value) else [path]
    return found


def documented() -> set[str]:
    """The fields of the document's table; ``tile.cta.m`, `.n`` are two."""
    text = (schedules_folder() / "README.md").read_text(encoding="utf-8")
    found = set()
    for cell in re.findall(r"^\| (`.+?) \|", text, re.MULTILINE):
        first, *others = re.findall(r"`([^`]+)`", cell)
        found |= {first, *(first.rpartition(".")[0] + other for other in others)}
    return found


def test_every_field_is_documented_and_tested():
    fields = set(leaves(Schedule()))
    assert documented() == fields | {"format"}
    assert set(CASES) | RULES == fields
    for field, cases in CASES.items():
        if field != "name":
            assert not all(legal for *_, legal in cases), field
