"""`judge`: anybody's kernel, one launch, and what it should compute -> a verdict with reasons.

1. The CUDA text is compiled and run on the PTX machine in a process of its own, with limits of time
   and memory, once for each order in which asynchronous copies may land.
2. Its arrays are compared with what the reference says.
3. The verdict is *right*, *wrong*, *refused* (it does not compile, the machine does not know an
   instruction, the launch does not fit) or *stopped* (a limit was met). Each has its reasons.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polygen.brief import Brief
from polygen.errors import ArgumentError, PolygenError, echo
from polygen.hardware.device import device
from polygen.machine import Finding, Launch, Struct, Surface, TensorMap, Texture, run
from polygen.machine.run import arrays_of
from polygen.runtime import sandbox
from polygen.runtime.outside import compile_text

COMPLETIONS = ("late", "early", "random")
ENDLESS = 10**12  # steps: what never ends is stopped by the clock

Array = np.ndarray[Any, Any]
Expected = Array | Sequence[Array | None] | Mapping[int, Array]
Reference = Expected | Callable[..., Expected] | None


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that speaks against a kernel.

    Attributes:
        code: a finding of the machine (docs/machine.md), ``wrong-value``, or the class of an error.
        sentence: what happened, in words.
        where: instructions and source lines; "" when it has no place.
        count: how many accesses or elements show it.
        story: who did what, and what stands between, line by line.
        completions: in which runs it showed: see `judge`.
    """

    code: str
    sentence: str
    where: str = ""
    count: int = 1
    story: tuple[str, ...] = ()
    completions: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return f"{self.code}: {self.sentence}{place}"


@dataclass(frozen=True, slots=True, repr=False)
class Verdict(Brief):
    """What came of judging a kernel.

    Attributes:
        outcome: "right", "wrong", "refused" or "stopped".
        reasons: why it is not right; empty when it is.
        notes: what is no mistake of this launch, and may be one elsewhere.
        arrays: one per array argument after the first run; empty when there was none.
        instructions: warp instructions of that run.
    """

    outcome: str
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()
    arrays: tuple[Array, ...] = ()
    instructions: int = 0

    @property
    def ok(self) -> bool:
        """Whether the kernel is right."""
        return self.outcome == "right"

    def as_json(self) -> dict[str, Any]:
        """The verdict as plain values, without the arrays."""
        return {
            "ok": self.ok,
            "outcome": self.outcome,
            "reasons": [dataclasses.asdict(reason) for reason in self.reasons],
            "notes": list(self.notes),
            "instructions": self.instructions,
        }

    def __str__(self) -> str:
        lines = [f"{self.outcome}: {len(self.reasons)} reason(s)" if self.reasons else self.outcome]
        lines += [f"  {reason}" for reason in self.reasons]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def judge(
    source: str | Path,
    launch: Launch,
    reference: Reference = None,
    *,
    arch: str = "sm_90a",
    completions: Sequence[str] = COMPLETIONS,
    seed: int = 0,
    atol: float = 0.0,
    rtol: float = 0.0,
    seconds: float = 120.0,
    memory: int = 4 << 30,
) -> Verdict:
    """Judge a kernel that polygen did not write; needs a compiler and no GPU.

    Args:
        source: CUDA text, PTX text, or the path of a ``.cu`` or ``.ptx`` file.
        launch: grid, block, shared memory and arguments, as NumPy arrays, numbers and tensor maps.
        reference: what the arrays should hold afterwards. A mapping from the number of an array
            argument (counted from 0 among the arrays) to its values; a sequence with an entry for
            each of them, None where anything may be; one array, for the last of them; or a function
            that is given copies of the launch's arguments and returns one of these. None: nothing
            is compared.
        arch: what CUDA text is compiled for, as `polygen targets` lists.
        completions: when asynchronous copies land, one run each: "late", "early", "random".
        seed: of "random", and of which waits fail that may.
        atol: how far an element may be off, absolutely; NaN equals NaN.
        rtol: and in relation to what it should be; both 0: all values are equal.
        seconds: the time that compiling and running may take.
        memory: bytes they may take.

    Returns:
        The verdict. A kernel that cannot be compiled, run or waited for gets one, too.

    Raises:
        ArgumentError: the reference fits no array of the launch, or the file cannot be read.
        UnknownTarget: `arch`.
    """
    text, name = _text(source)
    target = device(arch).compile_target
    if not completions or any(one not in COMPLETIONS for one in completions):
        raise ArgumentError(
            f"completions {echo(completions)}", where="judge", nearest=f"Some of {COMPLETIONS}"
        )
    expected = _expected(launch, reference)
    job = (text, name, target, _packed(launch), tuple(completions), seed)
    try:
        said, arrays = sandbox.ask("polygen.verdict:work", job, seconds=seconds, memory=memory)
    except sandbox.Stopped as stopped:
        code = {"time": "time-limit", "memory": "memory-limit"}.get(stopped.limit, "died")
        return Verdict("stopped", (Reason(code, str(stopped)),))
    if "error" in said:
        return Verdict("refused", (Reason(**said["error"]),))
    reasons: dict[tuple[str, str], Reason] = {}
    count = len(expected)
    for number, (completion, findings) in enumerate(said["runs"]):
        mine = arrays[number * count : number * count + count]
        found = [Finding(**{**one, "story": tuple(one["story"])}) for one in findings]
        for one in (*found, *differences(mine, expected, atol=atol, rtol=rtol)):
            old = reasons.get((one.code, one.where))
            shown = (*old.completions, completion) if old else (completion,)
            first = old or Reason(one.code, one.sentence, one.where, one.count, one.story)
            reasons[one.code, one.where] = dataclasses.replace(first, completions=shown)
    outcome = "wrong" if reasons else "right"
    notes = tuple(said["notes"])
    return Verdict(outcome, tuple(reasons.values()), notes, arrays[:count], said["instructions"])


def differences(
    after: Sequence[Array],
    expected: Sequence[Array | None],
    what: str = "array argument {}",
    *,
    atol: float = 0.0,
    rtol: float = 0.0,
) -> tuple[Finding, ...]:
    """One finding per array that is not what was expected; NaN equals NaN.

    Args:
        after: arrays of a run.
        expected: as many; None where anything may be.
        what: names an array, by its number.
        atol: how far an element may be off.
        rtol: and in relation to what is expected.
    """
    found = []
    for number, (array, wanted) in enumerate(zip(after, expected, strict=True)):
        if wanted is None:
            continue
        if array.dtype.kind in "iub":
            differs = array != wanted
        else:
            a, b = array.astype(np.float64), wanted.astype(np.float64)
            with np.errstate(invalid="ignore"):
                near = np.abs(a - b) <= atol + rtol * np.abs(b)
            differs = ~((a == b) | near | (np.isnan(a) & np.isnan(b)))
        if differs.any():
            first = tuple(int(i) for i in np.argwhere(differs)[0])
            place = ", ".join(map(str, first))
            sentence = f"element [{place}] is {array[first]}, expected {wanted[first]}"
            found.append(Finding("wrong-value", sentence, what.format(number), int(differs.sum())))
    return tuple(found)


# --- what goes in --------------------------------------------------------------------------------
def _text(source: str | Path) -> tuple[str, str]:
    """The text, and the name of its file; that of PTX ends in ``.ptx``."""
    if isinstance(source, Path):
        try:
            return source.read_text(encoding="utf-8"), str(source)
        except (OSError, UnicodeDecodeError) as error:
            raise ArgumentError(f"cannot be read: {error}", where=str(source)) from None
    ptx = ".address_size" in source and ".entry" in source
    return source, "kernel.ptx" if ptx else "kernel.cu"


def _arrays(launch: Launch) -> list[Array]:
    """The arrays of a launch, as `Report.arrays` has them."""
    found = arrays_of(launch)
    if any(not array.ndim for array in found):
        raise ArgumentError(
            "an array without axes is no array and no number",
            where="launch",
            nearest="Pass array[()] for a number, array.reshape(1) for a pointer",
        )
    return found


def _expected(launch: Launch, reference: Reference) -> list[Array | None]:
    arrays = _arrays(launch)
    if callable(reference):
        given = [one.array if isinstance(one, TensorMap) else one for one in launch.arguments]
        reference = reference(
            *(one.copy() if isinstance(one, np.ndarray) else one for one in given)
        )
    expected: list[Array | None] = [None] * len(arrays)
    if reference is None:
        return expected
    if isinstance(reference, np.ndarray):
        reference = {len(arrays) - 1: reference}
    if not isinstance(reference, Mapping):
        if len(reference) != len(arrays):
            raise ArgumentError(
                f"{len(reference)} expected arrays for {len(arrays)} of the launch",
                where="reference",
                nearest="Give None for those that may hold anything",
            )
        reference = {at: one for at, one in enumerate(reference) if one is not None}
    for number, values in reference.items():
        if not 0 <= number < len(arrays) or np.shape(values) != arrays[number].shape:
            shapes = ", ".join(str(one.shape) for one in arrays)
            raise ArgumentError(
                f"an array of shape {np.shape(values)} is expected of array argument {number}",
                where="reference",
                nearest=f"The launch has arrays of {shapes or 'no shape'}",
            )
        expected[number] = np.asarray(values)
    return expected


def _packed(launch: Launch) -> tuple[Any, ...]:
    """A launch whose arrays are places in their owners, so that what shares memory still does."""
    roots: dict[int, tuple[int, Array]] = {}

    def place(array: Array) -> tuple[Any, ...]:
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        number, _ = roots.setdefault(id(root), (len(roots), root))
        offset = array.ctypes.data - root.ctypes.data
        return number, offset, array.shape, array.strides, array.dtype

    def packed(value: Any) -> Any:
        if isinstance(value, TensorMap):
            whole = None if value.whole is None else place(value.whole)
            rest = (value.box, value.swizzle, value.nan_fill, value.kind, value.every)
            return "map", place(value.array), rest, whole
        if isinstance(value, np.ndarray):
            return "array", place(value)
        if isinstance(value, Struct):
            targets = [(at, packed(one), start) for at, one, start in value.targets("launch")]
            return "struct", value.data, targets
        if isinstance(value, Texture | Surface):
            names = [one.name for one in dataclasses.fields(value) if one.name != "array"]
            return type(value).__name__, place(value.array), {n: getattr(value, n) for n in names}
        if isinstance(value, tuple):
            return "tuple", [packed(piece) for piece in value]
        return "value", value

    arguments = [packed(value) for value in launch.arguments]
    buffers = [np.frombuffer(root.tobytes("A"), np.uint8) for _, root in roots.values()]
    head = launch.grid, launch.block, launch.shared_bytes, launch.entry, launch.cluster
    return head, arguments, buffers


def _unpacked(given: tuple[Any, ...]) -> Launch:
    (grid, block, shared_bytes, entry, cluster), arguments, buffers = given

    def array(where: tuple[Any, ...]) -> Array:
        number, offset, shape, strides, dtype = where
        return np.ndarray(shape, dtype, buffers[number].data, offset, strides)

    def value(one: Any) -> Any:
        if one[0] == "map":
            whole = None if one[3] is None else array(one[3])
            box, swizzle, nan_fill, kind, every = one[2]
            return TensorMap(array(one[1]), box, swizzle, nan_fill, kind, whole, every)
        if one[0] == "array":
            return array(one[1])
        if one[0] == "struct":
            found = [(at, value(to), start) for at, to, start in one[2]]
            return Struct(one[1], {at: (to, start) if start else to for at, to, start in found})
        if one[0] in ("Texture", "Surface"):
            image = Texture if one[0] == "Texture" else Surface
            return image(array(one[1]), **one[2])
        return tuple(map(value, one[1])) if one[0] == "tuple" else one[1]

    return Launch(grid, block, shared_bytes, tuple(map(value, arguments)), entry, cluster)


# --- in the process ------------------------------------------------------------------------------
def work(job: tuple[Any, ...]) -> sandbox.Answer:
    """Compile and run; called in the sandbox."""
    text, name, target, packed, completions, seed = job
    launch = _unpacked(packed)
    runs: list[tuple[str, list[dict[str, Any]]]] = []
    arrays: list[Array] = []
    notes: tuple[str, ...] = ()
    instructions = 0
    try:
        ptx = text if name.endswith(".ptx") else compile_text(text, Path(name), target)
        for completion in completions:
            report = run(ptx, launch, completion=completion, seed=seed, max_steps=ENDLESS)
            found = [dataclasses.asdict(one) for one in report.findings]
            runs.append((completion, found))
            arrays += report.arrays
            if not instructions:
                notes, instructions = report.notes, report.instructions
    except PolygenError as error:
        reason = {"code": type(error).__name__, "sentence": str(error)}
        return {"error": reason}, ()
    return {"runs": runs, "notes": notes, "instructions": instructions}, tuple(arrays)
