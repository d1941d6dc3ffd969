"""The epilogue's accesses in the kernel's terms: strides by argument, bytes per access."""

from __future__ import annotations

from polygen.frontend.program import Tensor
from polygen.lower.plan import Read, Write
from polygen.poly.pointwise import Element


def stride_argument(tensor: Tensor, axis: int) -> str:
    """The kernel argument that holds the step of `axis`."""
    return f"{tensor.name}_stride{axis}"


def read(element: Element, vector: int) -> Read:
    """How `vector` adjacent results read an operand."""
    if element.kind == "scalar":
        return Read(element.name, element.tensor, "scalar", "0", "0", 0)
    m, n = (_stride(element, role) for role in ("m", "n"))
    return Read(element.name, element.tensor, element.kind, m, n, _width(element.tensor, vector))


def write(element: Element, vector: int) -> Write:
    """How `vector` adjacent results are written."""
    m, n = (_stride(element, role) for role in ("m", "n"))
    return Write(element.tensor, element.kind, m, n, _width(element.tensor, vector))


def _stride(element: Element, role: str) -> str:
    if role not in element.index:
        return "0"
    axis, tensor = element.index.index(role), element.tensor
    return "1" if axis == tensor.contiguous_axis else stride_argument(tensor, axis)


def _width(tensor: Tensor, vector: int) -> int:
    """Bytes per access: what the alignment allows, at most the whole vector, at most 16."""
    return min(16, tensor.alignment, vector * tensor.dtype.bytes)
