"""Compiles polygen's kernels of rows, and Triton's, in as many processes as there are cores."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

from polygen.api import Fused
from polygen.bench.rows import Row
from polygen.errors import PolygenError
from polygen.frontend.parse import parse_expression
from polygen.runtime.child import one_line

Compiled = dict[str, Any]  # "error", or "kernel" for `revived` and "about" for the record


def compile_kernel(row: Row, arch: str) -> Any:
    """The kernel of a row, compiled."""
    op = row.operation
    fused = Fused(parse_expression(op.expression, op.names), op.name, op.expression, False)
    kernel = fused.compile(
        *row.signature,
        arch=arch,
        sizes=row.symbols | row.pitches,
        acc_dtype=row.acc,
        out_dtype=row.out_dtype,
        single=True,
    ).kernels[0]
    kernel.compiled()  # may replace an automatic schedule that spills
    return kernel


def compiled(row: Row, arch: str, triton: bool = False) -> Compiled:
    """Compile, in any process.

    Args:
        row: what.
        arch: the target.
        triton: fill Triton's cache with the row's kernels too.
    """
    start = time.monotonic()
    if triton:
        with contextlib.suppress(Exception):  # the child compiles what is not there, and says why
            from polygen.bench.peers.triton_matmul import compile_ahead  # noqa: PLC0415

            compile_ahead(row)
    try:
        kernel = compile_kernel(row, arch)
        about = {
            "schedule": kernel.schedule.name,
            "schedule_origin": kernel.schedule_origin,
            "registers": kernel.resources.registers,
            "shared_bytes": kernel.resources.shared_bytes,
        }
    except PolygenError as error:
        return {"error": one_line(error, 600)}
    except Exception as error:  # a fault of polygen; the other rows are worth having
        return {"error": f"compiling failed: {one_line(error, 600)}"}
    made: Any = (row, arch)
    with contextlib.suppress(Exception):  # generating again costs a second, the cache has the rest
        made = pickle.dumps(kernel)
    about["compile_s"] = round(time.monotonic() - start, 2)
    return {"kernel": made, "about": about}


def revived(made: Any) -> Any:
    """The kernel that another process compiled."""
    return pickle.loads(made) if isinstance(made, bytes) else compile_kernel(*made)


class Compiler:
    """Compiles rows in the background, each by a process of its own.

    Args:
        arch: the target.
        triton: whether Triton takes part.
        processes: how many; None: one per core.
    """

    def __init__(self, arch: str, triton: bool, processes: int | None = None) -> None:
        self._arch, self._triton = arch, triton
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(
            processes or os.cpu_count(), mp_context=context, initializer=_begin
        )
        self._futures: dict[Row, Future[Compiled]] = {}
        self._processes: list[Any] = []

    def submit(self, rows: Sequence[Row]) -> None:
        """Start with kernels."""
        before = set(multiprocessing.active_children())
        for row in rows:
            self._futures[row] = self._pool.submit(compiled, row, self._arch, self._triton)
        self._processes += [p for p in multiprocessing.active_children() if p not in before]

    def result(self, row: Row, limit: float) -> Compiled:
        """Wait for a kernel, at most so many seconds."""
        try:
            return self._futures[row].result(limit)
        except TimeoutError:
            return {"error": f"no time left: not compiled after {limit:.0f} s more"}
        except Exception as error:  # the pool broke
            return {"error": f"compiling failed: {one_line(error)}"}

    def close(self) -> None:
        """End the pool's processes, whatever they do."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            if process.is_alive():
                process.kill()


def _begin() -> None:
    """Leave the cores to the process that measures, and end with the one that leads."""
    os.nice(10)
    leader = os.getppid()

    def watch() -> None:
        while os.getppid() == leader:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
