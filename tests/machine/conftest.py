"""Compiles CUDA text to PTX with NVRTC; needs no GPU and no driver."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from polygen.runtime.nvrtc_library import library

KERNELS = Path(__file__).parent / "kernels"


@functools.cache
def to_ptx(source: str, arch: str = "sm_80", *options: str) -> str:
    """PTX of a header-free CUDA source."""
    given = (f"-arch={arch}", "--std=c++17", "-lineinfo", *options)
    made = library().compile(source, "kernel.cu", given)
    assert made.ok, made.log
    return made.ptx


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
