"""Random fused programs: on integer data every one has an exact answer, on floats a bound.

A seed decides everything: sizes (primes and 1 among them), operand order, transposition, storage
order, dtypes, row pitches, address offsets, a random epilogue DAG of 1 to 8 operations over row,
column, matrix and scalar operands, and 1 to 3 outputs. Values stay integers below 2^24, which f32
holds exactly, so outputs must be equal bit for bit. The same programs with normal data, in which
every mantissa bit varies, stay within the bound that types and the length of sums give.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polygen.api import Fused, fuse
from polygen.cli.accuracy import expected
from polygen.decide import candidates
from polygen.errors import PolygenError
from polygen.frontend.dtypes import BOOL, U8, dtype
from polygen.frontend.evaluate import evaluate
from polygen.frontend.parse import parse_expression
from polygen.frontend.program import Tensor
from polygen.hardware.device import device
from polygen.kernel import Kernel
from polygen.pipeline import with_sizes
from polygen.schedule.load import shipped
from polygen.schedule.model import Cluster, Roles, Schedule, WarpTile
from polygen.schedule.problem import Fitted

PRIMES = (1, 2, 3, 5, 7, 13, 31, 61, 127, 251, 509, 1021, 1499)
ROUND = (8, 16, 64, 128, 200, 256, 384, 512, 1000, 1024, 1280, 1500)
UNARY = (
    "relu({})",
    "-({})",
    "abs({})",
    "minimum({}, 7)",
    "maximum({}, -5)",
    "clip({}, -9, 11)",
    "({}) * 2",
    "({}) - 3",
)
BINARY = ("({}) + {}", "({}) - {}", "maximum({}, {})", "minimum({}, {})", "where(({}) > {}, 1, -2)")


@dataclass(frozen=True)
class Random:
    """One random program with its sizes and storage."""

    seed: int
    expression: str
    signature: tuple[str, ...]
    names: tuple[str, ...]
    sizes: dict[str, int]
    out_dtype: tuple[str, ...] | None
    pitches: dict[str, int]  # extra elements per stored row
    offsets: dict[str, int]  # elements by which the data is moved off an aligned address
    roomy: bool = False  # rows start at multiples of 16 bytes, so that tensor maps describe them
    with_roles: bool = False  # takes a schedule with roles, though tensor maps may describe nothing

    def __str__(self) -> str:
        storage = f"pitches {self.pitches} offsets {self.offsets}"
        return f"seed {self.seed}: {self.expression} {self.signature} {self.sizes} {storage}"


def random_program(seed: int, largest: int = 1500) -> Random:
    """The program of a seed, with sizes up to `largest`."""
    rng = random.Random(seed)

    def size() -> int:
        kind = rng.random()
        if kind < 0.35:
            return rng.choice([p for p in PRIMES if p <= largest])
        if kind < 0.7:
            return rng.choice([p for p in ROUND if p <= largest])
        return rng.randint(1, largest)

    sizes = {"M": size(), "N": size(), "K": size()}
    kind = rng.choice(["f16", "bf16", "bf16", "tf32"])
    store = "f32" if kind == "tf32" else kind
    x_t, w_t = rng.random() < 0.5, rng.random() < 0.5
    swap = rng.random() < 0.2
    product = f"{'x.T' if x_t else 'x'} @ {'w.T' if w_t else 'w'}"
    shapes = {"x": "[K,M]" if x_t else "[M,K]", "w": "[N,K]" if w_t else "[K,N]"}
    if swap:
        product = f"({'w' if w_t else 'w.T'} @ {'x' if x_t else 'x.T'}).T"
    columns = {name: rng.random() < 0.25 for name in "xw"}
    signature = {n: f"{kind}{shapes[n]}" + (":col" if columns[n] else "") for n in "xw"}
    operands: dict[str, str] = {}

    def operand() -> str:
        if operands and rng.random() < 0.3:
            name = rng.choice(sorted(operands))
        else:
            name = "abcdefgh"[len(operands)]
            form = rng.choice(["[N]", "[M,1]", "[M,N]", "[M,N]", "[N,M]", "scalar", "[1,N]"])
            given = rng.choice([store, "f32"])
            operands[name] = "f32" if form == "scalar" else f"{given}{form}"
            if form in ("[M,N]", "[N,M]") and rng.random() < 0.2:
                operands[name] += ":col"
        return f"{name}.T" if "[N,M]" in operands[name] else name

    value, values = f"({product})", []
    for _ in range(rng.randint(1, 8)):
        if rng.random() < 0.45:
            value = rng.choice(UNARY).format(value)
        else:
            value = rng.choice(BINARY).format(value, operand())
        values.append(value)
    outputs = [values[-1]]
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        extra = rng.choice(values)
        outputs.append(f"({extra}).T" if rng.random() < 0.2 else extra)
    expression = outputs[0] if len(outputs) == 1 else f"({', '.join(outputs)})"
    out_dtype = None
    if rng.random() < 0.4:
        out_dtype = tuple(rng.choice([store, "f32", "bf16"]) for _ in outputs)
    names = ("x", "w", *sorted(operands))
    described = tuple(signature.get(n) or operands[n] for n in names)
    plain = rng.random() < 0.5
    pitches = {n: 0 if plain else rng.choice([0, 0, 1, 3, 8]) for n in names}
    offsets = {n: 0 if plain else rng.choice([0, 0, 0, 1, 2, 4]) for n in names}
    return Random(seed, expression, described, names, sizes, out_dtype, pitches, offsets)


def roomy_program(seed: int, largest: int = 1500) -> Random:
    """A program whose arrays tensor maps can describe: any K, M and N multiples of 16."""
    rng = random.Random(f"roomy {seed}")
    case = random_program(rng.randrange(1 << 30), largest)
    sizes = {name: -(-case.sizes[name] // 16) * 16 for name in "MN"}
    sizes["K"] = case.sizes["K"]
    expression, signature = case.expression, case.signature
    along_k = all(text.endswith(("M,K]", "K,M]:col", "N,K]", "K,N]:col")) for text in signature[:2])
    if along_k and rng.random() < 0.5 and "tf32" not in signature[0]:
        signature = tuple(
            re.sub(r"^b?f16(?=\[)", "e4m3", text) if name in "xw" else text
            for name, text in zip(case.names, signature, strict=True)
        )
        out = case.out_dtype or ("bf16",) * (len(split_outputs(expression)))
        case = replace(case, out_dtype=out)
    return replace(
        case, seed=seed, signature=signature, sizes=sizes, roomy=True,
        offsets=dict.fromkeys(case.names, 0),
    )  # fmt: skip


NARROW = ("s8", "u8", "bool", "e4m3", "e5m2", "s32")


def narrow_program(seed: int, largest: int = 1500) -> Random:
    """A program whose outputs and epilogue operands have whole numbers, conditions and bytes."""
    rng = random.Random(f"narrow {seed}")
    make = rng.choice([random_program, roomy_program, odd_program])
    case = make(rng.randrange(1 << 30), largest)
    signature = tuple(
        re.sub(r"^(b?f16|f32)(?=\[)", rng.choice(["s8", "bool", "s32", "e4m3", "bf16"]), text)
        if name not in "xw" and rng.random() < 0.7
        else text
        for name, text in zip(case.names, case.signature, strict=True)
    )
    out = tuple(rng.choice([*NARROW, "f32"]) for _ in split_outputs(case.expression))
    return replace(case, seed=seed, signature=signature, out_dtype=out)


def odd_program(seed: int, largest: int = 1500) -> Random:
    """Any program, for a schedule with roles: threads move what tensor maps cannot describe."""
    rng = random.Random(f"odd {seed}")
    return replace(random_program(rng.randrange(1 << 30), largest), seed=seed, with_roles=True)


def older_program(seed: int, largest: int = 1500) -> Random:
    """A program in f16 and f32, the types of floats that targets before sm_80 have."""
    case = random_program(random.Random(f"older {seed}").randrange(1 << 30), largest)
    halves = {"bf16": "f16", "tf32": "f16"}
    signature = tuple(re.sub(r"^(bf16|tf32)", "f16", text) for text in case.signature)
    out = case.out_dtype and tuple(halves.get(kind, kind) for kind in case.out_dtype)
    pitches = dict(case.pitches)
    if seed % 4 == 2:  # rows begin at multiples of 16 bytes, and end inside of 16
        for name, text in zip("xw", signature, strict=False):
            dims = text[text.index("[") + 1 : text.index("]")].split(",")
            pitches[name] = -case.sizes[dims[0 if text.endswith(":col") else 1]] % 8
    return replace(case, seed=seed, signature=signature, out_dtype=out, pitches=pitches)


def split_outputs(expression: str) -> list[str]:
    """The outputs of an expression: the elements of an outermost tuple."""
    tree = ast.parse(expression, mode="eval").body
    return [ast.unparse(e) for e in tree.elts] if isinstance(tree, ast.Tuple) else [expression]


def role_schedules() -> list[Schedule | str]:
    """The schedules with roles that random programs are compiled with, and the chooser's own."""
    found = [s for s in shipped("sm_90a") if s.specialised]
    changed = [replace(s, cluster=Cluster(2, 1)) for s in found if s.tile.cta.n % 128 == 0]
    changed += [replace(s, cluster=Cluster(1, 2)) for s in found if s.tile.cta.m % 128 == 0]
    direct = [replace(s, epilogue=replace(s.epilogue, through="registers")) for s in found[:3]]
    fewer = [replace(s, pipeline=replace(s.pipeline, stages=2, in_flight=0)) for s in found[-3:]]
    beside = [_beside(s) for s in found if s.roles.form == "cooperative"]
    return ["auto", *found, *changed, *direct, *fewer, *(s for s in beside if s is not None)]


def _beside(schedule: Schedule) -> Schedule | None:
    """The same tile for two consumers that share its rows; None where a part would be too large."""
    cta = schedule.tile.cta
    if cta.n % 32 or cta.m * cta.n > 192 * 192:
        return None
    return replace(
        schedule,
        tile=replace(schedule.tile, warp=WarpTile(cta.m, cta.n // 2)),
        roles=Roles("cooperative", 40, 232),
    )


def compile_program(case: Random, arch: str) -> Kernel:
    """The kernel, chosen for the case's sizes; a roomy case takes a random schedule with roles."""
    fused = fuse(parse_expression(case.expression, case.names), name=f"random_{case.seed}")
    if not case.roomy and not case.with_roles:
        return fused.compile(*case.signature, arch=arch, sizes=case.sizes, out_dtype=case.out_dtype)
    if case.with_roles:
        return _compile_with_roles(case, arch, fused)
    choices = role_schedules()
    random.Random(case.seed).shuffle(choices)
    for schedule in choices:
        try:
            # Without sizes the automatic choice is a large tile, and many epilogues make it spill.
            sizes = case.sizes if schedule == "auto" else {}
            kernel = fused.compile(
                *case.signature, arch=arch, sizes=sizes, schedule=schedule,
                out_dtype=case.out_dtype,
            )  # fmt: skip
            kernel.artifact  # noqa: B018  (may spill)
        except PolygenError:  # it does not fit this program; "auto" always does
            if schedule == "auto":
                raise
            continue
        return kernel
    raise AssertionError("auto is among the choices")


def _compile_with_roles(case: Random, arch: str, fused: Fused) -> Kernel:
    """The kernel of a random shipped schedule with roles, fitted to rows at any address."""
    options = {"sizes": case.sizes, "out_dtype": case.out_dtype}
    program = fused.program(*case.signature, **options)
    tensors = {t.name: t for t in program.inputs}
    moved = any(case.pitches[n] or case.offsets[n] for n in case.names)
    texts = [
        f"{text}@{tensors[name].dtype.bytes}" if moved and tensors[name].dims else text
        for name, text in zip(case.names, case.signature, strict=True)
    ]
    program = with_sizes(fused.program(*texts, **options), case.sizes)
    _, fit = candidates(program, device(arch), case.sizes)
    choices = [s for s in shipped(arch) if s.specialised and s.cluster == Cluster()]
    random.Random(case.seed).shuffle(choices)
    for schedule in choices:
        fitted = fit(schedule)
        if isinstance(fitted, Fitted):
            try:
                kernel = fused.compile(*texts, arch=arch, schedule=fitted.schedule, **options)
                kernel.artifact  # noqa: B018  (may spill)
            except PolygenError:
                continue
            return kernel
    return fused.compile(*texts, arch=arch, **options)  # of a type that no such schedule takes


def pitch_of(case: Random, name: str, row: int, item: int) -> int:
    """Extra elements per stored row of `row` elements."""
    if not case.roomy:
        return case.pitches[name]
    step = 16 // item
    return -row % step + step * (case.pitches[name] % 3)


def floats(case: Random, kernel: Kernel) -> dict[str, Any]:
    """Normal operands by name, as their types hold them: arrays in float64, numbers for scalars."""
    rng = np.random.default_rng(case.seed)
    made: dict[str, Any] = {}
    for tensor in kernel.program.inputs:
        shape = tuple(d if isinstance(d, int) else case.sizes[d] for d in tensor.dims)
        data = rng.standard_normal(shape, np.float32)
        held = np.asarray(data).astype(dtype(tensor.dtype).numpy).astype(np.float64)
        made[tensor.name] = held if shape else float(held)
    return made


def has_float_bound(case: Random) -> bool:
    """Whether a bound for floats is known.

    A comparison turns the smallest error into a jump, and nobody says how many bits the matrix
    units keep of sums of 8-bit products.
    """
    return "where" not in case.expression and "e4m3" not in case.signature[0]


def values(case: Random, kernel: Kernel) -> dict[str, Any]:
    """Integer operands by name: arrays in float64, numbers for scalars."""
    rng = np.random.default_rng(case.seed)
    made: dict[str, Any] = {}
    for tensor in kernel.program.inputs:
        shape = tuple(d if isinstance(d, int) else case.sizes[d] for d in tensor.dims)
        least, end = {U8: (0, 256), BOOL: (0, 2)}.get(tensor.dtype, (-2, 3))
        data = rng.integers(least, end, shape).astype(np.float64)
        made[tensor.name] = data if shape else float(data)
    return made


def run_random(
    case: Random,
    arch: str,
    call: Callable[[Kernel, list[Any]], list[Any]],
    exact: bool = True,
    compiled: Callable[[Random, str], Kernel] | None = None,
) -> str:
    """Run one case; "" if every output is what it should be, else what differs.

    Args:
        case: the program.
        arch: the target.
        call: runs the kernel on operands (see `stored`), returns NumPy outputs.
        exact: integer data and equality; otherwise floats, each output within its bound.
        compiled: makes the kernel; `compile_program` by default.
    """
    kernel = (compiled or compile_program)(case, arch)
    if not exact:
        return _run_floats(case, kernel, call)
    data = values(case, kernel)
    wanted = evaluate(kernel.program, data, case.sizes)
    found = call(kernel, operands_of(case, kernel, data))
    for tensor, got, exactly in zip(kernel.program.outputs, found, wanted, strict=True):
        a, b = got.astype(np.float64), exactly.astype(np.float64)
        bad = ~((a == b) | (np.isnan(a) & np.isnan(b)))
        if a.shape != b.shape or bad.any():
            first = tuple(np.argwhere(bad)[0]) if bad.any() else ()
            return (
                f"{case}\n  {tensor.name}: {int(bad.sum())} of {bad.size} differ, first at {first}:"
                f" {a[first]} for {b[first]}; schedule {kernel.schedule.name}"
            )
    return ""


def _run_floats(case: Random, kernel: Kernel, call: Any) -> str:
    data = floats(case, kernel)
    wanted = expected(kernel.program, data, case.sizes, kernel.passes.plan.atom.k)
    found = call(kernel, operands_of(case, kernel, data))
    for one, got in zip(wanted, found, strict=True):
        error, ratio, above = one.compare(got)
        if above:
            return (
                f"{case}\n  {one.tensor.name}: {above} of {got.size} are above their bound, by "
                f"{ratio:.2f} times at most (error {error:.3g}); schedule {kernel.schedule.name}"
            )
    return ""


def operands_of(case: Random, kernel: Kernel, data: dict[str, Any] | None = None) -> list[Any]:
    """What `run_random` calls a kernel with: numbers, and of arrays what `stored_numpy` takes.

    Args:
        case: the program.
        kernel: its kernel.
        data: what they hold; `values` by default.
    """
    data = values(case, kernel) if data is None else data
    operands: list[Any] = []
    for t in kernel.program.inputs:
        if not t.dims:
            operands.append(data[t.name])
            continue
        row = data[t.name].shape[t.order[-1]] if len(t.dims) > 1 else 0
        pitch = pitch_of(case, t.name, row, t.dtype.bytes)
        operands.append((t, data[t.name], pitch, case.offsets[t.name]))
    return operands


def layout(tensor: Tensor, shape: tuple[int, ...], pitch: int) -> tuple[int, tuple[int, ...]]:
    """Elements to allocate, and strides in elements, of an array with a row pitch."""
    if len(shape) == 1:
        return shape[0], (1,)
    *slow, fast = tensor.order
    step = shape[fast] + (pitch if any(shape[axis] > 1 for axis in slow) else 0)
    strides = [1] * len(shape)
    for axis in reversed(slow):
        strides[axis] = step
        step *= shape[axis]
    return step, tuple(strides)


def stored_numpy(tensor: Tensor, data: np.ndarray, pitch: int) -> np.ndarray:  # type: ignore[type-arg]
    """The data as a NumPy array with the tensor's dtype, order and row pitch."""
    count, strides = layout(tensor, data.shape, pitch)
    kind = dtype(tensor.dtype).numpy
    base = np.zeros(count * kind.itemsize, np.uint8).view(f"u{kind.itemsize}")
    array = np.lib.stride_tricks.as_strided(base, data.shape, [s * base.itemsize for s in strides])
    array[...] = data.astype(np.float32).astype(kind).view(base.dtype)
    return array.view(kind)  # NumPy strides over no type of ml_dtypes
