"""Plans whose leaves do something else than the program says, for the checks to refuse."""

import dataclasses
from functools import lru_cache

from matrix import roles

import polygen as pg
from polygen.lower.plan import KernelPlan
from polygen.lower.result_work import Epilogue, Lines
from polygen.poly.tile_program import TileProgram
from polygen.schedule.load import load_schedule, schedules_folder

_SHIPPED = {
    "roles": ("sm_90a", "sm_90a/cooperative_128x64x64.toml"),
    "warps": ("sm_80", "sm_80/64x64x64_w32x32_s4.toml"),
}


@lru_cache
def plan(name: str) -> KernelPlan:
    """A kernel of "roles", of "warps", or of a "cluster" of two by two blocks."""
    arch, path = _SHIPPED.get(name, ("sm_90a", ""))
    schedule = load_schedule(schedules_folder() / path) if path else roles(cluster=(2, 2))
    kernel = pg.fuse(lambda x, w, b: pg.relu(x @ w.T - b), name="bias").compile(
        "bf16[M,K]", "bf16[N,K]", "bf16[N]", arch=arch, schedule=schedule
    )
    return kernel.passes.plan


def with_program(of: KernelPlan, program: TileProgram) -> KernelPlan:
    """The plan as if another tile program had been proved."""
    proved = dataclasses.replace(of.synchronised, program=program)
    return dataclasses.replace(of, synchronised=proved)


def with_access(of: KernelPlan, name: str, **changes) -> KernelPlan:
    """The plan whose leaves all access one array of the epilogue otherwise.

    Args:
        of: the plan.
        name: of the array.
        changes: fields of the records of its reads and writes.
    """
    made = {
        one: dataclasses.replace(one, **changes) if one.tensor.name == name else one
        for one in (*of.epilogue.reads, *of.epilogue.writes)
    }  # leaves that share an access go on sharing it

    def change(work):
        if isinstance(work, Epilogue):
            reads, writes = (tuple(made[one] for one in each) for each in (work.reads, work.writes))
            return dataclasses.replace(work, reads=reads, writes=writes)
        if isinstance(work, Lines):
            moved = (
                dataclasses.replace(m, access=made.get(m.access, m.access)) for m in work.moved
            )
            return dataclasses.replace(work, moved=tuple(moved))
        if hasattr(work, "epilogue"):
            return dataclasses.replace(work, epilogue=change(work.epilogue))
        return work

    leaves = (dataclasses.replace(leaf, work=change(leaf.work)) for leaf in of.leaves)
    return dataclasses.replace(of, leaves=tuple(leaves))
