"""KernelSource -> Artifact through a folder of compiled kernels, shared by all processes.

1. The key hashes everything that influences the artifact: text, entry, target, options, compiler
   build, block shape and the format of the entries. Nothing is looked up by name or date.
2. An entry is one file: magic line, digest of the rest, a JSON line, PTX, cubin. It appears by
   rename; an entry whose digest does not fit is built again, so that no kill, crash or full disk
   can leave a harmful file.
   What was generated is kept likewise, in a folder beside (`polygen.generated`); what templates
   compile to in another (`polygen.runtime.templates`).
3. A miss takes the lock of its shard, looks again, compiles and publishes: N processes compile
   once. The lock is the operating system's, so it dies with its holder.
4. A cache that cannot be written costs a warning and a compilation, never the result.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import platformdirs

from polygen import knobs
from polygen.emit.source import KernelSource
from polygen.errors import package_missing
from polygen.runtime import nvrtc
from polygen.runtime.artifact import Artifact, Resources
from polygen.runtime.files import replace_with, unwritable

Result = TypeVar("Result")

_MAGIC = (
    b"polygen artifact 1\n"  # the number is the format: change it when the entry or the key changes
)
_DIGEST = 64  # hexadecimal digits of SHA-256
_LOCK_SECONDS = 60.0  # a compilation takes about one; after this a stopped lock holder is ignored
# Folders: compiled kernels, what they are compiled from, and what text is made with.
_KINDS = ("artifacts", "generated", "templates")
_logger = logging.getLogger(__name__)
_told: set[tuple[Path, type, int | None]] = set()  # warned of


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What the cache holds."""

    path: Path
    entries: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.path}: {self.entries} kernels, {self.bytes} bytes"


def directory() -> Path:
    """Give the cache folder under the knobs in force; it may not exist yet."""
    chosen = knobs.current().cache_dir
    if chosen is not None:
        return chosen
    try:
        usual = platformdirs.user_cache_path("polygen")
    except RuntimeError:  # neither HOME nor the system tells; older versions return a path with ~
        usual = Path("~")
    # Such a user has / for a home, as in containers; a folder called "~" is not meant.
    return Path("/.cache/polygen") if usual.parts[0] == "~" else usual


def key(source: KernelSource, *, allow_spills: bool = False) -> str:
    """Give the name under which the artifact of `source` is kept: 64 hexadecimal digits.

    Raises:
        ToolchainMissing: NVRTC is not installed, so that its build is unknown.
    """
    parts = (
        _MAGIC.decode(),
        nvrtc.compiler_identity(source.arch),
        nvrtc.options(source),
        source.arch,
        source.entry,
        source.text,
        source.launch.threads,
        source.launch.shared_bytes,
        allow_spills,
    )
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def entry_path(name: str) -> Path:
    """Give the file of the entry `name`; the first two digits are its shard."""
    return directory() / "artifacts" / name[:2] / f"{name}.bin"


def encode(artifact: Artifact) -> bytes:
    """One entry as bytes."""
    ptx = artifact.ptx.encode()
    head = {
        "resources": asdict(artifact.resources),
        "log": artifact.log,
        "compiler": artifact.compiler,
        "ptx": len(ptx),
        "cubin": len(artifact.cubin),
    }
    body = json.dumps(head).encode() + b"\n" + ptx + artifact.cubin
    return _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def decode(data: bytes) -> Artifact | None:
    """Return the artifact of an entry; None when the entry is damaged or of another format."""
    start = len(_MAGIC) + _DIGEST + 1
    digest, body = data[len(_MAGIC) : start - 1], data[start:]
    if not data.startswith(_MAGIC) or hashlib.sha256(body).hexdigest().encode() != digest:
        return None
    line, _, rest = body.partition(b"\n")
    head = json.loads(line)
    return Artifact(
        ptx=rest[: head["ptx"]].decode(),
        cubin=rest[head["ptx"] :],
        resources=Resources(**head["resources"]),
        log=head["log"],
        compiler=head["compiler"],
    )


def _read(path: Path, decode: Callable[[bytes], Result | None]) -> Result | None:
    try:
        data = path.read_bytes()
    except OSError:  # absent, or unreadable: making it is the answer to both
        return None
    found = decode(data)
    if found is None:
        _logger.warning("%s is damaged and is built again", path)
    return found


def compile_cached(source: KernelSource, *, allow_spills: bool = False) -> Artifact:
    """`compile_source`, kept on disk; safe with any number of processes and threads.

    Args:
        source: the kernel.
        allow_spills: as for `compile_source`.

    Returns:
        The artifact, the same bytes whether it was compiled or found.

    Raises:
        ToolchainMissing: NVRTC is not installed.
        CompileError: as for `compile_source`; failures are not kept.
    """
    if not knobs.current().cache:
        return nvrtc.compile_source(source, allow_spills=allow_spills)
    path = entry_path(key(source, allow_spills=allow_spills))
    return kept(
        path, decode, encode, lambda: nvrtc.compile_source(source, allow_spills=allow_spills)
    )


def kept(
    path: Path,
    decode: Callable[[bytes], Result | None],
    encode: Callable[[Result], bytes],
    make: Callable[[], Result],
) -> Result:
    """A result from its file, else made and published there; N processes make it once.

    Args:
        path: the entry; its folder is the shard that is locked.
        decode: reads an entry; None: it is damaged.
        encode: writes one.
        make: makes the result; what it raises is not kept.
    """
    found = _read(path, decode)
    if found is not None:
        return found
    with _shard_lock(path.parent) as writable:
        # Another process may have published it meanwhile.
        found = _read(path, decode) if writable else None
        if found is not None:
            return found
        made = make()
        if writable:
            _publish(path, encode(made))
        return made


def put(path: Path, entry: bytes) -> None:
    """Publish an entry in the place of the one that is there; a warning where that cannot be."""
    with _shard_lock(path.parent) as writable:
        if writable:
            _publish(path, entry)


@contextlib.contextmanager
def _shard_lock(shard: Path) -> Iterator[bool]:
    """Hold the shard's lock; yields False, with a warning, when the folder cannot be used."""
    # Imported where it is used: it audits what runs, which the NumPy adapter's look at frames is.
    try:
        from filelock import FileLock  # noqa: PLC0415
    except ImportError as missing:
        raise package_missing(missing) from missing

    # One for a path: what is made under the lock may ask for entries of the same shard.
    lock = FileLock(shard / "lock", timeout=_LOCK_SECONDS, is_singleton=True)
    try:
        shard.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except (OSError, NotImplementedError) as reason:  # filelock's Timeout is an OSError
        _warn(shard, reason)
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _publish(path: Path, entry: bytes) -> None:
    """Put the entry in place, and remove what killed writers of it left; the lock is held."""
    try:
        for leftover in path.parent.glob(f".{path.name}.*.tmp"):
            leftover.unlink(missing_ok=True)
        # No sync: after a power failure the digest tells a torn entry, and it is built again.
        replace_with(path, entry, sync=False)
    except OSError as reason:
        _warn(path, reason)


def _warn(path: Path, reason: OSError | NotImplementedError) -> None:
    """Say once per folder and reason that nothing is kept: a kernel has several entries."""
    cause = (directory(), type(reason), getattr(reason, "errno", None))
    if cause in _told:
        return
    _told.add(cause)
    advice = "Free space, or name another folder in POLYGEN_CACHE_DIR"
    warnings.warn(
        f"The kernel is not kept. {unwritable(path, reason, advice)}", RuntimeWarning, stacklevel=4
    )


def _entries(kind: str) -> list[Path]:
    return sorted(directory().glob(f"{kind}/??/*.bin"))


def _others() -> list[Path]:
    """All entries that are no compiled kernels."""
    return [path for kind in _KINDS[1:] for path in _entries(kind)]


def info() -> CacheInfo:
    """Path, number of entries and size in bytes."""
    compiled, total = _entries(_KINDS[0]), 0
    for path in (*compiled, *_others()):
        with contextlib.suppress(OSError):  # another process may clear meanwhile
            total += path.stat().st_size
    return CacheInfo(directory(), len(compiled), total)


def clear() -> int:
    """Remove every entry, and what killed writers left; returns the number of kernels removed.

    The lock files stay: removing one that a process waits for would let two hold it.

    Raises:
        CacheError: an entry cannot be removed.
    """
    compiled = _entries(_KINDS[0])
    leftovers = [f for kind in _KINDS for f in directory().glob(f"{kind}/??/.*.tmp")]
    for path in (*compiled, *_others(), *leftovers):
        try:
            path.unlink(missing_ok=True)
        except OSError as reason:
            raise unwritable(path, reason) from reason
    return len(compiled)
