"""Plans whose leaves do something else than the program says, for the checks to refuse."""

import dataclasses

from polygen.lower.plan import KernelPlan
from polygen.lower.result_work import Epilogue, Lines


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
