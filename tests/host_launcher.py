# ruff: noqa: E501 - C++ text
"""The host part of a generated ``.cu`` as a shared library: CUDA's calls are stubs that remember.

The launcher's own text is compiled as it is, but for its one ``<<<...>>>``, which is no C++.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from polygen.emit.source import KernelSource
from polygen.frontend.program import Program
from polygen.lower.build import arguments

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")

_CUDA_H = """\
#pragma once
typedef unsigned long long cuuint64_t;
typedef unsigned cuuint32_t;
enum CUresult { CUDA_SUCCESS = 0 };
enum CUtensorMapDataType { CU_TENSOR_MAP_DATA_TYPE_FLOAT16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, CU_TENSOR_MAP_DATA_TYPE_UINT8 };
enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE };
enum CUtensorMapSwizzle { CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_32B, CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_SWIZZLE_128B };
enum CUtensorMapL2promotion { CU_TENSOR_MAP_L2_PROMOTION_L2_128B };
enum CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE };
struct alignas(64) CUtensorMap { unsigned long long words[16]; };
CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
"""

_STUBS = """\
#include "cuda.h"
#define CUDART_VERSION 13000
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9, cudaErrorSymbolNotFound = 500 };
enum { cudaEnableDefault, cudaFuncAttributeMaxDynamicSharedMemorySize, cudaDevAttrMultiProcessorCount };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess };
struct dim3 { unsigned x, y, z; dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {} };
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
struct cudaLaunchAttribute { cudaLaunchAttributeID id; struct { int programmaticStreamSerializationAllowed; } val; };
typedef void* cudaStream_t;
struct cudaLaunchConfig_t { dim3 gridDim, blockDim; unsigned long long dynamicSmemBytes; cudaStream_t stream; cudaLaunchAttribute* attrs; unsigned numAttrs; };
struct alignas(64) TensorMap { unsigned long long words[16]; };
extern "C" { int launches = 0, followed = 0, maps = 0, count = 0, passed[64]; unsigned blocks[3]; int resident_blocks = 132; unsigned long long described[16][24]; }
CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, cuuint32_t rank, void* tensor, const cuuint64_t* sizes, const cuuint64_t* steps, const cuuint32_t* box, const cuuint32_t* element_steps, CUtensorMapInterleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  unsigned long long* to = described[maps++ % 16];
  *to++ = rank; *to++ = (unsigned long long)tensor; *to++ = swizzle;
  for (unsigned axis = 0; axis < rank; ++axis) { *to++ = sizes[axis]; *to++ = axis ? steps[axis - 1] : 0; *to++ = box[axis]; *to++ = element_steps[axis]; }
  return CUDA_SUCCESS;
}
[[maybe_unused]] static cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** found, unsigned, int, cudaDriverEntryPointQueryResult* how) { *found = (void*)&cuTensorMapEncodeTiled; *how = cudaDriverEntryPointSuccess; return cudaSuccess; }
[[maybe_unused]] static cudaError_t cudaFuncSetAttribute(int, int, int) { return cudaSuccess; }
[[maybe_unused]] static cudaError_t cudaGetDevice(int* device) { *device = 0; return cudaSuccess; }
[[maybe_unused]] static cudaError_t cudaDeviceGetAttribute(int* value, int, int) { *value = resident_blocks; return cudaSuccess; }
[[maybe_unused]] static cudaError_t cudaOccupancyMaxActiveClusters(int* value, int, const cudaLaunchConfig_t* config) { *value = resident_blocks / (int)config->gridDim.x; return cudaSuccess; }
[[maybe_unused]] static cudaError_t cudaGetLastError() { return cudaSuccess; }
[[maybe_unused]] static void note(int value) { passed[count++] = value; }
template <class T> static void note(const T&) {}
[[maybe_unused]] static void note_all() {}
template <class T, class... Rest> static void note_all(const T& first, const Rest&... rest) { note(first); note_all(rest...); }
template <class... Values> static void record(dim3 grid, const Values&... values) { ++launches; count = 0; blocks[0] = grid.x; blocks[1] = grid.y; blocks[2] = grid.z; note_all(values...); }
template <class... Values> static void follow(unsigned, const Values&...) { followed = launches; }
extern "C" { long long copied[64]; int copied_count = 0; unsigned copied_blocks = 0; }
[[maybe_unused]] static void note_copy() {}
template <class T, class... Rest> static void note_copy(const T& first, const Rest&... rest) { if constexpr (sizeof(T) <= 8) copied[copied_count++] = (long long)first; note_copy(rest...); }
template <class... Values> static void record_copy(dim3 grid, const Values&... values) { copied_count = 0; copied_blocks = grid.x; note_copy(values...); }
extern "C" { int dependents = 0; }
template <class... Values> static cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, int copies, const Values&... values) {
  dependents += config->numAttrs == 1 && config->attrs->id == 6 && config->attrs->val.programmaticStreamSerializationAllowed;
  if (copies == 2) followed = launches; else if (copies) record_copy(config->gridDim, values...); else record(config->gridDim, values...);
  return cudaSuccess;
}
[[maybe_unused]] static const int ENTRY = 0, ENTRY_realign = 1, ENTRY_folds = 2, ENTRY_parts = 2;
"""

_KINDS = {"pointer": ctypes.c_void_p, "scalar": ctypes.c_float, "workspace": ctypes.c_void_p}
_ROOM = 1 << 20  # where a workspace is, if nobody says


def host_part(source: KernelSource) -> str:
    """The text that is for the host."""
    start = source.text.index("#ifndef __CUDACC_RTC__")
    return source.text[start:]


@dataclass(frozen=True)
class Described:
    """A tensor map as the driver sees it: axes innermost first, steps in bytes."""

    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


class HostLauncher:
    """A compiled launcher.

    Args:
        source: the kernel.
        program: what it computes.
        folder: for the files.
    """

    def __init__(self, source: KernelSource, program: Program, folder: Path) -> None:
        assert COMPILER is not None
        self.entry, self.parameters = (
            source.entry,
            arguments(program, workspace=source.following is not None),
        )
        self.launch, self.follows = source.launch, source.following is not None
        launch = re.compile(rf"{source.entry}<<<grid, \d+, \d+, \(cudaStream_t\)stream>>>\(")
        text = host_part(source)
        if not source.launch.dependent:
            text, found = launch.subn("record(grid, ", text)
            assert found == 1
        if source.realign is not None and not source.launch.dependent:
            first = re.compile(
                rf"{source.realign.entry}<<<dim3\((.*?)\), \d+, 0, \(cudaStream_t\)stream>>>\("
            )
            text, found = first.subn(r"record_copy(dim3(\1), ", text)
            assert found == 1
        if source.following is not None and not source.following.dependent:
            last = re.compile(
                rf"{source.following.entry}<<<(.*), \d+, 0, \(cudaStream_t\)stream>>>\("
            )
            text, found = last.subn(r"follow(\1, ", text)
            assert found == 1
        (folder / "cuda.h").write_text(_CUDA_H)
        (folder / "host.cpp").write_text(_STUBS.replace("ENTRY", source.entry) + text)
        (folder / "header.h").write_text(source.header)
        (folder / "check.c").write_text(
            '#include "header.h"\n'
            f"int (*const the_check)() = (int (*)()){source.entry}_check;\n"
            f"void (*const the_grid)() = (void (*)()){source.entry}_grid;\n"
            + (
                "unsigned long long (*const the_workspace)() = "
                f"(unsigned long long (*)()){source.entry}_workspace;\n"
                if source.realign is not None
                else ""
            )
        )
        command = [COMPILER, "-std=c++17", "-O0", "-shared", "-fPIC", "-Wall", "-Werror"]
        command += ["-Wno-cast-function-type", "-I", str(folder), "host.cpp"]
        # The header is C as well as C++; its functions are reached through pointers.
        plain = ["-x", "c", "-std=c99", "-Wno-deprecated-non-prototype", "check.c"]
        for extra in ([*command, "-o", "host.so"], _without_cpp(command, plain)):
            done = subprocess.run(extra, cwd=folder, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, ""), done.stderr
        self._host = ctypes.CDLL(str(folder / "host.so"))
        self._header = ctypes.CDLL(str(folder / "check.so"))

    def _values(self, given: Mapping[str, int]) -> list[object]:
        return [
            _KINDS.get(p.kind, ctypes.c_int)(
                given.get(p.name, _ROOM if p.kind == "workspace" else 0)
            )
            for p in self.parameters
        ]

    def __call__(self, given: Mapping[str, int]) -> int:
        """What the launcher returns; nothing is launched unless that is 0."""
        before = self.number("launches")
        code = int(getattr(self._host, f"{self.entry}_launch")(*self._values(given), None))
        assert (code == 0) == (self.number("launches") == before + 1)
        if self.follows:
            assert (code == 0) == (self.number("followed") == before + 1)
        return code

    def realigned(self, given: Mapping[str, int], workspace: int) -> int:
        """What the launcher returns that copies operands first."""
        call = getattr(self._host, f"{self.entry}_realigned_launch")
        return int(call(*self._values(given), ctypes.c_void_p(workspace), None))

    def copied(self) -> tuple[int, list[int]]:
        """The blocks of the last copy, and what its kernel was given."""
        values = (ctypes.c_longlong * 64).in_dll(self._host, "copied")
        blocks = ctypes.c_uint.in_dll(self._host, "copied_blocks").value
        return blocks, list(values[: self.number("copied_count")])

    def workspace(self, *sizes: int) -> int:
        """The bytes that the header's function names."""
        address = ctypes.c_void_p.in_dll(self._header, "the_workspace").value
        kinds = [ctypes.c_int for _ in sizes]
        return int(ctypes.CFUNCTYPE(ctypes.c_ulonglong, *kinds)(address)(*sizes))

    def check(self, given: Mapping[str, int]) -> int:
        """What the header's check returns."""
        address = ctypes.c_void_p.in_dll(self._header, "the_check").value
        function = ctypes.CFUNCTYPE(ctypes.c_int, *(type(v) for v in self._values(given)))
        return int(function(address)(*self._values(given)))

    def header_grid(self, sizes: Mapping[str, int], resident: int) -> tuple[int, int, int]:
        """The blocks that the header's function names; it does without z where that is 1."""
        launch = self.launch
        own = [dim for one in launch.sections for dim in (one.along, one.across, *one.batches)]
        wanted = (*own, launch.groups)
        dims = dict.fromkeys(d for d in wanted if d in sizes)
        values = [*(sizes[dim] for dim in dims), *([resident] if self.launch.persistent else [])]
        found = (ctypes.c_uint * 3)(0, 0, 0 if self.launch.batches else 1)
        address = ctypes.c_void_p.in_dll(self._header, "the_grid").value
        kinds = [*(ctypes.c_int for _ in values), ctypes.POINTER(ctypes.c_uint)]
        ctypes.CFUNCTYPE(None, *kinds)(address)(*values, found)
        return (found[0], found[1], found[2])

    def number(self, name: str) -> int:
        """A variable of the stubs."""
        return ctypes.c_int.in_dll(self._host, name).value

    def passed(self) -> list[int]:
        """The ints that the kernel was given last."""
        values = (ctypes.c_int * 64).in_dll(self._host, "passed")
        return list(values[: self.number("count")])

    def grid(self) -> tuple[int, int, int]:
        """The blocks of the last launch."""
        found = (ctypes.c_uint * 3).in_dll(self._host, "blocks")
        return (found[0], found[1], found[2])

    def described(self, count: int) -> list[Described]:
        """What the driver was told of the last `count` tensor maps."""
        rows = ((ctypes.c_uint64 * 24) * 16).in_dll(self._host, "described")
        last = self.number("maps")
        made = []
        for number in range(last - count, last):
            rank, address, swizzle, *rest = rows[number % 16]
            sizes, steps, box, ones = (tuple(rest[each : 4 * rank : 4]) for each in range(4))
            assert set(ones) == {1}
            made.append(Described(address, sizes, steps[1:], box, (0, 32, 64, 128)[swizzle]))
        return made


def _without_cpp(command: list[str], plain: list[str]) -> list[str]:
    kept = [word for word in command if word not in ("-std=c++17", "host.cpp")]
    return [*kept, *plain, "-o", "check.so"]


def interpreted(source: KernelSource, given: Mapping[str, int]) -> int:
    """What the launcher's tests return, without a compiler: their C is also Python, almost."""
    values = dict(given)
    for test, code in re.findall(r"^  if \((.*)\) return (2\d{4});$", host_part(source), re.M):
        text = test.replace("(unsigned long long)", "").replace("/", "//")
        text = re.sub(r"(\d)LL", r"\1", text).replace("&&", "and").replace("||", "or")
        if eval(text, {"__builtins__": {}}, values):
            return int(code)
    return 0
