"""A plan whose leaves work on other cells, or at other addresses, than the program's is refused."""

import dataclasses
from functools import cache

import pytest

from polygen import fuse, relu
from polygen.errors import VerifyError
from polygen.lower.accesses import Step
from polygen.lower.plan import KernelPlan
from polygen.lower.result_work import Epilogue, Finish, Lines, Store
from polygen.lower.verify import verify
from polygen.lower.work import Combine, Copy, Fill, Load, Locate, Move, Product, Send, Stream
from polygen.schedule.load import load_schedule, schedules_folder
from polygen.schedule.model import Epilogue as Way

SIGNATURE = ("bf16[2,M,64]", "bf16[2,B,128,64]", "bf16[B,64,64]", "bf16[B,2,64]", "bf16[B,M,64]")


def function(x, u, v, b, r):
    """Two products of one operand, in batches, with slices on the way in and in the epilogue."""
    return relu(x[1] @ u[0, :, ::2].mT + b[:, 1:, :]) * (x[1] @ v) + r


@cache
def plan(family: str) -> KernelPlan:
    """The plan of one kernel by warps, and of one by roles that can move everything in boxes."""
    if family in ("threads", "exchanged", "lanes"):
        return {"threads": filled, "exchanged": exchanged, "lanes": streamed}[family]()
    if family == "warps":
        schedule, arch = "sm_80/64x64x64_w32x32_s4.toml", "sm_80"
    elif family == "shared":  # by roles, blocks of a cluster share the sums
        schedule, arch = "sm_90a/cooperative_64x64x64_s11_k2.toml", "sm_90a"
    else:
        schedule, arch = "sm_90a/cooperative_128x64x64_w64_s7_e2p1.toml", "sm_90a"
    one = load_schedule(schedules_folder() / schedule)
    one = dataclasses.replace(one, pipeline=dataclasses.replace(one.pipeline, stages=4))
    return fuse(function).compile(*SIGNATURE, arch=arch, schedule=one).passes.plan


@cache
def filled() -> KernelPlan:
    """The plan of a kernel whose threads fill rings and store results line by line."""
    one = load_schedule(schedules_folder() / "sm_90a/cooperative_128x64x64.toml")
    one = dataclasses.replace(
        one,
        roles=dataclasses.replace(one.roles, producer_registers=152, consumer_registers=176),
        pipeline=dataclasses.replace(one.pipeline, stages=3),
        epilogue=Way("lines"),
    )
    odd = fuse(lambda x, w, r: x @ w.T + r)
    signature = ("bf16[M,K]@2", "bf16[N,K]@2", "bf16[M,N]@2")
    return odd.compile(*signature, arch="sm_90a", schedule=one).passes.plan


@cache
def exchanged() -> KernelPlan:
    """The plan of a kernel whose operands are exchanged, and whose blocks share sums."""
    folder = schedules_folder() / "sm_90a"
    one = load_schedule(folder / "cooperative_64x64x64_s11_k2_lines_exchanged.toml")
    one = dataclasses.replace(one, pipeline=dataclasses.replace(one.pipeline, stages=4))
    return fuse(lambda x, w, r: x @ w.T + r).compile(
        "bf16[M,K]", "bf16[N,K]", "bf16[M,N]", arch="sm_90a", schedule=one
    ).passes.plan  # fmt: skip


@cache
def streamed() -> KernelPlan:
    """The plan of a kernel of dot products by lanes."""
    one = load_schedule(schedules_folder() / "sm_80/dots_2x16x1024_w2x2_n16_f4_b2.toml")
    return fuse(lambda x, w, r: x @ w.mT + r).compile(
        "bf16[B,M,K]", "bf16[B,N,K]", "bf16[M,N]", arch="sm_80", schedule=one
    ).passes.plan  # fmt: skip


def edited(of: KernelPlan, kind: type, change, number: int = 0) -> KernelPlan:
    """The plan with the record of one leaf changed."""
    places = [n for n, leaf in enumerate(of.leaves) if isinstance(leaf.work, kind)]
    leaves = list(of.leaves)
    at = places[number]
    leaves[at] = dataclasses.replace(leaves[at], work=change(leaves[at].work))
    return dataclasses.replace(of, leaves=tuple(leaves))


def record(**changes):
    """Changes fields of a record."""
    return lambda work: dataclasses.replace(work, **changes)


def each(field, change):
    """Changes the first member of a tuple field."""

    def apply(work):
        first, *rest = getattr(work, field)
        return dataclasses.replace(work, **{field: (change(first), *rest)})

    return apply


def boxes(**changes):
    return each("boxes", record(**changes))


def axis(number, **changes):
    """Changes one axis of a box's map; the map among the arguments stays as it was."""

    def apply(one):
        axes = list(one.axes)
        axes[number] = dataclasses.replace(axes[number], **changes)
        return dataclasses.replace(one, axes=tuple(axes))

    return each("boxes", apply)


def corner(number, text):
    def apply(one):
        found = list(one.corner)
        found[number] = text
        return dataclasses.replace(one, corner=tuple(found))

    return each("boxes", apply)


def first_of_store(change):
    def apply(work):
        (panel, moved), *rest = work.panels
        return dataclasses.replace(work, panels=((panel, change(moved)), *rest))

    return apply


def source(**changes):
    return each("sources", record(**changes))


def filled_copy():
    return (
        next(leaf.work for leaf in filled().leaves if isinstance(leaf.work, Fill)).sources[0].copy
    )


def line(**changes):
    return each("moved", record(**changes))


MUTANTS = {
    "parts of the other product sent": (
        "shared", Send, lambda s: dataclasses.replace(s, landings=s.landings[::-1]), "works on",
    ),
    "parts of the other product added": (
        "shared", Combine, lambda c: dataclasses.replace(c, landings=c.landings[::-1]), "works on",
    ),
    "parts sent to one block too few": ("shared", Send, record(blocks=1), "copies bring 16384"),
    "parts of half the columns": (
        "shared", Send, each("landings", record(groups=2, sent=2)), "copies bring",
    ),
    "parts of another shape": (
        "shared", Send, each("landings", record(groups=2, sent=2, rows=2)), "parts of 16384 bytes",
    ),
    "parts added as other threads hold them": (
        "shared", Combine, each("landings", record(threads=64)), "and added as",
    ),
    "a range of k that begins with the first block's": (
        "shared", Move, corner(2, "k * 64"), "begin at",
    ),
    "a range of k that overlaps the next": (
        "shared", Move, corner(2, "(rank * (k_tiles - 1) + k) * 64"), "begin at",
    ),
    "every block finishes the first columns": (
        "shared", Finish, record(column="b_n * 64"), "block 1 finishes columns from 0 on",
    ),
    "results stored to the first block's columns": (
        "shared", Store,
        lambda s: dataclasses.replace(
            s,
            panels=tuple(
                (panel, dataclasses.replace(
                    moved, corner=tuple(text.replace(" + rank * 32", "") for text in moved.corner)
                )) for panel, moved in s.panels
            ),
        ), "begin at",
    ),
    "operands of a pair swapped": ("warps", Product, record(operands=("a", "b2")), "works on"),
    "operands of one product swapped": ("warps", Product, record(operands=("b", "a")), "works on"),
    "another product's sums": ("warps", Product, record(total="sum_1"), "works on"),
    "fragments of another operand": ("warps", Load, record(operand="b"), "it moves b"),
    "another ring": ("warps", Load, record(buffer="ring_b"), "works on"),
    "a copy into another ring": ("warps", Copy, record(buffer="ring_b"), "works on"),
    "a batch index left out": ("warps", Copy, record(base=()), "is accessed at", 1),
    "a slice that begins at 0": ("warps", Copy, record(base=()), "is accessed at"),
    "a step that is not the slice's": (
        "warps", Copy, record(lie=((Step("u_stride2"),), (Step("1"),))),
        "accessed at", 1,
    ),
    "rows and columns exchanged": (
        "warps", Copy, lambda c: dataclasses.replace(c, lie=c.lie[::-1]),
        "is accessed at",
    ),
    "another array": (
        "warps", Copy,
        lambda c: dataclasses.replace(c, tensor=dataclasses.replace(c.tensor, name="y")), "reads y",
    ),
    "an end that is not the operand's": ("warps", Copy, record(extents=("K", "M")), "ends at"),
    "a bias without its batch": ("warps", Epilogue, each("reads", record(base=())), "accessed at"),
    "a bias along rows": (
        "warps", Epilogue, each("reads", record(m=(Step("1"),), n=())), "accessed at",
    ),
    "values of two products exchanged": (
        "warps", Epilogue,
        lambda e: dataclasses.replace(
            e, sums=tuple(zip((v for v, _ in e.sums), (t for _, t in e.sums[::-1]), strict=True))
        ), "sums are read as",
    ),
    "a result of another matrix": (
        "warps", Epilogue, each("writes", record(base=())), "accessed at",
    ),
    "matrices that no block counts": ("roles", Locate, record(batches=()), "are not counted"),
    "operands of a pair swapped, by roles": (
        "roles", Product, record(operands=("a", "b2")), "works on",
    ),
    "sums of a pair swapped, by roles": ("roles", Product, record(total="sum_1"), "works on"),
    "boxes for another ring": ("roles", Move, boxes(buffer="ring_b"), "works on"),
    "a box of the first matrix": ("roles", Move, corner(0, "0"), "begin at", 1),
    "a box of the tile before": ("roles", Move, corner(1, "b_m * 64"), "begin at"),
    "a box of the next k tile": ("roles", Move, corner(2, "(k + 1) * 64"), "begin at"),
    "another tensor map": ("roles", Move, axis(0, start=0), "is no map of"),
    "sums given in another order": (
        "roles", Finish,
        lambda f: dataclasses.replace(
            f, epilogue=dataclasses.replace(f.epilogue, sums=f.epilogue.sums[::-1])
        ), "works on",
    ),
    "a panel stored to the first matrix": (
        "roles", Store,
        first_of_store(lambda m: dataclasses.replace(m, corner=("0", *m.corner[1:]))), "begin at",
    ),
    "threads that fill from another array": (
        "threads", Fill, source(copy=dataclasses.replace(filled_copy(), base=("64",))), "accessed",
    ),
    "threads that fill another ring": (
        "threads", Fill, source(copy=dataclasses.replace(filled_copy(), buffer="ring_b")),
        "works on", 1,
    ),
    "rows that are read twice": ("threads", Fill, source(row="own / 8"), "every chunk"),
    "columns of other rows": ("threads", Fill, source(column="own % 4 * 8"), "every chunk"),
    "chunks that are not swizzled": (
        "threads", Fill, source(place="part * 2048 + own * 16"), "the copy engine would not",
    ),
    "chunks swizzled by other rows": (
        "threads", Fill, source(place="part * 2048 + (own ^ (own >> 4 & 7)) * 16"),
        "the copy engine would not",
    ),
    "rows that are less aligned": ("threads", Fill, source(alignment=4), "rows at multiples"),
    "pieces counted from elsewhere": ("threads", Fill, source(first=1), "begin at 1"),
    "too few rounds": ("threads", Fill, record(rounds=0), "0 rounds"),
    "a panel of another tile": ("threads", Lines, line(row="b_m * 64 + p / 1 * 64"), "begin at"),
    "a panel from another column": ("threads", Lines, line(column="b_n * 64 + 16"), "begin at"),
    "rows of the result where its columns are": (
        "exchanged", Lines, line(row="b_n * 64", column="b_m * 64 + rank * 32"), "begin at",
    ),
    "every block stores the first columns": (
        "exchanged", Lines, line(column="b_n * 64"), "begin at",
    ),
    "columns of the other block": (
        "exchanged", Lines, line(column="b_n * 64 + (1 - rank) * 32"), "begin at",
    ),
    "weights where x is": ("exchanged", Move, corner(0, "b_n * 64"), "begin at"),
    "rows of another warp": (
        "lanes", Stream, record(first="b_m * 2 + w_n * 2"), "begin at", 0,
    ),
    "rows of another block": ("lanes", Stream, record(first="b_n * 32 + w_n * 2"), "begin at", 1),
    "a slot more than there are": ("lanes", Stream, record(slots=3), "load_b holds 3", 1),
    "chunks of the other matrix": (
        "lanes", Stream,
        lambda work: dataclasses.replace(work, copy=dataclasses.replace(work.copy, base=())),
        "is accessed at", 0,
    ),
    "products of other registers": (
        "lanes", Product, lambda p: dataclasses.replace(p, operands=("b", "a")), "works on",
    ),
    "an access that is not the epilogue's": (
        "threads", Lines, lambda work: line(access=dataclasses.replace(work.moved[0].access))(work),
        "none of the epilogue's",
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", ["warps", "roles", "shared", "threads", "exchanged", "lanes"])
def test_plans_are_sound(family):
    assert verify(plan(family)) is plan(family)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_leaf_that_works_elsewhere_is_refused(name):
    family, kind, change, message, *number = MUTANTS[name]
    with pytest.raises(VerifyError, match=message):
        verify(edited(plan(family), kind, change, *number))


@pytest.mark.parametrize("family", ["warps", "roles"])
def test_a_launch_that_counts_other_matrices_is_refused(family):
    of = plan(family)
    launch = dataclasses.replace(of.launch, batches=())
    with pytest.raises(VerifyError, match="are not counted"):
        verify(dataclasses.replace(of, launch=launch))
