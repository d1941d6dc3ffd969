"""Pointwise functions alone in a kernel, on the PTX machine, as an epilogue would have them."""

from __future__ import annotations

import contextlib
import functools
import math
from pathlib import Path

import jinja2
import ml_dtypes
import numpy as np
import pytest

import polygen
from polygen.emit import ctext
from polygen.emit.function_errors import recorded_error
from polygen.emit.primitives import SPECIAL
from polygen.frontend.dtypes import BF16, BOOL, F16, F32
from polygen.frontend.functions import TABLE
from polygen.machine import Launch, run
from polygen.machine.compute import FLOATING
from polygen.poly.pointwise import Compute

TEMPLATES = Path(polygen.__file__).parent / "emit" / "templates"
BLOCK = 256
TYPES = {"f32": (F32, "float"), "f16": (F16, "unsigned short"), "bf16": (BF16, "unsigned short")}
STORED = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def gelu_tanh(
    x,
):  # the definition's argument of e overflows float64 later than f32, but loses digits
    return x * TABLE["sigmoid"].reference(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


REFERENCE = {"gelu_tanh": gelu_tanh}


def reference(name, *args):
    """A function of the vocabulary by NumPy in float64."""
    with np.errstate(all="ignore"):
        function = REFERENCE.get(name) or TABLE[name].reference
        return np.asarray(function(*(np.asarray(arg, np.float64) for arg in args)), np.float64)


def arrays_of(name):
    """How many arguments of a function are arrays here; the others have defaults or are limits."""
    function = TABLE[name]
    return {"clip": 1}.get(name, len(function.parameters) - len(function.defaults))


def ptx_of(text):
    """PTX of CUDA."""
    nvrtc = pytest.importorskip("cupy").cuda.nvrtc
    program = nvrtc.createProgram(text, "kernel.cu", (), ())
    try:
        nvrtc.compileProgram(program, ("-arch=sm_80", "--std=c++17", "-default-device"))
        return nvrtc.getPTX(program).decode()
    except nvrtc.NVRTCError as error:
        raise AssertionError(nvrtc.getProgramLog(program)) from error
    finally:
        nvrtc.destroyProgram(program)


@functools.cache
def compiled(name, constants=(), fast=True, dtype="f32", special=False):
    """PTX of a kernel that applies a function to every element.

    Args:
        name: a function of the vocabulary.
        constants: the arguments after the arrays.
        fast: take the form that kernels with narrow outputs take.
        dtype: what the kernel stores.
        special: the special function unit takes reciprocals.
    """
    operands = ("a", "b", "c")[: len(TABLE[name].parameters) - len(constants)] + constants
    statements = [Compute("v", name, operands, TABLE[name].result)]
    if name == "where":
        statements = [
            Compute("p", "gt", ("a", 0.0), BOOL),
            Compute("v", name, ("p", *operands[1:]), F32),
        ]
    kind, stored = TYPES[dtype]
    statements.append(Compute("out", "cast", ("v",), kind))
    elements = {"a": "x[i]", "b": "y[i]", "c": "z[i]"}
    lines, helpers = ctext.pointwise(tuple(statements), elements, {"out": "result"}, fast)
    loader = jinja2.FileSystemLoader(TEMPLATES)
    text = jinja2.Environment(loader=loader).get_template("types.cu.j2").render(types=[]) + "\n"
    forms = SPECIAL if special else {}
    files = (TEMPLATES / f"functions/{forms.get(name, name)}.cu.j2" for name in helpers)
    text += "\n".join(file.read_text() for file in files)
    text += 'extern "C" __global__ void k(const float* x, const float* y, const float* z,\n'
    text += f"                             {stored}* to) {{\n"
    text += "const int i = blockIdx.x * blockDim.x + threadIdx.x;\nfloat result;\n"
    return ptx_of(text + "\n".join(lines) + f"\nto[i] = to_{dtype}(result);\n}}\n")


def apply(name, *args, constants=(), fast=True, dtype="f32", special=False, note=""):
    """A function of the vocabulary on float32 vectors, as a kernel does it.

    The machine remembers what it has translated; a `note` in the PTX makes it another text.
    """
    count = len(args[0])
    blocks = -(-count // BLOCK)
    padded = [np.pad(arg, (0, blocks * BLOCK - count)) for arg in (*args, *args[:1] * 3)[:3]]
    arrays = (*padded, np.zeros(blocks * BLOCK, STORED[dtype]))
    launch = Launch((blocks, 1, 1), (BLOCK, 1, 1), 0, arrays)
    report = run(f"{compiled(name, constants, fast, dtype, special)}\n// {note}\n", launch)
    assert report.ok, str(report)
    return report.arrays[3][:count]


def every(step):
    """Every `step`-th of all float32, and many near zero."""
    values = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)
    values = values[np.isfinite(values)]
    return np.concatenate([values, np.linspace(-12, 12, 1 << 16).astype(np.float32)])


def partners(x, seed=0):
    """Second arguments: from everywhere, a third of them of a size with the first."""
    generator = np.random.default_rng(seed)
    y = generator.permutation(x)
    with np.errstate(over="ignore"):
        y[::3] = (x * generator.uniform(-4, 4, len(x)).astype(np.float32))[::3]
    return y


def arguments(name, x):
    """As many arrays as a function takes."""
    return [x, *(partners(x, seed) for seed in range(arrays_of(name) - 1))]


# NumPy leaves open which of 0 and -0 the greater is, and so do its definitions that use it.
EITHER_ZERO = {"minimum", "maximum", "relu", "clip"}


def rounded(values, dtype):
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return values.astype(np.float32).astype(STORED[dtype]).astype(np.float64)


def beyond_record(call, args, dtype, found):
    """Elements that no value within the recorded error of NumPy's would have been stored as.

    Args:
        call: a function's name, and the constants after its arrays.
        args: the arrays.
        dtype: what the kernel stores; 16 bits take the fast forms.
        found: what it stored.
    """
    name, constants = call
    fast = dtype != "f32"
    found = found.astype(np.float64)
    singles = [np.float32(constant) for constant in constants]
    wanted = np.broadcast_to(reference(name, *args, *singles), found.shape)
    if name == "where":
        wanted = np.where(args[0] > 0, *(arg.astype(np.float64) for arg in args[1:]))
    constant = constants[-1] if constants else None
    absolute, relative = recorded_error(name, constant, fast)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.where(np.isfinite(wanted), absolute + relative * np.abs(wanted), 0.0)
        low, high = rounded(wanted - error, dtype), rounded(wanted + error, dtype)
        right = (low <= found) & (found <= high) | np.isnan(found) & np.isnan(wanted)
        if name not in EITHER_ZERO:
            right &= (found != 0) | np.isnan(wanted) | (np.signbit(found) == np.signbit(wanted))
    return [
        (*(float(arg[at]) for arg in args), "gives", found[at], "for", wanted[at])
        for at in np.flatnonzero(~right)
    ]


# --- approximate instructions
# What NVIDIA documents for them (PTX ISA, "Floating Point Instructions"): relative, but for lg2
# absolute where its argument is between 1/2 and 2. The machine's own are right to the last place.
DOCUMENTED = {"ex2": 2.0**-22, "lg2": 2.0**-22, "rcp": 2.0**-23, "sqrt": 2.0**-23, "div": 2.0**-22}
SIGNS = [(0, 0), (1, 1), (1, -1), (-1, 1), (-1, -1)]


@contextlib.contextmanager
def off_by(signs):
    """The machine's approximate instructions, all off by what is documented, in either direction.

    Args:
        signs: that of the reciprocal, and that of the others; 0 for none.

    Yields:
        A note for `apply`.
    """
    exact = {name: FLOATING[name] for name in DOCUMENTED}
    for name, error in DOCUMENTED.items():
        off = signs[name != "rcp"] * error
        text = f"({exact[name]}) * N.float32({1 + off!r})"
        if name == "lg2":
            shifted = f"({exact[name]}) + N.float32({off!r})"
            text = f"N.where(abs({exact[name]}) <= 1, {shifted}, {text})"
        FLOATING[name] = text
    try:
        yield str(signs)
    finally:
        FLOATING.update(exact)
