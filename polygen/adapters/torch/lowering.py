"""What Inductor makes of `polygen::launch`: in its Python code, a call of the kernel at once.

An operator that Inductor does not know is called through PyTorch's dispatcher, which takes longer
than the rest of a launch. What the dispatcher would find out is settled when the code is made: that
the tensors are on a CUDA device, and that nothing records what happens to them. Where shapes are
fixed, a call in the code is a `launching.Site`, which finds out nothing else either. C++ code goes
through the dispatcher as ever.

Operands keep the order of axes that they had when the kernel was chosen.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import ir, lowering
from torch._inductor.virtualized import V
from torch.utils import _pytree as pytree

from polygen.adapters.torch import launching, tensors

_NAME, _SITE = "polygen_launch", "polygen_site"


class Launch(ir.FallbackKernel):  # type: ignore[misc]
    """A call of an operator, past the dispatcher where Inductor writes Python."""

    _at_site = False

    def codegen(self, wrapper: Any) -> None:
        """Write the call."""
        if not V.graph.cpp_wrapper and self.get_device().type in tensors.DEVICES:
            root = wrapper
            while getattr(root, "parent_wrapper", None) is not None:
                root = root.parent_wrapper
            *_, scalars, text = super().codegen_args()
            self._at_site = scalars == "[]" and all(map(_is_fixed, self.inputs))
            if self._at_site:
                root.polygen_sites = number = getattr(root, "polygen_sites", -1) + 1
                self.python_kernel_name = f"{_SITE}_{number}"
                root.add_import_once(f"from {launching.__name__} import Site as {_SITE}")
                root.add_import_once(f"{self.python_kernel_name} = {_SITE}({text})")
            else:
                self.python_kernel_name = _NAME
                root.add_import_once(f"from {launching.__name__} import at_once as {_NAME}")
        super().codegen(wrapper)

    def codegen_args(self) -> list[str]:
        """The call's arguments as Python."""
        arrays, *others = super().codegen_args()
        return [arrays] if self._at_site else [arrays, *others]


def _is_fixed(buffer: Any) -> bool:
    """Whether a tensor has the same shape and strides in all calls."""
    steps = (*buffer.get_size(), *buffer.get_stride())
    return all(isinstance(one, int) or one.is_number for one in steps)


def _lowered(*args: Any) -> Any:
    made = Launch.create(torch.ops.polygen.launch.default, *args)
    for one in made:  # which PyTorch's allocator aligns, whatever its operands are
        V.graph.unaligned_buffers.discard(one.get_name())
    return pytree.tree_map(
        lambda one: ir.TensorBox.create(one) if isinstance(one, ir.IRNode) else one, made
    )


def install() -> None:
    """Tell Inductor; more than once is as good as once."""
    op = torch.ops.polygen.launch.default
    if op not in lowering.lowerings:
        lowering.make_fallback(op, layout_constraint=lowering.constrain_to_fx_strides, warn=False)
        lowering.register_lowering(op, type_promotion_kind=None)(_lowered)
