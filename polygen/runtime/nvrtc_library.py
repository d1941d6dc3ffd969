"""The library NVRTC, found and called directly: no CuPy, no GPU, no driver, no home folder.

1. Candidates are the library in NVIDIA's packages, then in an installed toolkit, then whatever the
   loader finds under the usual names; the first that loads is used for the rest of the process.
   Targets that it no longer makes code for go to the next one that does.
2. Nothing installed is `ToolchainMissing`: kernels can be generated, not compiled. A library that
   is there but does not load is `ToolchainBroken`: that is for the user to mend.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from polygen.errors import CompileError, ToolchainBroken, ToolchainMissing
from polygen.runtime import toolkit

_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")  # for the loader's own search
# Of the packages' versions these are the oldest in use: a newer NVRTC emits PTX that older drivers
# reject. The extras of pyproject.toml name the same; a test compares them.
PACKAGES = {13: "nvidia-cuda-nvrtc==13.0.*", 12: "nvidia-cuda-nvrtc-cu12==12.9.*"}
_PROGRAM = ctypes.c_void_p


@dataclass(frozen=True, slots=True)
class Compiled:
    """What NVRTC made of one text.

    Attributes:
        ok: whether it accepted the text.
        log: its log.
        ptx: the PTX; also of a text whose inline assembly was rejected.
        cubin: the machine code; empty if it was rejected or not made.
    """

    ok: bool
    log: str
    ptx: str
    cubin: bytes


class Library:
    """NVRTC as loaded.

    Attributes:
        path: the file, as the loader names it.
        version: major and minor.
        targets: the numbers of the architectures that it makes code for; 70 is ``sm_70``.
    """

    def __init__(self, handle: ctypes.CDLL) -> None:
        self._handle = handle
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)
        self.targets = self._targets()
        self.path = _file_of(handle)
        # NVRTC opens its other half by bare name, which the loader finds only if it is loaded.
        builtins = self.path.with_name(f"libnvrtc-builtins.so.{major.value}.{minor.value}")
        self._builtins = ctypes.CDLL(str(builtins)) if builtins.is_file() else None

    def compile(self, text: str, name: str, options: Sequence[str]) -> Compiled:
        """Compile one text.

        Args:
            text: CUDA.
            name: what messages call it.
            options: NVRTC's own.

        Raises:
            CompileError: NVRTC fails for a reason that is not the text's.
        """
        program = _PROGRAM()
        self._call(
            "nvrtcCreateProgram", ctypes.byref(program), text.encode(), name.encode(), 0, None, None
        )
        try:
            words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            ok = self._handle.nvrtcCompileProgram(program, len(options), words) == 0
            log = self._read("ProgramLog", program).rstrip(b"\0").decode(errors="replace")
            ptx = self._read("PTX", program).rstrip(b"\0").decode(errors="replace")
            return Compiled(ok, log, ptx, self._read("CUBIN", program) if ok else b"")
        finally:
            self._handle.nvrtcDestroyProgram(ctypes.byref(program))

    def _targets(self) -> tuple[int, ...]:
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        found = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", found)
        return tuple(found)

    def _read(self, what: str, program: _PROGRAM) -> bytes:
        """A result of a compilation; empty where NVRTC has none."""
        size = ctypes.c_size_t()
        if getattr(self._handle, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) or not size:
            return b""
        buffer = ctypes.create_string_buffer(size.value)
        failed = getattr(self._handle, f"nvrtcGet{what}")(program, buffer)
        return b"" if failed else buffer.raw

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._handle, name)(*arguments)
        if code:
            explain = self._handle.nvrtcGetErrorString
            explain.restype = ctypes.c_char_p
            raise CompileError(f"{name} fails: {explain(code).decode()}", where="NVRTC")


@functools.cache
def library(target: str = "") -> Library:
    """NVRTC, once it is found and loads.

    Args:
        target: what it has to make code for, ``sm_70``; "": whatever it is.

    Raises:
        ToolchainMissing: there is none, or none that still makes code for the target.
        ToolchainBroken: there is one, and it does not load.
    """
    broken: list[tuple[Path, str]] = []
    first, number = None, int(re.sub(r"\D", "", target) or 0)
    for found in _loaded(broken):
        if not number or number >= min(found.targets):  # a newer one's refusal is its own to say
            return found
        first = first or found
    if first is not None:
        oldest = ".".join(map(str, first.version))
        raise ToolchainMissing(
            f"NVRTC {oldest} makes no code for {target}",
            where=str(first.path),
            why=f"its targets begin with sm_{min(first.targets)}; CUDA 12 is the last that goes "
            "back further",
            nearest=f"`pip install 'polygen[cuda12]'` in an environment of its own, or `pip "
            f"install '{PACKAGES[12]}'` beside it; no GPU is needed",
        )
    install = f"pip install '{PACKAGES[toolkit.cupy_major() or max(PACKAGES)]}'"
    if broken:
        path, why = broken[0]
        raise ToolchainBroken(
            "the CUDA compiler NVRTC cannot be loaded",
            where=str(path),
            why=why,
            nearest=f"`{install} --force-reinstall` puts a fresh one in its place",
        )
    raise ToolchainMissing(
        "there is no CUDA compiler NVRTC",
        why="neither NVIDIA's packages nor a CUDA toolkit are installed",
        nearest=f"`{install}` brings it; no GPU is needed",
    )


def _loaded(broken: list[tuple[Path, str]]) -> Iterator[Library]:
    """The libraries that load, best first; files that do not are added to `broken`."""
    for path in candidates():
        try:
            yield Library(ctypes.CDLL(str(path)))
        except OSError as reason:
            broken.append((path, str(reason)))
    for name in _NAMES:
        try:
            yield Library(ctypes.CDLL(name))
        except OSError:  # not where the loader looks
            continue


def candidates() -> Iterator[Path]:
    """The files that may be NVRTC, best first."""
    for folder in toolkit.existing("lib", "lib64"):
        yield from sorted(folder.glob("libnvrtc.so*"), reverse=True)[:1]


def identity(target: str = "") -> str:
    """Name the build: builds that could make different cubins have different names.

    The library itself only tells major and minor; the versions of the packages and the sizes of its
    files tell the rest.

    Raises:
        ToolchainMissing, ToolchainBroken: as for `library`.
    """
    found = library(target)
    parts = ["NVRTC", *map(str, found.version)]
    for requirement in PACKAGES.values():
        package = requirement.partition("=")[0]
        if installed := toolkit.version(package):
            parts.append(f"{package}={installed}")
    files = {found.path, *found.path.parent.glob("libnvrtc-builtins.so*")}
    parts += [f"{file.name}={file.stat().st_size}" for file in sorted(files) if file.is_file()]
    return " ".join(parts)


class _Place(ctypes.Structure):
    """``Dl_info``: the file that an address was loaded from."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _file_of(handle: ctypes.CDLL) -> Path:
    """The file of a loaded library; one found by its bare name tells it in no other way."""
    place = _Place()
    address = ctypes.cast(handle.nvrtcVersion, ctypes.c_void_p)
    ctypes.CDLL(None).dladdr(address, ctypes.byref(place))
    return Path((place.file or b"").decode(errors="replace"))
