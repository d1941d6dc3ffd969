"""Asynchronous work in groups: closing one, and waiting until few are left."""

from __future__ import annotations

from polygen.emit.leaf.table import Text, leaf
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.sync_work import Groups


@leaf("commit", "cp.async", Groups)
def _(plan: KernelPlan, one: Leaf, work: Groups) -> Text:
    return _one('asm volatile("cp.async.commit_group;" ::: "memory");', work)


@leaf("retire", "cp.async", Groups)
def _(plan: KernelPlan, one: Leaf, work: Groups) -> Text:
    return _one(f'asm volatile("cp.async.wait_group {work.pending};" ::: "memory");', work)


@leaf("commit", "wgmma", Groups, needs=("wgmma",))
def _(plan: KernelPlan, one: Leaf, work: Groups) -> Text:
    close = 'asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");'
    return _one(close, work)


@leaf("retire", "wgmma", Groups, needs=("wgmma",))
def _(plan: KernelPlan, one: Leaf, work: Groups) -> Text:
    wait = f'asm volatile("wgmma.wait_group.sync.aligned {work.pending};" ::: "memory");'
    return _one(wait, work)


@leaf("retire", "tma", Groups)
def _(plan: KernelPlan, one: Leaf, work: Groups) -> Text:
    elected = f"if (thread % {plan.device.group_threads} == 0)"
    wait = f'asm volatile("cp.async.bulk.wait_group.read {work.pending};" ::: "memory");'
    return _one(f"{elected} {wait}", work)


def _one(body: str, work: Groups) -> Text:
    return Text(body, work.note, inline=True)
