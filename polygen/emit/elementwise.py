"""CUDA of kernels of a text for one element that CuPy's fusion has made.

In `elementwise` each thread computes one; in `total` one block folds them all to a single number.

Operands are read in one of three ways, or are numbers:

    n    a number
    w    an array without gaps, of the results' shape: element i
    o    a single element
    s    row ``i // inner``, column ``i % inner``, with a stride for either
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polygen.hardware.device import common_facts

NAME = "polygen_numpy"
_HEADERS = ("complex.cuh", "carray.cuh", "atomics.cuh", "math_constants.h")  # CuPy's own


@dataclass(frozen=True, slots=True)
class Value:
    """What the text reads or writes.

    Attributes:
        name: in the text.
        kind: C++ type.
        is_const: whether the text only reads it.
    """

    name: str
    kind: str
    is_const: bool


def elementwise(
    operands: Sequence[Value], results: Sequence[Value], ways: str, before: str, text: str
) -> str:
    """The source of the kernel `NAME`.

    It takes the operands, the results, the number of elements, and where an operand is strided,
    the inner extent and two strides of each that is, all of them 64 bits.

    Args:
        operands: in order.
        results: in order; without gaps.
        ways: one letter for each operand.
        before: what the text needs defined.
        text: statements for one element.
    """
    parameters, inside, after = _read(operands, ways)
    for number, one in enumerate(results):
        parameters.append(f"{one.kind}* q{number}")
        inside.append(f"{one.kind}& {one.name} = q{number}[i];")
    body = [
        "const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;",
        "if (i >= (unsigned)size) return;",
        *inside,
        text,
    ]
    return _whole(before, [*parameters, *after], body)


@dataclass(frozen=True, slots=True)
class Text:
    """Statements that CuPy's fusion has made.

    Attributes:
        before: what they need defined.
        text: of one element.
    """

    before: str
    text: str


# A fold's first value, and how it goes on; as NumPy's, what is no number stays.
_FOLDS = {
    "sum": ("0", "return a + b;"),
    "max": ("-CUDART_INF", "return b != b ? b : a != a ? a : b > a ? b : a;"),
    "min": ("CUDART_INF", "return b != b ? b : a != a ? a : b < a ? b : a;"),
}
FOLDS = frozenset(_FOLDS)
_UNROLLED = 4


def total(
    operands: Sequence[Value], ways: str, element: Text | None, value: Value, fold: str,
    count: int, others: Sequence[Value], results: Sequence[Value], tail: Text | None,
) -> str:  # fmt: skip
    """The source of a kernel `NAME` of one block, at least a warp, that folds to one number.

    It takes the operands of the elements, those of the tail by address or as numbers, results, the
    number of elements, and strides as `elementwise` does. The block's threads take turns, then each
    warp folds what its lanes have, then the first warp what the warps have: its one barrier is for
    the flow of `parts` from all warps to the first. No product is in it, and no tile program: it is
    one of CuPy's kernels for the NumPy adapter, and is checked by being run. CuPy's own, a
    `ReductionKernel`, takes 1.3 to 2.2 times as long (docs/numpy.md).

    Args:
        operands: of the elements.
        ways: one letter for each of them.
        element: what an element is computed by; None: it is the one operand.
        value: an element's name, and type, in which it is folded.
        fold: one of `FOLDS`.
        count: what a sum is divided by; 1: it is none that is.
        others: operands of the tail behind the fold; a kind that ends with ``*`` is an address.
        results: of the tail, single elements; of the fold where there is no tail.
        tail: what is computed of the fold, whose name is that of the first of `others`.
    """
    parameters, inside, after = _read(operands, ways)
    kind, (first, onward) = value.kind, _FOLDS[fold]
    divided = f" / {kind}({count})" if count > 1 else ""
    warp = common_facts()["warp_size"]
    ends = [f"const {kind} {others[0].name} = found{divided};"]
    for number, one in enumerate(others[1:]):
        pointer = one.kind.endswith("*")
        parameters.append(f"{one.kind} o{number}")
        at = f"*o{number}" if pointer else f"o{number}"
        ends.append(f"{one.kind.removesuffix('*')}{'&' if pointer else ''} {one.name} = {at};")
    for number, one in enumerate(results):
        parameters.append(f"{one.kind}* q{number}")
        ends.append(f"{one.kind}& {one.name} = *q{number};")
    if tail is None:
        ends.append(f"{results[0].name} = {others[0].name};")
    made = [] if element is None else [f"{kind} {value.name};", *_inside("element", element)]
    other = "__shfl_down_sync(~0u, found, d)"
    shuffled = f"for (int d = {warp // 2}; d; d >>= 1) found = folded(found, {other});"
    body = [
        f"{kind} found = {first};",
        f"#pragma unroll {_UNROLLED}",
        "for (unsigned i = threadIdx.x; i < (unsigned)size; i += blockDim.x) {",
        *inside,
        *made,
        f"found = folded(found, {value.name});",
        "}",
        shuffled,
        f"__shared__ {kind} parts[{warp}];",
        f"if (threadIdx.x % {warp} == 0) parts[threadIdx.x / {warp}] = found;",
        "__syncthreads();",
        f"if (threadIdx.x >= {warp}) return;",
        f"found = threadIdx.x < blockDim.x / {warp} ? parts[threadIdx.x] : {first};",
        shuffled,
        "if (threadIdx.x) return;",
        *ends,
        *([] if tail is None else _inside("behind", tail)),
    ]
    texts = {"element": element, "behind": tail}
    named = [(name, one.before) for name, one in texts.items() if one is not None]
    folded = f"static __device__ {kind} folded({kind} a, {kind} b) {{ {onward} }}"
    before = "\n".join([*(_named(*one) for one in named), folded])
    return _whole(before, [*parameters, *after], body)


def _inside(name: str, one: Text) -> list[str]:
    return ["{", f"using namespace {name};", one.text, "}"]


def _named(name: str, before: str) -> str:
    """Definitions in a namespace of their own, behind what they include."""
    lines = before.splitlines()
    included = [line for line in lines if line.lstrip().startswith("#include")]
    rest = [line for line in lines if not line.lstrip().startswith("#include")]
    return "\n".join([*included, f"namespace {name} {{", *rest, "}"])


def _whole(before: str, parameters: Sequence[str], body: Sequence[str]) -> str:
    lines = [
        *(f'#include "cupy/{header}"' for header in _HEADERS),
        before,
        f'extern "C" __global__ void {NAME}({", ".join(parameters)}) {{',
        *body,
        "}",
    ]
    return "\n".join(lines)


def _read(operands: Sequence[Value], ways: str) -> tuple[list[str], list[str], list[str]]:
    """Parameters of operands, statements that read element i of them, and what tells where."""
    parameters, inside, after = [], [], ["const long long size"]
    if "s" in ways:
        after.append("const long long inner")
        inside.append("const int r = i / (unsigned)inner, c = i - (unsigned)r * (unsigned)inner;")
    for number, (one, way) in enumerate(zip(operands, ways, strict=True)):
        const = "const " if one.is_const else ""
        if way == "n":
            parameters.append(f"const {one.kind} p{number}")
            inside.append(f"const {one.kind} {one.name} = p{number};")
            continue
        if way == "s":
            after += [f"const long long a{number}", f"const long long b{number}"]
        at = {"w": "i", "o": "0", "s": f"r * (int)a{number} + c * (int)b{number}"}[way]
        parameters.append(f"{const}{one.kind}* p{number}")
        kept = "" if one.is_const else "&"
        inside.append(f"{const}{one.kind}{kept} {one.name} = p{number}[{at}];")
    return parameters, inside, after
