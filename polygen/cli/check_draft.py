"""A launch file to begin with, from what a kernel's PTX says of itself.

1. A parameter of 128 bytes is a tensor map; one of 8 bytes whose value becomes an address is an
   array, one that is a handle a texture or surface; the others are numbers.
2. An array's dtype is that of the first access through it; one that is only stored to begins as
   NaN, or zeros. What is computed from a parameter is followed through the text.
3. Block and dynamic shared memory are those of the launch bounds and declarations, where they say;
   a kernel that reads ``%tid.y`` or ``%tid.z`` gets a block with such sides.
   Sizes and numbers are not in the text: the draft has some, to be changed.
"""

from __future__ import annotations

import re

from polygen.errors import LaunchError
from polygen.machine.module import Instruction, Kernel, Module, Variable, items, type_bytes

LENGTH, NUMBER, THREADS, SHARED = 1024, 64, 128, 32768
SQUARE, CUBE = (16, 16), (8, 8, 4)
_MOVES = frozenset(["mov", "cvta", "cvt", "add", "sub", "mad", "selp", "shl"])
_ACCESSES = frozenset(["ld", "st", "atom", "red", "cp", "wmma"])
_DTYPES = {"f32": "f32", "f64": "f64", "f16": "f16", "bf16": "bf16", "s32": "s32", "u64": "u64",
           "s64": "s64", "b64": "u64", "u8": "u8", "s8": "s8", "b8": "u8"}  # fmt: skip
_SCALARS = {"u32": "s32", "b32": "s32", "s32": "s32", "f32": "f32", "f64": "f64", "u64": "s64",
            "b64": "s64", "s64": "s64", "u16": "u16", "b16": "u16", "s16": "s16", "u8": "u8",
            "b8": "u8", "s8": "s8"}  # fmt: skip


def chosen(module: Module, name: str) -> Kernel:
    """The kernel of a name, or the only one.

    Raises:
        LaunchError: there is none of that name, or several.
    """
    if name in module.kernels:
        return module.kernels[name]
    if name or len(module.kernels) > 1:
        what = f"no kernel named {name}" if name else "the file has several kernels"
        raise LaunchError(what, nearest=f"--name with one of {', '.join(module.kernels)}")
    return next(iter(module.kernels.values()))


def draft(module: Module, kernel: Kernel) -> str:
    """The text of a launch file for a kernel."""
    lines = [
        f"# A draft for {kernel.name}: sizes and numbers are guesses, to be changed.",
        "format = 1",
        f'arch = "{module.target}"',
        f'entry = "{kernel.name}"',
        _grid(kernel),
        f"block = {_block(kernel)}",
    ]
    shared = [one for one in (*module.variables, *kernel.variables) if one.space == "shared"]
    if any(not one.size for one in shared):
        lines.append(f"shared_bytes = {SHARED}  # it has a dynamic array")
    for number, parameter in enumerate(kernel.parameters):
        lines += ["", f"[[argument]]  # {number}: {parameter.name}", *_argument(kernel, parameter)]
    return "\n".join(lines) + "\n"


def _grid(kernel: Kernel) -> str:
    if kernel.cluster == (1, 1, 1):
        return "grid = [1]"
    return f"grid = {list(kernel.cluster)}  # one cluster of its .reqnctapercluster"


def block(kernel: Kernel) -> tuple[int, ...]:
    """That of the launch bounds; a guess where there are none, with the sides that it asks for."""
    if kernel.block or kernel.threads_most:
        return kernel.block or (kernel.threads_most,)
    named = {word for one in kernel.instructions for word in one.operands}
    if "%tid.z" in named:
        return CUBE
    return SQUARE if "%tid.y" in named else (THREADS,)


def _block(kernel: Kernel) -> str:
    text = str(list(block(kernel)))
    if kernel.block:
        return f"{text}  # its .reqntid"
    return f"{text}  # its launch bounds allow no more" if kernel.threads_most else text


def _argument(kernel: Kernel, parameter: Variable) -> list[str]:
    reached = _reached(kernel, parameter.name)
    if (parameter.size == 128 and parameter.align >= 64) or _describes(kernel, reached):
        rank = _rank(kernel)
        shape = ", ".join(["2"] * (rank - 2) + ["128"] * min(rank, 2))
        box = ", ".join(["1"] * (rank - 2) + ["64"] * min(rank, 2))
        return [
            'kind = "tensor-map"', 'dtype = "f16"', f"shape = [{shape}]",
            f"box = [{box}]", "swizzle = 128",
        ]  # fmt: skip
    images = [one for one in kernel.instructions if _handles(one, reached)]
    if images and parameter.size in (0, 8):
        return _image(images[0])
    uses = [one for one in kernel.instructions if _through(one, reached)]
    if parameter.kind in ("u64", "b64", "s64") and uses:
        dtype = _dtype(kernel, uses)
        lines = ['kind = "array"', f'dtype = "{dtype}"', f"shape = [{LENGTH}]"]
        if all(one.parts[0] == "st" for one in uses):
            fill = "nan" if dtype[0] in "fb" else "zeros"
            lines.append(f'fill = "{fill}"  # the kernel only stores to it')
        return lines
    bytes_ = parameter.size or type_bytes(parameter.kind)
    if parameter.kind not in _SCALARS or bytes_ != type_bytes(parameter.kind):
        return ['kind = "struct"', f"size = {bytes_}"]
    return ['kind = "scalar"', f'dtype = "{_SCALARS[parameter.kind]}"', f"value = {NUMBER}"]


_READS, _SURFACES = ("tex", "tld4"), ("suld", "sust")
_SHAPES = {"1d": [1024], "2d": [32, 32], "3d": [16, 16, 16], "a1d": [4, 256], "a2d": [4, 32, 32],
           "cube": [6, 32, 32]}  # fmt: skip
_TEXELS = {"b8": "u8", "b16": "u16", "b32": "u32", "b64": "u32"}


def _handles(one: Instruction, reached: set[str]) -> bool:
    """Whether an instruction reads or writes an image whose handle is reached."""
    return one.parts[0] in (*_READS, *_SURFACES) and any(
        operand.startswith("[") and _base(operand) in reached for operand in one.operands
    )


def _image(one: Instruction) -> list[str]:
    """A texture or surface as an instruction uses it."""
    form = next((part for part in one.parts if part in _SHAPES), "2d")
    reads = one.parts[0] in _READS
    channels = 1
    if not reads:
        vectors = {"v2": 2, "v4": 4}
        channels = max((vectors.get(part, 1) for part in one.parts), default=1)
        channels *= 2 if one.parts[-2] == "b64" else 1
    kind = one.parts[-2] if reads else next((p for p in one.parts if p in _TEXELS), "b32")
    shape = _SHAPES[form] + [channels] * (channels > 1)
    lines = [f'kind = "{"texture" if reads else "surface"}"']
    lines.append(
        f'dtype = "{kind if reads and kind in ("u32", "s32") else _TEXELS.get(kind, "f32")}"'
    )
    lines.append(f"shape = {shape}")
    lines += [f"channels = {channels}"] * (channels > 1)
    lines += ["layered = true"] * (form in ("a1d", "a2d")) + ["cube = true"] * (form == "cube")
    return lines


def _reached(kernel: Kernel, name: str) -> set[str]:
    """The parameter's name, and the registers that its value, or sums with it, are in."""
    reached, size = {name}, 0
    while len(reached) != size:
        size = len(reached)
        for one in kernel.instructions:
            loads = one.parts[:2] == ("ld", "param") and _base(one.operands[1]) == name
            moves = one.parts[0] in _MOVES and reached.intersection(one.operands[1:])
            if loads or moves:
                reached.update(items(one.operands[0]))
    return reached


def _base(operand: str) -> str:
    return re.split(r"[+\[\]\s,]+", operand.strip("[ "))[0]


def _through(one: Instruction, reached: set[str]) -> bool:
    """Whether an instruction accesses memory at an address that is reached."""
    if one.parts[0] not in _ACCESSES or one.parts[1:2] == ("param",):
        return False
    return any(operand.startswith("[") and _base(operand) in reached for operand in one.operands)


def _describes(kernel: Kernel, reached: set[str]) -> bool:
    """Whether a parameter's address, or what it points to, is used as a tensor map."""
    return any(
        "tensor" in one.parts and any(_base(operand) in reached for operand in one.operands)
        for one in kernel.instructions
        if one.parts[0] in ("cp", "prefetch")
    )


def _rank(kernel: Kernel) -> int:
    parts = (part for one in kernel.instructions if "tensor" in one.parts for part in one.parts)
    ranks = [int(part[0]) for part in parts if re.fullmatch(r"[1-5]d", part)]
    return max(ranks, default=2)


def _dtype(kernel: Kernel, uses: list[Instruction]) -> str:
    """Of the elements behind an address, by the accesses through it."""
    brain = any("bf16" in part for one in kernel.instructions for part in one.parts)
    for one in uses:
        kind = one.parts[-1]
        if kind in _DTYPES:
            return _DTYPES[kind]
        if kind in ("b16", "u16"):
            return "bf16" if brain else "f16"
        if one.parts[0] == "cp" or "v4" in one.parts or "v2" in one.parts:
            return "bf16" if brain else "f16" if _halves(kernel) else "f32"
    return "u32"


def _halves(kernel: Kernel) -> bool:
    return any(part.startswith("f16") for one in kernel.instructions for part in one.parts)
