"""Operands that consumers cannot compute in their registers: what is refused, and what instead."""

from dataclasses import replace

import pytest

import polygen as pg
from polygen.errors import ScheduleError, ScheduleFileError
from polygen.schedule.load import dumps, loads
from polygen.schedule.model import (
    Cluster,
    CtaTile,
    Epilogue,
    Pipeline,
    Roles,
    Schedule,
    Tile,
    WarpTile,
)

PLAIN = Schedule(
    name="made",
    device="sm_90a",
    tile=Tile(CtaTile(64, 16, 64), WarpTile(64, 16)),
    pipeline=Pipeline(stages=3),
    roles=Roles("cooperative", 40, 168, "consumer"),
    epilogue=Epilogue(through="registers"),
)


def refused(words, function, *types, schedule=PLAIN, error=ScheduleError):
    with pytest.raises(error) as caught:
        pg.fuse(function).compile(*types, arch="sm_90a", schedule=schedule)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_arguments_alone():
    words = ('roles.computes = "consumer"', "are arguments", 'roles.computes = "producer"')
    refused(words, lambda x, w: x @ w.T, "bf16[M,K]", "bf16[N,K]")


def test_the_right_operand_is_computed():
    words = ("left operands that are arguments", "exchange = true")
    refused(words, lambda x, w: x @ pg.relu(w).T, "bf16[M,K]", "bf16[N,K]")
    words = ("left operands that are arguments", "exchange = false")
    given = replace(PLAIN, exchange=True)
    refused(words, lambda x, w: pg.relu(x) @ w.T, "bf16[M,K]", "bf16[N,K]", schedule=given)


@pytest.mark.parametrize(
    "function, types",
    [
        (lambda x, y, w: (x * y) @ w.T, ("bf16[M,K]", "bf16[M,K]", "bf16[N,K]")),
        (lambda x, y, w: (x[:, None] * y) @ w.T, ("bf16[M]", "bf16[K]", "bf16[N,K]")),
        (lambda x, w: pg.relu(x) @ w.T, ("bf16[M,K]@2", "bf16[N,K]")),
        (lambda x, w: pg.relu(x[:, ::2]) @ w.T, ("bf16[M,64]", "bf16[N,32]")),
        (lambda x, w: pg.relu(x) @ w.T, ("tf32[M,K]", "tf32[N,K]")),
    ],
    ids=["two matrices", "vectors alone", "odd rows", "not adjacent", "tf32 as stored"],
)
def test_nothing_that_the_copy_engine_brings(function, types):
    words = ("the copy engine brings the elements of one matrix", 'roles.computes = "producer"')
    refused(words, function, *types)


def test_blocks_that_share_operands():
    given = replace(PLAIN, cluster=Cluster(m=2))
    words = ("a cluster of 2 x 1", "of which consumers compute fragments", "Use a cluster of 1")
    refused(words, lambda x, w: pg.relu(x) @ w.T, "bf16[M,K]", "bf16[N,K]", schedule=given)


def test_slots_that_do_not_divide_the_steps():
    given = replace(PLAIN, pipeline=Pipeline(stages=3, fragments=3))
    words = ("pipeline.fragments = 3 of 4 steps", "known only at run time", "fragments = 1")
    refused(words, lambda x, w: pg.relu(x) @ w.T, "bf16[M,K]", "bf16[N,K]", schedule=given)


def test_files_name_who_computes():
    assert loads(dumps(PLAIN), "a test") == PLAIN
    assert 'computes = "consumer"' in dumps(PLAIN)
    usual = replace(PLAIN, roles=replace(PLAIN.roles, computes="producer"))
    assert "computes" not in dumps(usual)
    with pytest.raises(ScheduleFileError, match=r"roles\.computes: 'consumers' is unknown"):
        loads(dumps(PLAIN).replace('"consumer"', '"consumers"'), "a test")
