"""What polygen does on the CPU, in pieces whose speed is worth watching.

A piece is prepared once, so that what happens once per process is not in its time, and then gives a
function that does the work once and says how many CPU seconds that took. The calibration does what
the pieces do most, so that a ratio to it says something about polygen and little about the machine.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from polygen import knobs
from polygen.api import Fused
from polygen.emit import bare as bare_kernel
from polygen.frontend.parse import parse_expression
from polygen.frontend.signature import parse_signature
from polygen.hardware.device import device
from polygen.kernel import Kernel
from polygen.runtime.environment import current_arch
from polygen.schedule.load import shipped
from polygen.schedule.problem import Fitted, Problem
from polygen.tune.cost import predict_all

Clock = Callable[[], float]
Once = Callable[[Clock], float]  # does the work; gives the CPU seconds, by the clock, that it took

SIGNATURE = ("x:bf16[M,K]", "w:bf16[N,K]", "b:bf16[N]")
SIZES = {"M": 4096, "N": 4096, "K": 1024}
GELU = "gelu(x @ w.T + b)"
LONG = 40  # pointwise operations after a product


@dataclass(frozen=True, slots=True)
class Work:
    """A piece of work.

    Attributes:
        name: of its row.
        prepare: does what is not measured.
    """

    name: str
    prepare: Callable[[], Once]


def calibration() -> None:
    """Loops of Python over dictionaries and tuples, and NumPy on arrays that fit the caches."""
    table: dict[int, tuple[int, int]] = {}
    for i in range(60_000):
        known = table.get(i % 997, (0, 0))
        table[i % 997] = (known[0] + i, max(known[1], i * i % 131))
    sorted(table.values())
    lanes = np.arange(4096, dtype=np.uint32)
    for i in range(1500):
        lanes = np.where(lanes & 1, lanes * np.uint32(3), lanes >> np.uint32(1)) + np.uint32(i)


def timed(work: Callable[[], object]) -> Once:
    """Something of this process, as work."""

    def once(clock: Clock) -> float:
        start = clock()
        work()
        return clock() - start

    return once


def program(expression: str, *signature: str) -> Fused:
    """A program by its text."""
    names = tuple(parse_signature(text).name for text in signature)
    return Fused(parse_expression(expression, names), "host", expression, False)


def kernel(arch: str, expression: str = GELU) -> Kernel:
    """A kernel, generated and not compiled, with an automatic schedule."""
    made = program(expression, *SIGNATURE).compile(*SIGNATURE, arch=arch, sizes=SIZES)
    return made.kernels[0]


def chain() -> str:
    """A product with many pointwise operations after it."""
    steps = ("({} * 1.01)", "({} + b)", "maximum({}, -3)", "({} - 0.5)")
    text = "x @ w.T"
    for at in range(LONG):
        text = steps[at % len(steps)].format(text)
    return text


# --- the pieces -----------------------------------------------------------------------------------
_IMPORT = "import time; start = time.process_time(); {}; print(time.process_time() - start)"


def _importing(code: str) -> Once:
    """In a process of its own, by that process's clock; modules are compiled, as installed ones."""
    folder = tempfile.TemporaryDirectory()  # of bytecode: gone with what uses it
    settings = {**os.environ, "PYTHONPYCACHEPREFIX": folder.name, "PYTHONDONTWRITEBYTECODE": ""}

    def once(_: Clock) -> float:
        words = [sys.executable, "-c", _IMPORT.format(code)]
        done = subprocess.run(
            words, capture_output=True, text=True, check=True, env=settings, cwd=folder.name
        )
        return float(done.stdout)

    once(time.process_time)  # the first writes the bytecode
    return once


def _ranking() -> Once:
    target = device("sm_90a")
    fitted = [Fitted(one, 1) for one in shipped(target)]
    many = (fitted * 100)[:2000]
    problem = Problem(SIZES["M"], SIZES["N"], SIZES["K"])
    predict_all(target, many[:2], problem)
    return timed(lambda: predict_all(target, many, problem))


def _generating(arch: str, expression: str = GELU) -> Once:
    kernel(arch, expression)
    return timed(lambda: kernel(arch, expression))


def _compiling(arch: str) -> Once:
    generated = kernel(arch)

    def once(clock: Clock) -> float:
        with knobs.scope(cache=False):
            fresh = Kernel(
                generated.program, generated.passes.plan.device, SIZES, generated.schedule
            )
            start = clock()
            _ = fresh.cubin
            return clock() - start

    once(time.process_time)
    return once


def _running(arch: str, m: int, n: int, k: int) -> Once:
    """The PTX machine with all its checks."""
    made = kernel(arch)
    random = np.random.default_rng(0)
    shapes = ((m, k), (n, k), (n,))
    x, w, b = (random.integers(-2, 3, shape).astype(ml_dtypes.bfloat16) for shape in shapes)
    made.emulation(x, w, b)  # compiles and translates
    return timed(lambda: made.emulation(x, w, b))


def _calling(bare: bool) -> Once:
    """Calls of a kernel that is warm, or launches by CuPy of one that does nothing."""
    import cupy  # noqa: PLC0415  (only where there is a GPU)

    x, w = (cupy.ones((64, 64), "float16") for _ in range(2))
    b, y = cupy.ones(64, "float16"), cupy.empty((64, 64), "float16")
    if bare:
        nothing = cupy.RawKernel(bare_kernel.TEXT, bare_kernel.NAME)
        sizes = [np.int32(64)] * 6
        call = functools.partial(nothing, (1,), (128,), (x, w, b, y, *sizes))
    else:
        signature = ("x:f16[M,K]", "w:f16[N,K]", "b:f16[N]")
        small = program("relu(x @ w.T + b)", *signature).compile(*signature, sizes=_SMALL)
        call = functools.partial(small, x, w, b, out=y)

    def calls() -> None:
        for _ in range(CALLS):
            call()

    def once(clock: Clock) -> float:
        cupy.cuda.Device().synchronize()
        found = timed(calls)(clock)
        cupy.cuda.Device().synchronize()
        return found

    once(time.process_time)
    return once


CALLS = 500  # fewer than the queue of launches holds
_SMALL = {"M": 64, "N": 64, "K": 64}


WORKS = (
    Work("import", functools.partial(_importing, "import polygen")),
    Work("import to first use", functools.partial(_importing, "import polygen; polygen.fuse")),
    Work("rank 2000 schedules", _ranking),
    Work("generate sm_80", functools.partial(_generating, "sm_80")),
    Work("generate sm_90a", functools.partial(_generating, "sm_90a")),
    Work(f"generate {LONG} operations", lambda: _generating("sm_80", chain())),
    Work("compile sm_80", functools.partial(_compiling, "sm_80")),
    Work("compile sm_90a", functools.partial(_compiling, "sm_90a")),
    Work("machine sm_80 128x128x64", functools.partial(_running, "sm_80", 128, 128, 64)),
    Work("machine sm_80 512x512x512", functools.partial(_running, "sm_80", 512, 512, 512)),
    Work("machine sm_90a 512x512x512", functools.partial(_running, "sm_90a", 512, 512, 512)),
)

CALLING = (
    Work(f"{CALLS} warm calls", functools.partial(_calling, False)),
    Work(f"{CALLS} bare launches", functools.partial(_calling, True)),
)


def works() -> tuple[Work, ...]:
    """What can be measured here; calls need a GPU."""
    return WORKS if current_arch() is None else WORKS + CALLING
