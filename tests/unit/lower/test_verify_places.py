"""Plans whose agents, lanes or blocks have other parts of a tile than their own are refused."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from plan_changes import plan

from polygen.errors import VerifyError
from polygen.lower.plan import KernelPlan
from polygen.lower.result_work import Epilogue, Finish
from polygen.lower.verify import verify

Change = Callable[[KernelPlan], KernelPlan]


def works(statement: str, **changes) -> Change:
    def change(of):
        leaves = tuple(
            replace(one, work=replace(one.work, **changes)) if one.statement == statement else one
            for one in of.leaves
        )
        return replace(of, leaves=leaves)

    return change


def finished(make: Callable[[Epilogue], dict]) -> Change:
    """The epilogue changed in all leaves that have it."""

    def change(of):
        def other(work):
            if isinstance(work, Epilogue):
                return replace(work, **make(work))
            if hasattr(work, "epilogue"):
                return replace(work, epilogue=other(work.epilogue))
            return work

        return replace(of, leaves=tuple(replace(one, work=other(one.work)) for one in of.leaves))

    return change


def panels(**changes) -> Change:
    def change(of):
        (work,) = of.of(Finish)
        made = tuple(replace(one, **changes) for one in work.results)
        return works("finish", results=made)(of)

    return change


def launch(**changes) -> Change:
    return lambda of: replace(of, launch=replace(of.launch, **changes))


def turned(e: Epilogue) -> dict:
    """Operands of a difference the other way round."""
    first, *others = e.statements
    return {"statements": (replace(first, args=first.args[::-1]), *others)}


def shared(**changes) -> Change:
    """The boxes of the first operand changed."""

    def change(of):
        work = of.leaf("fill").work
        return works("fill", boxes=(replace(work.boxes[0], **changes), *work.boxes[1:]))(of)

    return change


MISTAKES = {
    "a tile for the blocks of another row": ("cluster", shared(mask="10 << (rank % 2)")),
    "a tile for one block alone": ("cluster", shared(mask="1 << rank")),
    "the other block's part": ("cluster", shared(part="1 - rank / 2")),
    "a part for nobody": ("cluster", shared(parts=1)),
    "both consumers multiply the first rows": ("roles", works("multiply", parts=("", ""))),
    "rows of the consumer behind": (
        "roles", works("multiply", parts=(" + (group + 1) * 8192", "")),
    ),
    "sums of fewer columns": ("roles", works("multiply", columns=32)),
    "tiles numbered in other groups": ("roles", works("locate", group=3)),
    "tiles numbered the other way": ("roles", works("locate", along="n", across="m")),
    "a launch of larger tiles": ("roles", launch(tile_along=256)),
    "a launch of other groups": ("warps", launch(group=3)),
    "rounds of one matrix": ("warps", launch(layers=65535)),
    "rounds of persistent blocks": ("roles", launch(layers=65535)),
    "panels of the tile below": ("roles", works("finish", first_row="b_m * 128 + block * 64")),
    "columns of the next tile": ("roles", works("finish", column="b_n * 64 + 64")),
    "a lane's other columns": ("roles", works("finish", lane_column="lane % 4")),
    "elements of another size": ("roles", panels(element_bytes=4)),
    "statements left out": ("roles", finished(lambda e: {"statements": e.statements[:-1]})),
    "a difference turned round": ("warps", finished(turned)),
    "rows of the warp beside": (
        "warps", finished(lambda e: {"row_base": e.row_base + " + w_m * 16"}),
    ),
    "columns of the next tile, from registers": (
        "warps", finished(lambda e: {"column_base": e.column_base + " + 64"}),
    ),
    "rows of another lane": ("warps", finished(lambda e: {"row_of_lane": "lane % 8"})),
    "another value is stored": (
        "warps", finished(lambda e: {"writes": tuple(replace(w, name="v0") for w in e.writes)}),
    ),
    "a tile of more rows": ("warps", works("copy_a", tile=128)),
    "half a k tile": ("warps", works("copy_b", tile_k=32)),
    "copies that are not waited for": ("warps", works("copy_a", asynchronous=False)),
    "fragments of another warp's rows": ("warps", works("load_a", warp_tile=64)),
    "fragments in fewer slots": ("warps", works("load_b", slots=1)),
    "sums that are not cleared": ("warps", works("zero", totals=())),
}  # fmt: skip


# Those of roles run always, on the plan that other tests have as well.
EVERY = [
    pytest.param(*case, id=name, marks=() if case[0] == "roles" else pytest.mark.slow)
    for name, case in MISTAKES.items()
]


@pytest.mark.parametrize(("which", "change"), EVERY)
def test_other_parts_are_refused(which, change):
    other = change(plan(which))
    assert other != plan(which)
    with pytest.raises(VerifyError):
        verify(other)


def test_a_tile_is_no_larger_than_its_slot():
    of = plan("roles")
    buffers = tuple(
        replace(one, slot_bytes=one.slot_bytes // 2) if one.name == "ring_a" else one
        for one in of.buffers
    )
    with pytest.raises(VerifyError, match="larger than the slots of ring_a"):
        verify(replace(of, buffers=buffers))
