"""What is measured beside what: the rows, and the libraries' contenders on the GPU.

`Bench` runs in a child process of `gpu.hopper_speed`, and is the only thing here that needs a GPU.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import pickle
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gpu.measuring import captured, interleaved

import polygen as pg
from polygen.errors import PolygenError
from polygen.runtime.child import Stage, one_line

REPEATS = 100
PILOT_REPEATS = 7
TUNING_REPEATS = 30
GRAPH_BELOW = 60.0  # microseconds of the fastest contender: below, the host would be measured

# Seconds that a stage of a row may take before the child is killed.
LIMITS = {"data": 60.0, "polygen": 20.0, "peers": 60.0, "inductor": 150.0, "time": 90.0}

SEPARATE, LT, INDUCTOR, CUBLAS = "cuBLAS + separate", "cuBLASLt", "Inductor", "cuBLAS"

# Largest relative Frobenius error, and largest |y - exact| / (|exact| + rms(exact)) of an element.
BOUNDS = {"bf16": (5e-3, 2.0**-7), "f16": (1e-3, 2.0**-9)}
PEER_BOUND = 5e-2  # of the Frobenius error; a library that is farther off computes something else


# --- what is measured -----------------------------------------------------------------------------
def mm(x: Any, w: Any) -> Any:
    return x @ w.T


def bias_relu(x: Any, w: Any, b: Any) -> Any:
    return pg.relu(x @ w.T + b)


def bias_gelu(x: Any, w: Any, b: Any) -> Any:
    return pg.gelu(x @ w.T + b, approximate="tanh")


def bias_residual_relu(x: Any, w: Any, b: Any, r: Any) -> Any:
    return pg.relu(x @ w.T + b + r)


def bias_silu_mul(x: Any, w: Any, b: Any, r: Any) -> Any:
    return pg.silu(x @ w.T + b) * r


FUNCTIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (mm, bias_residual_relu, bias_silu_mul, bias_gelu, bias_relu)
}
EXPRESSIONS = {
    "mm": "x @ w.T",
    "bias_relu": "relu(x @ w.T + b)",
    "bias_gelu": 'gelu(x @ w.T + b, "tanh")',
    "bias_residual_relu": "relu(x @ w.T + b + r)",
    "bias_silu_mul": "silu(x @ w.T + b) * r",
}
OPERANDS = {
    "mm": "xw", "bias_relu": "xwb", "bias_gelu": "xwb",
    "bias_residual_relu": "xwbr", "bias_silu_mul": "xwbr",
}  # fmt: skip
DIMS = {"x": "[M,K]", "w": "[N,K]", "b": "[N]", "r": "[M,N]"}

# The most telling first: what is late may find no time left for Inductor.
SHAPES = (
    (4096, 4096, 4096), (8192, 8192, 8192), (2048, 28672, 4096), (16384, 1024, 1024),
    (2048, 4096, 1024), (8192, 6144, 4096), (4096, 4096, 512), (8192, 8192, 1024),
    (2048, 2048, 2048), (4096, 4096, 14336), (3000, 3000, 3000), (1024, 1024, 1024),
    (4096, 14336, 4096), (1024, 4096, 4096),
)  # fmt: skip
F16_SHAPES = ((4096, 4096, 4096), (8192, 6144, 4096))
LAST = "bias_relu"  # tells least beside bias_gelu: after everything else


@dataclass(frozen=True)
class Row:
    """One computation of one size."""

    op: str
    m: int
    n: int
    k: int
    dtype: str = "bf16"

    @property
    def key(self) -> str:
        return f"{self.op} {self.dtype} {self.m}x{self.n}x{self.k}"

    @property
    def signature(self) -> list[str]:
        return [f"{self.dtype}{DIMS[name]}" for name in OPERANDS[self.op]]

    @property
    def sizes(self) -> dict[str, int]:
        return {"M": self.m, "N": self.n, "K": self.k}


def all_rows() -> list[Row]:
    """Every row, the most telling first; the ops of a shape follow each other."""
    rows = [Row(op, *shape) for shape in SHAPES for op in FUNCTIONS]
    rows += [Row(op, *shape, "f16") for shape in F16_SHAPES for op in FUNCTIONS]
    return sorted(rows, key=lambda row: row.op == LAST)


def selected(pattern: str) -> list[Row]:
    """The rows whose key, as in ``bias_gelu bf16 4096x4096x512``, contains the pattern."""
    return [row for row in all_rows() if re.search(pattern, row.key)]


# --- kernels --------------------------------------------------------------------------------------
def compile_kernel(row: Row, arch: str, schedule: str) -> Any:
    """The kernel of a row, compiled; schedule is "auto" or the path of a file."""
    fused = pg.fuse(FUNCTIONS[row.op], name=row.op)
    given = schedule if schedule == "auto" else Path(schedule)
    kernel = fused.compile(*row.signature, arch=arch, sizes=row.sizes, schedule=given)
    kernel.artifact  # noqa: B018  (compiles; may replace an automatic schedule that spills)
    return kernel


def compiled(row: Row, arch: str, schedule: str) -> dict[str, Any]:
    """Compile, in any process: "error", or "about" for the record and "kernel" for `revived`."""
    start = time.monotonic()
    try:
        kernel = compile_kernel(row, arch, schedule)
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
    made: Any = (row, arch, schedule)
    with contextlib.suppress(Exception):  # generating again costs a second, the cache has the rest
        made = pickle.dumps(kernel)
    about["compile_s"] = round(time.monotonic() - start, 2)
    return {"kernel": made, "about": about}


def revived(made: Any) -> Any:
    """The kernel that another process compiled."""
    return pickle.loads(made) if isinstance(made, bytes) else compile_kernel(*made)


# --- the child: contenders on the GPU -------------------------------------------------------------
def after_product(op: str, z: Any, b: Any, r: Any) -> Any:
    """What follows the product, one kernel per step, in place; in float64 it is the reference."""
    import torch

    if op == "mm":
        return z
    z.add_(b)
    if op == "bias_relu":
        return z.relu_()
    if op == "bias_gelu":
        return torch.ops.aten.gelu_(z, approximate="tanh")
    if op == "bias_residual_relu":
        return z.add_(r).relu_()
    return torch.nn.functional.silu(z, inplace=True).mul_(r)


def with_cublaslt(op: str, x: Any, w: Any, b: Any, r: Any, z: Any) -> Any:
    """The epilogue cuBLASLt has for the op, as PyTorch reaches it; the rest in place."""
    import torch

    if op == "mm":
        prefer = torch.backends.cuda.preferred_blas_library
        before = prefer()
        prefer("cublaslt")
        try:
            return torch.mm(x, w.t(), out=z)
        finally:
            prefer(before)
    if op in ("bias_relu", "bias_gelu"):
        return torch._addmm_activation(b, x, w.t(), use_gelu=op == "bias_gelu")
    if op == "bias_residual_relu":
        return torch.addmm(r, x, w.t()).add_(b).relu_()
    return torch.nn.functional.silu(torch.addmm(b, x, w.t()), inplace=True).mul_(r)


def for_inductor(op: str) -> Callable[..., Any]:
    """The op as a user of PyTorch writes it."""
    import torch

    gelu, silu = torch.nn.functional.gelu, torch.nn.functional.silu
    forms: dict[str, Callable[..., Any]] = {
        "mm": lambda x, w, b, r: x @ w.t(),
        "bias_relu": lambda x, w, b, r: torch.relu(x @ w.t() + b),
        "bias_gelu": lambda x, w, b, r: gelu(x @ w.t() + b, approximate="tanh"),
        "bias_residual_relu": lambda x, w, b, r: torch.relu(x @ w.t() + b + r),
        "bias_silu_mul": lambda x, w, b, r: silu(x @ w.t() + b) * r,
    }
    return forms[op]


def errors(y: Any, exact: Any) -> tuple[float, float]:
    """Relative Frobenius error, and the largest of an element: see `BOUNDS`."""
    difference = y.double().sub_(exact)
    norm = exact.norm()
    frobenius = float(difference.norm() / norm)
    scale = exact.abs().add_(norm / exact.numel() ** 0.5)
    return frobenius, float(difference.abs_().div_(scale).max())


def wrong(dtype: str, found: tuple[float, float]) -> str | None:
    """Why errors are too large; None when they are not. NaN is."""
    for name, value, bound in zip(("Frobenius", "largest"), found, BOUNDS[dtype], strict=True):
        if not value <= bound:
            return f"{name} error {value:.2e}, bound {bound:.2e}"
    return None


def short(found: tuple[float, float]) -> list[float | None]:
    """Errors as JSON takes them."""
    return [float(f"{value:.2e}") if np.isfinite(value) else None for value in found]


class Data:
    """Random normal operands of one shape, and the exact product in float64.

    `small_w` keeps the sums near 1, where activations bend; with `w`, which is timed, they are
    nearly straight.
    """

    def __init__(self, row: Row, device: str = "cuda") -> None:
        import torch

        torch.manual_seed(0)
        kind = {"bf16": torch.bfloat16, "f16": torch.float16}[row.dtype]
        normal = functools.partial(torch.randn, device=device, dtype=kind)
        self.x, self.w = normal(row.m, row.k), normal(row.n, row.k)
        self.b, self.r = normal(row.n), normal(row.m, row.n)
        self.small_w = self.w * row.k**-0.5
        self.y, self.z = torch.empty_like(self.r), torch.empty_like(self.r)

    @functools.cached_property
    def sums(self) -> Any:
        return self.x.double() @ self.w.double().t()

    @functools.cached_property
    def small_sums(self) -> Any:
        return self.x.double() @ self.small_w.double().t()

    def exact(self, op: str, sums: Any) -> Any:
        """The result in float64."""
        return after_product(op, sums.clone(), self.b.double(), self.r.double())

    def operands(self, op: str, small: bool = False) -> tuple[Any, ...]:
        """In the order of the op's parameters."""
        held = {"x": self.x, "w": self.small_w if small else self.w, "b": self.b, "r": self.r}
        return tuple(held[name] for name in OPERANDS[op])


class Bench:
    """Does jobs in the child process: describes the machine, measures a row, or tunes one."""

    def __init__(self) -> None:
        import torch

        torch.set_grad_enabled(False)
        self._data: dict[Any, Data] = {}
        x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        start = time.monotonic()
        while time.monotonic() - start < 1:  # the clocks settle
            torch.mm(x, x)
            torch.cuda.synchronize()

    def __call__(self, job: dict[str, Any], stage: Stage) -> Any:
        return {"about": self.about, "row": self.row, "tune": self.tune}[job["do"]](job, stage)

    def about(self, job: dict[str, Any], stage: Stage) -> dict[str, Any]:
        """Versions."""
        import cupy
        import torch
        import triton

        return {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cupy": cupy.__version__,
            "triton": triton.__version__,
            "cublas": cublas_version(),
        }

    def data(self, row: Row, stage: Stage) -> Data:
        """The operands of a row; those of one shape are kept, because its ops come together."""
        import torch

        stage("data", LIMITS["data"])
        key = (row.m, row.n, row.k, row.dtype)
        if key not in self._data:
            self._data.clear()
            torch.cuda.empty_cache()
            made = self._data[key] = Data(row)
            made.sums, made.small_sums  # noqa: B018  (made here, where there is time)
            torch.cuda.synchronize()
        return self._data[key]

    def checked(self, row: Row, data: Data, kernel: Any, exact: Any) -> tuple[float, float]:
        """Errors of a kernel on both data, the larger of each; the last output stays in ``y``."""
        found = []
        for small in (True, False):
            data.y.fill_(float("nan"))
            kernel(*data.operands(row.op, small), out=data.y)
            wanted = data.exact(row.op, data.small_sums) if small else exact
            found.append(errors(data.y, wanted))
        frobenius, largest = np.max(found, axis=0)  # NaN wins
        return float(frobenius), float(largest)

    def peers(self, row: Row, data: Data) -> dict[str, Callable[[], Any]]:
        """The libraries' contenders but Inductor."""
        import torch

        op, x, w, b, r, z = row.op, data.x, data.w, data.b, data.r, data.z
        return {
            CUBLAS if op == "mm" else SEPARATE: lambda: after_product(
                op, torch.mm(x, w.t(), out=z), b, r
            ),
            LT: lambda: with_cublaslt(op, x, w, b, r, z),
        }

    def inductor(self, row: Row, data: Data) -> Callable[[], Any]:
        """Inductor's contender, compiled and tuned."""
        import torch

        torch._dynamo.reset()
        call = torch.compile(
            for_inductor(row.op),
            mode="max-autotune-no-cudagraphs",
            fullgraph=True,
            dynamic=False,
        )
        operands = (data.x, data.w, data.b, data.r)
        call(*operands)
        torch.cuda.synchronize()
        return lambda: call(*operands)

    def row(self, job: dict[str, Any], stage: Stage) -> dict[str, Any]:
        """One line of the record; "error" in it says why there are no times."""
        row: Row = job["row"]
        data = self.data(row, stage)
        exact = data.exact(row.op, data.sums)
        line: dict[str, Any] = {}
        skipped: dict[str, str] = {}

        stage("polygen", LIMITS["polygen"])
        try:
            kernel = revived(job["kernel"])
            found = self.checked(row, data, kernel, exact)
        except PolygenError as error:
            return {"error": one_line(error)}
        line["errors"] = {"polygen": short(found)}
        if fault := wrong(row.dtype, found):
            return {**line, "error": f"wrong result: {fault}"}
        operands = data.operands(row.op)
        contenders: dict[str, Callable[[], Any]] = {
            "polygen": lambda: kernel(*operands, out=data.y)
        }

        stage("peers", LIMITS["peers"])
        makers: dict[str, Callable[[], Callable[[], Any]]] = {
            name: lambda call=call: call for name, call in self.peers(row, data).items()
        }
        if job["no_inductor"] is None:
            makers[INDUCTOR] = lambda: self.inductor(row, data)
        else:
            skipped[INDUCTOR] = job["no_inductor"]
        for name, make in makers.items():
            start = time.monotonic()
            if name == INDUCTOR:
                stage("inductor", LIMITS["inductor"])
            try:
                call = make()
                found = errors(call(), exact)
            except Exception as error:  # a library that cannot is no contender
                skipped[name] = one_line(error)
                continue
            line["errors"][name] = short(found)
            if found[0] <= PEER_BOUND:
                contenders[name] = call
            else:
                skipped[name] = f"Frobenius error {found[0]:.2e}"
            if name == INDUCTOR:
                line["inductor_compile_s"] = round(time.monotonic() - start, 1)

        stage("time", LIMITS["time"])
        times = self.timed(contenders, job["repeats"], line, skipped, data.y)
        if "polygen" not in times:
            return {**line, "error": skipped["polygen"]}
        if fault := wrong(row.dtype, errors(data.y, exact)):
            return {**line, "error": f"wrong result after the measurement: {fault}"}
        return line | ratios(row, times) | {"skipped": skipped, "sm_mhz": sm_clock()}

    def timed(
        self,
        contenders: dict[str, Callable[[], Any]],
        repeats: int,
        line: dict[str, Any],
        skipped: dict[str, str],
        poisoned: Any = None,
    ) -> dict[str, list[float]]:
        """Microseconds of every launch; the fast ones from graphs, which `line` then says.

        Args:
            contenders: all of them.
            repeats: launches of each.
            line: gets "graph".
            skipped: gets why a contender has no graph, and thus no time.
            poisoned: an output that is set to NaN before what counts.
        """
        pilot = interleaved(contenders, PILOT_REPEATS)
        line["graph"] = min(float(np.median(values)) for values in pilot.values()) < GRAPH_BELOW
        if line["graph"]:
            graphs = {}
            for name, call in contenders.items():
                try:
                    graphs[name] = captured(call)
                except Exception as error:
                    skipped[name] = f"no graph: {one_line(error)}"
            contenders = graphs
        if poisoned is not None:
            poisoned.fill_(float("nan"))
        return interleaved(contenders, repeats)

    def tune(self, job: dict[str, Any], stage: Stage) -> dict[str, Any]:
        """Times of the schedules of a batch; "reference" is the library's, in the same minutes."""
        row: Row = job["row"]
        data = self.data(row, stage)
        exact = data.exact(row.op, data.sums)
        contenders: dict[str, Callable[[], Any]] = {}
        line: dict[str, Any] = {"errors": {}, "refused": {}}
        for name, made in job["kernels"].items():
            stage(f"check {name}", LIMITS["polygen"])
            try:
                kernel = revived(made)
                found = self.checked(row, data, kernel, exact)
            except PolygenError as error:
                line["refused"][name] = one_line(error)
                continue
            line["errors"][name] = short(found)
            if fault := wrong(row.dtype, found):
                line["refused"][name] = f"wrong result: {fault}"
                continue
            call = functools.partial(kernel, *data.operands(row.op), out=data.y)
            contenders[name] = call
        stage("time", LIMITS["time"])
        reference = CUBLAS if row.op == "mm" else LT
        contenders[reference] = self.peers(row, data)[reference]
        times = self.timed(contenders, job["repeats"], line, line["refused"])
        line["reference"] = {"name": reference, "microseconds": median(times.pop(reference))}
        line["times"] = {name: quartiles(values) for name, values in times.items()}
        return line


def cublas_version() -> str | None:
    """That of PyTorch's own."""
    try:
        return importlib.metadata.version("nvidia-cublas")
    except importlib.metadata.PackageNotFoundError:
        return None


def sm_clock() -> int | None:
    """MHz just after a measurement; None where it cannot be read."""
    import torch

    try:
        return int(torch.cuda.clock_rate())
    except Exception:
        return None


# --- figures --------------------------------------------------------------------------------------
def median(values: Sequence[float]) -> float:
    return round(float(np.median(values)), 2)


def quartiles(values: Sequence[float]) -> list[float]:
    """The 25th, 50th and 75th percentile."""
    return [round(float(value), 2) for value in np.percentile(values, (25, 50, 75))]


def ratios(row: Row, times: dict[str, list[float]]) -> dict[str, Any]:
    """Medians, quartiles, and how many times as long each library takes as polygen."""
    medians = {name: median(values) for name, values in times.items()}
    ours = medians["polygen"]
    peers = {name: value for name, value in medians.items() if name != "polygen"}
    return {
        "microseconds": medians,
        "p25_p75": {name: quartiles(values)[::2] for name, values in times.items()},
        "inductor_us": medians.get(INDUCTOR),
        "tflops": round(2 * row.m * row.n * row.k / ours / 1e6, 1),
        "ratio": {name: round(value / ours, 4) for name, value in peers.items()},
        "best": min(peers, key=peers.__getitem__) if peers else None,
    }
