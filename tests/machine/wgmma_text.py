# ruff: noqa: E501 - CUDA and PTX text
"""CUDA text of a wgmma statement: its operand list is too long to write by hand."""

from __future__ import annotations


def wgmma_function(
    name: str,
    n: int,
    k: int,
    kinds: str,
    *,
    registers_a: bool = False,
    immediates: str = "1, 1, 0, 0",
) -> str:
    """``name(acc, a, b, keep)``: acc += a b, or acc = a b when keep is 0.

    Args:
        name: of the CUDA function.
        n: columns.
        k: depth.
        kinds: ``f32.bf16.bf16``.
        registers_a: A comes as four 32-bit registers instead of a descriptor.
        immediates: what follows scale-d, for shared A: signs and, for 16-bit types, transposes.
    """
    d_kind = kinds.split(".")[0]
    count = n // 4 if d_kind == "f16" else n // 2
    c_type, letter = {"f32": ("float", "f"), "s32": ("int", "r"), "f16": ("unsigned", "r")}[d_kind]
    d = ", ".join(f"%{i}" for i in range(count))
    at = count
    if registers_a:
        a = "{" + ", ".join(f"%{at + i}" for i in range(4)) + "}"
        inputs, parameter = ", ".join(f'"r"(a[{i}])' for i in range(4)), "const word (&a)[4]"
        at += 4
    else:
        a, inputs, parameter = f"%{at}", '"l"(a)', "unsigned long long a"
        at += 1
    outputs = ", ".join(f'"+{letter}"(acc[{i}])' for i in range(count))
    return f"""typedef unsigned int word;
__device__ __forceinline__ void {name}({c_type} (&acc)[{count}], {parameter}, unsigned long long b, int keep) {{
  asm volatile("{{ .reg .pred p; setp.ne.s32 p, %{at + 1}, 0; "
    "wgmma.mma_async.sync.aligned.m64n{n}k{k}.{kinds} {{{d}}}, {a}, %{at}, p{", " if immediates else ""}{immediates}; }}"
    : {outputs} : {inputs}, "l"(b), "r"(keep));
}}
"""
