"""Compiles CUDA text to PTX with NVRTC; needs no GPU and no driver.

No more than PTX is made: machine code, which nothing here runs, takes longer than all the rest.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from polygen.emit.source import KernelSource
from polygen.runtime.nvrtc_library import library

KERNELS = Path(__file__).parent / "kernels"


@functools.cache
def to_ptx(source: str, arch: str = "sm_80", *options: str) -> str:
    """PTX of a header-free CUDA source."""
    given = (f"-arch={arch.replace('sm_', 'compute_')}", "--std=c++17", "-lineinfo", *options)
    made = library().compile(source, "kernel.cu", given)
    assert made.ok, made.log
    return made.ptx


def ptx_of(source: KernelSource) -> str:
    """PTX of a kernel whose text was changed by hand."""
    return to_ptx(source.text, source.arch, "-default-device", *source.options)


@pytest.fixture(scope="session")
def compile_ptx():
    """``compile_ptx(source, arch, *options) -> PTX``."""
    return to_ptx


def kernel_source(name: str) -> str:
    """The text of a kernel in ``kernels/``."""
    return (KERNELS / name).read_text()


@pytest.fixture(scope="session")
def read_kernel():
    """``read_kernel(name) -> source``."""
    return kernel_source
