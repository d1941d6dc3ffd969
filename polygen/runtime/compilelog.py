"""Reads the compiler's log: resources, and the lines that make a kernel unacceptable.

1. An error line names a line of the source, or of the PTX for a mistake in inline assembly; the
   message quotes that line with two neighbours on each side.
2. ``Used N registers`` and ``... bytes spill stores`` give the resources; with several functions in
   one log, the largest counts.
3. Spills, a stack frame (local memory) and ``C75xx`` lines (serialised ``wgmma``) refuse the
   kernel: each costs a multiple of the time, and none shows in the result.
"""

from __future__ import annotations

import re

from polygen.emit.source import KernelSource
from polygen.errors import CompileError, PressureError, SpillError
from polygen.runtime.artifact import Resources

_SOURCE_ERROR = re.compile(r"^\S*?\((\d+)\): (?:catastrophic )?error:? *(.*)$", re.MULTILINE)
_PTX_ERROR = re.compile(r"^ptxas .*?line (\d+); (?:error|fatal)\s*: *(.*)$", re.MULTILINE)
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_STATIC_SHARED = re.compile(r"(\d+) bytes smem")
_LOSS = re.compile(
    r"^.*(?:\(C75\d\d\)|Potential Performance Loss).*$", re.MULTILINE | re.IGNORECASE
)
_TOO_FEW = re.compile(r"\(C7602\)")  # registers for one product's sums
_ENTRY = re.compile(r"Compiling entry function '")
_TIMING = re.compile(r"^.*Compile time = .*\n?", re.MULTILINE)
_NEIGHBOURS = 2


def without_timings(log: str) -> str:
    """Return the log without the lines that differ from run to run."""
    return _TIMING.sub("", log).strip()


def failure(
    what: str,
    *,
    where: str,
    log: str,
    why: str = "",
    nearest: str = "",
    kind: type[CompileError] = CompileError,
) -> CompileError:
    """Make a `CompileError` that carries the log."""
    error = kind(what, where=where, why=why, nearest=nearest)
    error.log = log
    return error


def quote(text: str, line: int) -> str:
    """Quote line `line` (from 1) of `text` with its neighbours, numbered and marked."""
    lines = text.splitlines()
    first, last = max(1, line - _NEIGHBOURS), min(len(lines), line + _NEIGHBOURS)
    width = len(str(last))
    return (
        "".join(
            f"\n  {'>' if number == line else ' '} {number:>{width}} | {lines[number - 1]}"
            for number in range(first, last + 1)
        )
        + "\n  ..."
    )


def rejection(source: KernelSource, log: str, ptx: str) -> CompileError:
    """Word the error for a source that the compiler rejected; quotes the first offending line."""
    name = f"{source.entry}.cu"
    for pattern, text, place in ((_SOURCE_ERROR, source.text, name), (_PTX_ERROR, ptx, "PTX")):
        match = pattern.search(log)
        if match:
            line = int(match[1])
            return failure(
                f"the compiler rejects line {line}: {match[2]}{quote(text, line)}",
                where=f"{name} for {source.arch}" + (", its PTX" if place == "PTX" else ""),
                log=log,
            )
    if "gpu-architecture" in log:
        return failure(
            f"this NVRTC does not compile for {source.arch}",
            where=name,
            why=log.strip(),
            nearest="`polygen env` prints the NVRTC in use; `polygen targets` prints the targets",
            log=log,
        )
    kind = PressureError if _TOO_FEW.search(log) else CompileError
    return failure(
        "the compiler rejects the source", where=name, why=log.strip(), log=log, kind=kind
    )


def resources(source: KernelSource, log: str) -> Resources:
    """Read the resources the log reports.

    Raises:
        CompileError: the log does not report them: nobody could tell whether the kernel spills.
    """
    frames, registers = _FRAME.findall(log), _REGISTERS.findall(log)
    if not frames or not registers:
        raise failure(
            "the compiler's log does not report registers and spills",
            where=f"{source.entry}.cu",
            why="it cannot be shown that the kernel spills nothing",
            log=log,
        )
    stack, stores, loads = (max(int(frame[n]) for frame in frames) for n in range(3))
    # Of the kernel alone: a launch that follows it has shared memory of its own.
    static = sum(map(int, _STATIC_SHARED.findall(_own(source, log) or log)))
    return Resources(
        registers=max(map(int, registers)),
        spill_store_bytes=stores,
        spill_load_bytes=loads,
        stack_bytes=stack,
        shared_bytes=static + source.launch.shared_bytes,
        threads=source.launch.threads,
    )


def refuse_slow(source: KernelSource, found: Resources, log: str, *, allow_spills: bool) -> None:
    """Refuse a kernel that compiles but would be slow.

    Args:
        source: the kernel.
        found: its resources.
        log: the compiler's log.
        allow_spills: let spills and a stack frame pass (for experiments); ``C75xx`` lines
            never pass.

    Raises:
        PressureError: with the log; `SpillError` where it spills.
    """
    where = f"{source.entry}.cu for {source.arch}"
    loss = _LOSS.search(log)
    if loss:
        raise failure(
            "the compiler reports a potential performance loss",
            where=where,
            why=loss[0].strip(),
            log=log,
            kind=PressureError,
        )
    spilled = found.spill_store_bytes + found.spill_load_bytes
    if allow_spills or not (spilled or found.stack_bytes):
        return
    what = (
        f"the kernel spills {found.spill_store_bytes} bytes of stores and "
        f"{found.spill_load_bytes} of loads per thread"
        if spilled
        else f"the kernel keeps {found.stack_bytes} bytes per thread in local memory"
    )
    beside = not any(any(map(int, frame)) for frame in _FRAME.findall(_own(source, log) or log))
    refusal = failure(
        what.replace("the kernel", "a launch beside the kernel") if beside else what,
        where=where,
        why=f"{found.registers} registers with {found.threads} threads; local memory lies in DRAM",
        nearest="Use epilogue.row_words = 0, or another epilogue.row_warps"
        if beside
        else "Use a smaller warp tile, or more threads per block",
        log=log,
        kind=SpillError,
    )
    assert isinstance(refusal, SpillError)
    refusal.beside = beside
    raise refusal


def _own(source: KernelSource, log: str) -> str:
    """What the log says of the kernel alone; "": it does not tell entries apart."""
    return "".join(part for part in _ENTRY.split(log)[1:] if part.startswith(f"{source.entry}'"))
