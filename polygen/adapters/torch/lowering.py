"""What Inductor makes of `polygen::launch`: in its Python code, a call of the kernel at once.

An operator that Inductor does not know is called through PyTorch's dispatcher, which takes longer
than the rest of a launch. What the dispatcher would find out is settled when the code is made: that
the tensors are on a CUDA device, and that nothing records what happens to them. Where shapes are
fixed, a call in the code is a `launching.Site`, which finds out nothing else either. C++ code goes
through the dispatcher as ever.

Operands keep the order of axes that they had when the kernel was chosen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor import ir, lowering
from torch._inductor.virtualized import V
from torch.utils import _pytree as pytree

from polygen.adapters.torch import launching, tensors

_NAME, _SITE = "polygen_launch", "polygen_site"
# Of a name: shape, steps, and elements before it.
_VIEW = re.compile(r"reinterpret_tensor\((\w+), (\([\d, ]*\)), (\([\d, ]*\)), (\d+)\)")


class Launch(ir.FallbackKernel):  # type: ignore[misc]
    """A call of an operator, past the dispatcher where Inductor writes Python."""

    # At a site, shapes and steps of the results; None: sizes of a call are not those of another.
    polygen_results: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] | None = None
    _arrays: list[str] | None = None  # at a site, what is given to it

    def codegen(self, wrapper: Any) -> None:
        """Write the call."""
        if _in_python(self):
            root = wrapper
            while getattr(root, "parent_wrapper", None) is not None:
                root = root.parent_wrapper
            if self.polygen_results is not None:
                *_, text = super().codegen_args()
                self._arrays, views = _without_views([x.codegen_reference() for x in self.inputs])
                root.polygen_sites = number = getattr(root, "polygen_sites", -1) + 1
                self.python_kernel_name = f"{_SITE}_{number}"
                root.add_import_once(f"from {launching.__name__} import Site as {_SITE}")
                made = f"{_SITE}({text}, ({views}), {self.polygen_results})"
                root.add_import_once(f"{self.python_kernel_name} = {made}")
            else:
                self.python_kernel_name = _NAME
                root.add_import_once(f"from {launching.__name__} import at_once as {_NAME}")
        super().codegen(wrapper)

    def codegen_args(self) -> list[str]:
        """The call's arguments as Python."""
        if self._arrays is not None:
            return [f"[{', '.join(self._arrays)}]"]
        found: list[str] = super().codegen_args()
        return found


def _in_python(call: Any) -> bool:
    return not V.graph.cpp_wrapper and call.get_device().type in tensors.DEVICES


def _is_fixed(buffer: Any) -> bool:
    """Whether a tensor has the same shape and strides in all runs of the code."""
    steps = (*buffer.get_size(), *buffer.get_stride())
    return all(isinstance(one, int) or one.is_number for one in steps)


def _without_views(references: Sequence[str]) -> tuple[list[str], str]:
    """Tensors in the place of views that code would make of them in each call, and these views.

    A view takes the host as long as a fifth of a launch, which reads nothing of it but its address.
    """
    found = [_VIEW.fullmatch(text) for text in references]
    arrays = [text if at is None else at[1] for text, at in zip(references, found, strict=True)]
    views = ["None" if at is None else f"({at[2]}, {at[3]}, {at[4]})" for at in found]
    return arrays, "".join(f"{view}, " for view in views) if any(found) else ""


def _lowered(arrays: Any, scalars: Any, program: str) -> Any:
    made = Launch.create(torch.ops.polygen.launch.default, arrays, scalars, program)
    for one in made:  # which PyTorch's allocator aligns, whatever its operands are
        V.graph.unaligned_buffers.discard(one.get_name())
    (call,) = {id(one.inputs[0]): one.inputs[0] for one in made}.values()
    if _in_python(call) and not scalars and all(map(_is_fixed, (*call.inputs, *made))):
        # The site looks at them once, and not the code each time.
        call.polygen_results = tuple(
            (tuple(map(int, one.get_size())), tuple(map(int, one.get_stride()))) for one in made
        )
        for one in made:
            one.skip_size_stride_alignment_checks = True
    return pytree.tree_map(
        lambda one: ir.TensorBox.create(one) if isinstance(one, ir.IRNode) else one, made
    )


def install() -> None:
    """Tell Inductor; more than once is as good as once."""
    op = torch.ops.polygen.launch.default
    if op not in lowering.lowerings:
        lowering.make_fallback(op, layout_constraint=lowering.constrain_to_fx_strides, warn=False)
        lowering.register_lowering(op, type_promotion_kind=None)(_lowered)
