"""Programs for targets before sm_80: those of the matrix without roles, and what else warps do.

No toolkit of CUDA 13 makes code for sm_70. Where there is none of CUDA 12, the text of its kernels
is compiled for sm_75, which knows its instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from matrix import CASES, HOPPER, Case

import polygen as pg
from polygen.errors import ToolchainMissing
from polygen.kernel import Kernel
from polygen.runtime.nvrtc_library import library
from polygen.schedule.load import shipped
from polygen.schedule.model import Schedule

TURING, VOLTA = "sm_75", "sm_70"
SIZES = {"M": 72, "N": 56, "K": 128}  # to optimise for


@dataclass(frozen=True, slots=True)
class Program:
    """One program, in types that a target has."""

    name: str
    make: Callable[[str, Schedule | str], Kernel]  # of a target and a schedule
    trial: tuple[tuple[str, int], ...] = ()  # sizes to run it at
    only: tuple[str, ...] = (TURING, VOLTA)

    def kernel(self, arch: str, schedule: Schedule | str = "auto") -> Kernel:
        """The kernel for a target."""
        return self.make(arch, schedule)


def _of_matrix() -> list[Program]:
    """The matrix's programs on f16; those on other types, and what names bf16, are left out."""
    found: dict[Any, Program] = {}
    for case in CASES:
        asked = " ".join(map(str, case.options.values()))
        signature = tuple((name, text.replace("bf16", "f16")) for name, text in case.signature)
        if case in HOPPER or case.schedule != "auto" or "bf16" in asked:
            continue
        if any("tf32" in text for _, text in signature):
            continue

        def make(arch: str, schedule: Schedule | str, made: Case = case) -> Kernel:
            types = tuple((name, text.replace("bf16", "f16")) for name, text in made.signature)
            return replace(made, arch=arch, schedule=schedule, signature=types).kernel()

        key = (case.expression, signature, case.sizes, asked)
        found.setdefault(key, Program(case.name.replace("bf16", "f16"), make, case.trial))
    return list(found.values())


def _known(signature: tuple[str, ...]) -> dict[str, int]:
    return {name: size for name, size in SIZES.items() if any(name in text for text in signature)}


def _more() -> list[Program]:
    """Several products, batches, folds, groups, computed operands, other sums."""

    def one(name: str, function: Callable[..., Any], *signature: str, **given: Any) -> Program:
        only = given.pop("only", (TURING, VOLTA))

        def make(arch: str, schedule: Schedule | str) -> Kernel:
            fused = pg.fuse(function, name=name)
            return fused.compile(
                *signature, arch=arch, schedule=schedule, sizes=_known(signature), **given
            )

        return Program(name, make, (), only)

    x, w = "f16[M,K]", "f16[N,K]"
    return [
        one("batches", lambda x, w: x @ w, "f16[B,M,K]", "f16[B,K,N]"),
        one("pair", lambda x, u, v: pg.silu(x @ u.T) * (x @ v.T), x, w, w),
        one("folded_rows", lambda x, w: ((x @ w.T).sum(axis=1), x @ w.T), x, w),
        one("folded_columns", lambda x, w: pg.max(x @ w, axis=0), x, "f16[K,N]"),
        one("computed", lambda x, w: pg.relu(x) @ w.T, x, w),
        one("scaled_weights", lambda x, q, s: x @ (q.astype("f16") * s[:, None]).T, x, "s8[N,K]",
            "f16[N]"),
        one("groups", lambda x, w, ends: pg.grouped_matmul(x, w, ends), "f16[T,K]", "f16[E,K,N]",
            "s32[E]"),
        one("f16_sums_nt", lambda x, w: x @ w.T, x, w, acc_dtype="f16"),
        one("f16_sums_nn", lambda x, w: x @ w, x, "f16[K,N]", acc_dtype="f16"),
        one("f16_sums_tn", lambda x, w: x.T @ w, "f16[K,M]", "f16[K,N]", acc_dtype="f16"),
        one("backward", lambda g, x: g.T @ x, "f16[T,N]", "f16[T,K]"),
        one("triangle", lambda x, w: pg.where(
            pg.indices(x @ w.T)[1] <= pg.indices(x @ w.T)[0], x @ w.T, 0), x, w),
        one("bytes", lambda x, w, s: (x @ w.T) * s, "s8[M,K]", "s8[N,K]", "f32[N]",
            out_dtype="f16", only=(TURING,)),
        one("whole_bytes", lambda x, w: x @ w.T, "s8[M,K]", "s8[N,K]", out_dtype="f32",
            only=(TURING,)),
    ]  # fmt: skip


PROGRAMS = (*_of_matrix(), *_more())


def compiler_of(arch: str) -> bool:
    """Whether a compiler is here that makes code for a target."""
    try:
        library(arch)
    except ToolchainMissing:
        return False
    return True


def runnable(program: Program, arch: str) -> Kernel:
    """The kernel for a target, by whatever compiler is here."""
    return compilable(program.kernel(arch))


def compilable(kernel: Kernel) -> Kernel:
    """The kernel itself, or the same for a target that the compiler here makes code for."""
    return kernel if compiler_of(kernel.passes.plan.device.name) else as_for(TURING, kernel)


def as_for(arch: str, kernel: Kernel) -> Kernel:
    """The kernel with its text compiled for another target, which knows its instructions too.

    It is compiled here: a choice that spills is replaced by one whose text is for its own target,
    which is compiled for the other one in its turn.
    """
    realigned, tried = kernel._realigned, set[str]()
    kernel._realigned = lambda mismatch: as_for(arch, realigned(mismatch))  # type: ignore[method-assign]
    while kernel.schedule.name not in tried:
        made = kernel._generated
        kernel._generated = replace(made, source=replace(made.source, arch=arch))
        for compiled in ("artifact", "_launcher"):  # for its own target, while it was chosen
            kernel.__dict__.pop(compiled, None)
        tried.add(made.schedule.name)
        try:
            _ = kernel.artifact
        except ToolchainMissing:
            if kernel.schedule.name in tried:
                raise
        else:
            if kernel._generated.source.arch == arch:
                return kernel
    raise AssertionError(f"for {arch} schedules {', '.join(sorted(tried))} spill")


def by_warps(arch: str) -> tuple[Schedule, ...]:
    """The shipped schedules of a target whose warps multiply on tensor cores."""
    return tuple(one for one in shipped(arch) if not one.by_lanes)
