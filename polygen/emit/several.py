"""The texts of several kernels as one, which compiles alone.

Every kernel's text has helpers of its own, some under the same names: each is a namespace. Entry
points and launchers are ``extern "C"``, whose names are the kernels' own.
"""

from __future__ import annotations

from collections.abc import Sequence

_INCLUDES = "#ifndef __CUDACC_RTC__\n#include <cuda.h>\n#endif\n"  # once, outside all namespaces


def several_texts(texts: Sequence[str], contents: Sequence[str]) -> str:
    """The CUDA text of kernels that run in this order.

    Args:
        texts: of each.
        contents: of each a line: its name, and what it makes of what.
    """
    each = (
        f"namespace part{at} {{\n{text.rstrip()}\n}}  // namespace part{at}\n"
        for at, text in enumerate(texts, 1)
    )
    return "\n".join([_head(contents) + _INCLUDES, *each])


def several_headers(headers: Sequence[str], contents: Sequence[str]) -> str:
    """The C headers of kernels that run in this order."""
    return "\n".join([_head(contents), *headers])


def _head(contents: Sequence[str]) -> str:
    lines = (f"//   {at}. {line}\n" for at, line in enumerate(contents, 1))
    return f"// {len(contents)} kernels, one after another on one stream:\n{''.join(lines)}"
