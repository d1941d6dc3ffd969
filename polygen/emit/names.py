"""C identifiers for the user's names: they keep theirs unless the kernel uses it itself.

The names the kernel uses are read off the templates, so the list cannot go stale; a clash gets an
underscore.
"""

from __future__ import annotations

import functools
import re
from importlib.resources import files

from polygen.emit.functions import PRIMITIVES

# Names that Python code writes into the leaves, and loop iterators.
_WRITTEN_TEXT = (
    "t s m n r k p e i from to left inside bytes row column rows_left piece from_row from_column "
    "low high word words safe_row sums sum count min max "
    "zero mma copy_a copy_b load_a load_b stage store prepare commit b_m b_n pass"
)
_WRITTEN = frozenset(_WRITTEN_TEXT.split())
_KEYWORDS_TEXT = (
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const "
    "constexpr continue decltype default delete do double else enum explicit export extern false "
    "float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr "
    "operator or or_eq private protected public register return short signed sizeof static struct "
    "switch template this throw true try typedef typeid typename union unsigned using virtual void "
    "volatile while xor xor_eq dim3 uint2 uint4 blockIdx threadIdx blockDim gridDim stream "
    "NULL NAN INFINITY HUGE_VAL HUGE_VALF EOF INT_MAX INT_MIN UINT_MAX CHAR_BIT RAND_MAX M_E M_PI "
    "assert errno linux unix stdin stdout stderr"  # macros of nvcc's own includes and of gcc
)
_KEYWORDS = frozenset(_KEYWORDS_TEXT.split())
_KERNEL_SCOPE = (
    "kernel.cu.j2", "leaves.cu.j2", "launcher.cu.j2", "roles.cu.j2", "role_leaves.cu.j2",
    "header.h.j2",
)  # fmt: skip
_GLOBAL_SCOPE = ("types.cu.j2", "instructions.cu.j2", "role_instructions.cu.j2")


@functools.cache
def reserved() -> frozenset[str]:
    """Every identifier that a kernel may use itself."""
    folder = files("polygen.emit") / "templates"
    found = set(_WRITTEN | _KEYWORDS)
    for name in _KERNEL_SCOPE:
        text = re.sub(r"\{\{.*?\}\}|\{%.*?%\}", " ", (folder / name).read_text(encoding="utf-8"))
        found |= set(re.findall(r"[A-Za-z_]\w*", re.sub(r"//.*|\.\w+|\"[^\"]*\"", "", text)))
    helpers = [part for part in (folder / "functions").iterdir() if part.name.endswith(".j2")]
    for part in [*(folder / name for name in _GLOBAL_SCOPE), *helpers]:
        found |= set(re.findall(r"([A-Za-z_]\w*)\s*\(", part.read_text(encoding="utf-8")))
    forms = " ".join(f"{p.accurate} {p.fast}" for p in PRIMITIVES.values())
    return frozenset(found | set(re.findall(r"[a-z_]\w*(?=\()", forms)))


def c_name(name: str) -> str:
    """The identifier under which the kernel knows a tensor, a size or one of their strides.

    Different names stay different: ``sum`` becomes ``sum_``, and ``sum_`` becomes ``sum__``. Names
    that start with ``__``, or ``_`` and a capital, are kept by C for itself.
    """
    taken = name.rstrip("_") in reserved() or re.match(r"_[_A-Z]", name)
    return f"{name}_" if taken else name
