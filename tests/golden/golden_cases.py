"""The kernels whose text is watched: a dozen kept as golden files, and a matrix for the replay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
SCHEDULES = "tests/golden/schedules"  # relative: it is in the header
REGISTERS = f"{SCHEDULES}/registers.toml"


@dataclass(frozen=True)
class Case:
    """One kernel."""

    name: str
    expression: str
    operands: tuple[str, ...]
    arch: str
    sizes: tuple[tuple[str, int], ...] = ()
    static: tuple[str, ...] = ()
    out_dtype: tuple[str, ...] = ()
    acc_dtype: str = "f32"
    schedule: str = "auto"

    @property
    def words(self) -> list[str]:
        """The command line that prints it."""
        words = ["generate", self.expression, *self.operands, "--arch", self.arch]
        words += ["--name", self.name]
        if self.sizes:
            words += ["--size", *(f"{name}={value}" for name, value in self.sizes)]
        if self.static:
            words += ["--static", *self.static]
        if self.out_dtype:
            words += ["--out-dtype", *self.out_dtype]
        if self.acc_dtype != "f32":
            words += ["--acc-dtype", self.acc_dtype]
        if self.schedule != "auto":
            words += ["--schedule", self.schedule]
        return [*words, "-o", "-"]


def sizes(m: int, n: int, k: int) -> tuple[tuple[str, int], ...]:
    return (("M", m), ("N", n), ("K", k))


LARGE, SMALL = sizes(4096, 4096, 1024), sizes(200, 300, 500)
XW = ("x:bf16[M,K]", "w:bf16[N,K]")
XWB = (*XW, "b:bf16[N]")
MLP = "silu(x @ w.T + b) * g"

GOLDEN = (
    Case(
        "folds",
        "sum(x @ w.T + b, axis=0), max(x @ w.T, axis=1, keepdims=True), x @ w.T",
        XWB,
        "sm_80",
        SMALL,
    ),
    Case(
        "roles_folds",
        "x @ w.T, mean(x @ w.T, axis=1), argmax(x @ w.T, axis=0)",
        XW,
        "sm_90a",
        LARGE,
    ),
    Case("gelu_bias", "gelu(x @ w.T + b)", XWB, "sm_90a", LARGE),
    Case(
        "relu_bias_residual",
        "relu(x @ w.T + b + r)",
        (*XWB, "r:bf16[M,N]"),
        "sm_90a",
        sizes(16384, 1024, 1024),
    ),
    Case("silu_gate", MLP, (*XWB, "g:bf16[M,N]"), "sm_90a", sizes(512, 14336, 4096)),
    Case("plain_f16", "x @ w", ("x:f16[M,K]", "w:f16[K,N]"), "sm_80", LARGE),
    Case("both_transposed", "x.T @ w.T", ("x:bf16[K,M]", "w:bf16[N,K]"), "sm_80", LARGE),
    Case("column_major", "x @ w", ("x:f16[M,K]:col", "w:f16[K,N]:col"), "sm_89", LARGE),
    Case("tf32", "tanh(x @ w.T)", ("x:tf32[M,K]", "w:tf32[N,K]"), "sm_80", LARGE),
    Case("f32_parts", "x @ w", ("x:f32[M,K]", "w:f32[K,N]"), "sm_90a", LARGE),
    Case(
        "f16_sums", "x @ w.T", ("x:f16[M,K]", "w:f16[N,K]"), "sm_80", LARGE, (), (), acc_dtype="f16"
    ),
    Case("align_4", "gelu(x @ w.T + b)", XWB, "sm_80", sizes(500, 702, 1002)),
    Case("align_2", "gelu(x @ w.T + b)", XWB, "sm_80", sizes(500, 701, 1001)),
    Case("registers", "gelu(x @ w.T + b)", XWB, "sm_80", LARGE, schedule=REGISTERS),
    Case(
        "two_outputs",
        "where(x @ w.T > c, s * (x @ w.T), 0), x @ w.T",
        (*XW, "c:f32[M,1]", "s:f32"),
        "sm_120",
        SMALL,
        (),
        ("f32", "f16"),
    ),
    Case("static_k", "softplus(x @ w.T)", XW, "sm_90", LARGE, ("K",)),
    Case("one_row", "x @ w.T + b", XWB, "sm_80", sizes(1, 4096, 4096)),
    Case("cluster", "x @ w.T", XW, "sm_90a", LARGE, schedule=f"{SCHEDULES}/cluster.toml"),
    Case(
        "pingpong_gate",
        MLP,
        (*XWB, "g:bf16[M,N]"),
        "sm_90a",
        LARGE,
        schedule=f"{SCHEDULES}/pingpong.toml",
    ),
    Case(
        "roles_registers",
        "x @ w + r.T",
        ("x:f16[M,K]", "w:f16[K,N]", "r:f16[N,M]"),
        "sm_90a",
        LARGE,
        schedule=f"{SCHEDULES}/roles_registers.toml",
    ),
    Case(
        "attention_by_warps",
        "softmax((q @ k.mT) * 0.125) @ v",
        ("q:bf16[B,S,64]", "k:bf16[B,T,64]", "v:bf16[B,T,64]"),
        "sm_80",
        (("B", 64), ("S", 1024), ("T", 1024)),
    ),
)

EPILOGUES = (
    "x @ w.T",
    "relu(x @ w.T + b)",
    "gelu(x @ w.T + b)",
    "gelu_tanh(x @ w.T + b)",
    "silu(x @ w.T + b) * g",
    "np.maximum(x @ w.T + g, 0)",
    "clip(exp(x @ w.T) - 1, -1, 1)",
    "hardswish(x @ w.T) + mish(g)",
    "where(x @ w.T > b, g, erf(x @ w.T))",
    "x @ w.T, sigmoid(x @ w.T + b), g * (x @ w.T)",
)
_LAYOUTS = (
    ("nn", "x @ w", "x:{t}[M,K]", "w:{t}[K,N]"),
    ("nt", "x @ w.T", "x:{t}[M,K]", "w:{t}[N,K]"),
    ("tn", "x.T @ w", "x:{t}[K,M]", "w:{t}[K,N]"),
    ("tt", "x.T @ w.T", "x:{t}[K,M]", "w:{t}[N,K]"),
)
_SIZES = (("big", LARGE), ("even", sizes(500, 702, 1002)), ("odd", sizes(501, 701, 1001)))
_OLDER = ("sm_70", "sm_75")  # targets without bf16, with schedules of their own
_ARCHS = ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")


def matrix() -> Iterator[Case]:
    """Layouts x types, epilogues x alignments, every target, every shipped schedule."""
    yield from GOLDEN
    for kind in ("f16", "bf16", "tf32"):
        for layout, expression, x, w in _LAYOUTS:
            for size, extents in _SIZES:
                operands = (x.format(t=kind), w.format(t=kind))
                yield Case(f"{kind}_{layout}_{size}", expression, operands, "sm_80", extents)
    for number, expression in enumerate(EPILOGUES):
        names = [*XW, *(["b:f32[N]"] if "b)" in expression or "> b" in expression else [])]
        operands = (*names, *(["g:bf16[M,N]"] if "g" in _names(expression) else []))
        for size, extents in _SIZES:
            yield Case(f"epilogue_{number}_{size}", expression, operands, "sm_90a", extents)
    for arch in _ARCHS:
        yield Case(f"target_{arch}", "gelu(x @ w.T + b)", XWB, arch, LARGE)
    for path in sorted((ROOT / "schedules").glob("*/*.toml")):
        where, family = str(path.relative_to(ROOT)), path.parent.name
        name, arch, operands = f"schedule_{path.stem}", "sm_90a", XWB
        if family in _OLDER:
            name, arch = f"schedule_{family}_{path.stem}", family
            operands = tuple(one.replace("bf16", "f16") for one in XWB)
        yield Case(name, "gelu(x @ w.T + b)", operands, arch, LARGE, schedule=where)


def _names(expression: str) -> set[str]:
    return set(expression.replace("(", " ").replace(")", " ").replace(",", " ").split())
