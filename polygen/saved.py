"""Kernels as files: written beside each other, read back without compiling and without isl.

1. A kernel is ``NAME.cu`` (its text), ``NAME.h`` (its launcher for C), ``NAME.cubin`` and
   ``NAME.ptx`` where there was a compiler, ``NAME.tree.yaml``, and ``NAME.json``: the manifest.
2. The manifest holds all the rest: program, target, arguments, launch, conditions, schedule,
   resources. It has a format number, the digests of the other files, and one of itself; it is
   written last, so that whatever interrupts a save leaves files that are refused.
3. Reading checks, in this order: the manifest is there and is one, its format, its digest, the
   files' digests, the records' fields, the target.
4. A file name belongs to one program for one target and one alignment class: another kernel never
   takes its place unasked.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from polygen.emit.source import KernelSource
from polygen.errors import SavedKernelError, echo
from polygen.frontend.program import Program, Tensor
from polygen.generated import TAG, Generated, decode, encode, polygen_version
from polygen.hardware.device import device
from polygen.runtime.artifact import Artifact, Resources
from polygen.runtime.files import unwritable, write_bytes_atomic
from polygen.schedule.model import Schedule

FORMAT = 9  # 9: what takes the reciprocals of short forms
_SUFFIXES = (".cu", ".h", ".cubin", ".ptx", ".tree.yaml")  # all but the manifest
_MANIFEST = ".json"
KERNELS = "kernels"  # what a manifest of several kernels has, and one of a kernel has not
_AROUND = ("realign", "following")  # what goes before and after a kernel


@dataclasses.dataclass(frozen=True, slots=True)
class Saved:
    """A kernel as it is kept.

    Attributes:
        generated: the kernel.
        artifact: what it was compiled to; None where there was no compiler.
        asked: the schedule it was asked to have; None: the choice was automatic.
        sizes: what it was optimised for.
    """

    generated: Generated
    artifact: Artifact | None
    asked: Schedule | None
    sizes: tuple[tuple[str, int], ...]


def identity(generated: Generated) -> str:
    """What makes two kernels versions of one: the program for a target, whatever its alignments."""

    def bare(tensor: Tensor) -> Tensor:
        return replace(tensor, alignment=0, ragged=False)

    program = generated.program
    plain: Program = replace(
        program,
        inputs=tuple(map(bare, program.inputs)),
        outputs=tuple(map(bare, program.outputs)),
    )
    text = json.dumps([encode(plain), generated.target], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


# --- the kernel as one manifest and some files ----------------------------------------------------
def pack(saved: Saved) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest, and the files beside it by suffix."""
    generated, artifact = saved.generated, saved.artifact
    source = generated.source
    made = f"compiled by {artifact.compiler}: {artifact.resources}" if artifact else _UNCOMPILED
    files = {
        ".cu": f"// {made}\n{source.text}".encode(),
        ".h": source.header.encode(),
        ".tree.yaml": f"{generated.tree}\n".encode(),
    }
    if artifact is not None:
        files |= {".cubin": artifact.cubin, ".ptx": artifact.ptx.encode()}
    manifest = {
        "format": FORMAT,
        "polygen": polygen_version(),
        "entry": source.entry,
        "expression": generated.program.source,
        "target": generated.target,
        "identity": identity(generated),
        "arch": source.arch,
        "arguments": encode(source.arguments),
        "launch": encode(source.launch),
        "following": encode(source.following),
        "conditions": encode(source.conditions),
        "alignment": dict(source.alignment),
        "schedule": encode(generated.schedule),
        "schedule_origin": generated.origin,
        "asked": None if saved.asked is None else encode(saved.asked),
        "sizes": dict(saved.sizes),
        "program": encode(generated.program),
        "command": generated.command,
        "resources": None if artifact is None else encode(artifact.resources),
        "compiler": None if artifact is None else artifact.compiler,
        "log": None if artifact is None else artifact.log,
        "proofs": list(generated.proofs),
        "options": list(source.options),
        "realign": None if source.realign is None else encode(source.realign),
        "deterministic": generated.sums.deterministic,
        "invariant": list(generated.sums.invariant),
        "sums": encode(generated.sums),
        "files": {suffix: _digest(data) for suffix, data in files.items()},
    }
    return manifest | {"digest": _own_digest(manifest)}, files


_UNCOMPILED = "not compiled: there was no compiler where this was made"


def unpack(manifest: Any, files: dict[str, bytes], where: str) -> Saved:
    """The kernel of a manifest and its files.

    Raises:
        SavedKernelError: another format, or anything that is not as it was written.
        UnknownTarget: this polygen does not know the target.
    """
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise SavedKernelError(
            "this is no manifest of a kernel that can be loaded",
            where=where,
            why="it has no format number",
            nearest="Save the kernel again",
        )
    if KERNELS in manifest:
        raise SavedKernelError(
            f"it is the manifest of {len(manifest[KERNELS])} kernels in order",
            where=where,
            nearest="Load it with polygen.KernelSequence.load",
        )
    if manifest["format"] != FORMAT:
        raise SavedKernelError(
            f"the manifest has format {manifest['format']!r}, written by polygen "
            f"{manifest.get('polygen')}",
            where=where,
            why=f"polygen {polygen_version()} reads format {FORMAT}",
            nearest="Save the kernel again with this version, or load it with that one",
        )
    if manifest.get("digest") != _own_digest(manifest):
        raise _damaged(where, "its content does not have the digest that stands in it")
    try:
        _check_files(manifest, files, where)
        device(manifest["target"])
        return _read(manifest, files)
    except (ValueError, KeyError, TypeError, AttributeError) as reason:
        raise _damaged(where, f"{type(reason).__name__}: {reason}") from reason


def _check_files(manifest: dict[str, Any], files: dict[str, bytes], where: str) -> None:
    for suffix, digest in manifest["files"].items():
        if suffix not in files:
            raise SavedKernelError(
                f"the file {manifest['entry']}{suffix} is missing",
                where=where,
                why="a kernel is loaded with all files that were saved beside its manifest",
                nearest="Copy it there, or save the kernel again",
            )
        if _digest(files[suffix]) != digest:
            raise _damaged(where, f"{manifest['entry']}{suffix} is not what was saved")


def _read(manifest: dict[str, Any], files: dict[str, bytes]) -> Saved:
    source = {
        TAG: KernelSource.__name__,
        "entry": manifest["entry"],
        "text": files[".cu"].decode().partition("\n")[2],
        "header": files[".h"].decode(),
        **{
            field: manifest[field]
            for field in ("arch", "arguments", "launch", "conditions", "options", *_AROUND)
        },
    }
    generated = {
        TAG: Generated.__name__,
        "origin": manifest["schedule_origin"],
        "source": source,
        "tree": files[".tree.yaml"].decode().removesuffix("\n"),
        **{f: manifest[f] for f in ("program", "target", "schedule", "proofs", "command", "sums")},
    }
    artifact, asked = None, manifest["asked"]
    if manifest["resources"] is not None:
        artifact = Artifact(
            files[".ptx"].decode(),
            files[".cubin"],
            decode(Resources, manifest["resources"]),
            manifest["log"],
            manifest["compiler"],
        )
    sizes = tuple(manifest["sizes"].items())
    if not all(type(size) is int for _, size in sizes):
        raise ValueError(f"sizes are {manifest['sizes']}")
    return Saved(
        decode(Generated, generated),
        artifact,
        None if asked is None else decode(Schedule, asked),
        sizes,
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _own_digest(manifest: dict[str, Any]) -> str:
    rest = {name: value for name, value in manifest.items() if name != "digest"}
    return _digest(json.dumps(rest, sort_keys=True).encode())


def _damaged(where: str, why: str) -> SavedKernelError:
    return SavedKernelError(
        "the saved kernel is damaged", where=where, why=why, nearest="Save the kernel again"
    )


# --- folders --------------------------------------------------------------------------------------
def write(saved: Saved, folder: Path | str, *, force: bool = False) -> Path:
    """Write a kernel; each file appears whole or not at all, the manifest last.

    Args:
        saved: the kernel.
        folder: made if needed.
        force: take the place of another kernel of this name.

    Returns:
        The path of the ``.cu``.

    Raises:
        SavedKernelError: the folder holds another kernel of this name.
        CacheError: a file cannot be written.
    """
    name = saved.generated.source.entry
    folder = folder_of(folder)
    manifest, files = pack(saved)
    if not force:
        _refuse_to_replace(folder, name, manifest)
    for suffix in set(_SUFFIXES) - set(files):
        stale = folder / f"{name}{suffix}"
        if stale.is_file():  # of a kernel that was compiled
            stale.unlink()
    for suffix, data in files.items():
        write_bytes_atomic(folder / f"{name}{suffix}", data)
    text = json.dumps(manifest, indent=2) + "\n"
    write_bytes_atomic(folder / f"{name}{_MANIFEST}", text.encode())
    return folder / f"{name}.cu"


def folder_of(folder: object) -> Path:
    """A folder as given, once the system can be asked for it."""
    if not isinstance(folder, str | Path) or "\0" in str(folder):
        raise SavedKernelError(f"{echo(folder)} is no folder", nearest="Name one, as kernels_out")
    try:
        Path(folder).exists()
    except OSError as reason:  # a name that is too long
        raise unwritable(Path(folder), reason, "Name another folder") from None
    return Path(folder)


def _refuse_to_replace(folder: Path, name: str, manifest: dict[str, Any]) -> None:
    """Refuse a folder with a kernel of this name that is another program's, target's or class's."""
    path, code = folder / f"{name}{_MANIFEST}", folder / f"{name}.cu"
    if not path.is_file() and not code.is_file():
        return
    try:
        there = json.loads(path.read_text(encoding="utf-8"))
        known = {field: there[field] for field in ("expression", "target")}
        aligned = _classes(there)
    except (OSError, ValueError, KeyError, TypeError):
        known, there, aligned = {}, {}, {}
    same = all(manifest[field] == value for field, value in known.items())
    same = same and there.get("identity", manifest["identity"]) == manifest["identity"]
    asked = _classes(manifest)
    if known and same and aligned == asked:
        return
    if known and same:
        array = next(one for one in aligned | asked if aligned.get(one) != asked.get(one))
        before, after = aligned.get(array), asked.get(array)
        what = f"it holds {name} for other rows: those of {array} are {before}"
        why = f"this {name} is for rows of {array} that are {after}, and is another kernel"
    elif known:
        what = f"it holds {name} of {known['expression']} for {known['target']}"
        why = (
            f"this {name} is of {manifest['expression']} for {manifest['target']}, with other "
            "operands, types or fixed sizes if that is the same"
        )
    else:
        what, why = f"it holds a {name} whose manifest cannot be read", "it may be another kernel"
    raise SavedKernelError(
        what,
        where=str(folder),
        why=why,
        nearest="Give the kernel another name, use another folder, or force it: force=True in "
        "Python, --force on the command line",
    )


def _classes(manifest: dict[str, Any]) -> dict[str, str]:
    """How the rows of each array lie that a manifest's kernel is for: its alignment class."""
    tensors = (*manifest["program"]["inputs"], *manifest["program"]["outputs"])
    return {
        one["name"]: f"aligned to {one['alignment']} bytes"
        + (", but for their last elements" if one["ragged"] else "")
        for one in tensors
    }


def read(path: Path | str) -> Saved:
    """Read a kernel.

    Args:
        path: any of its files.

    Raises:
        SavedKernelError: a file is missing, damaged, or of another format.
        UnknownTarget: this polygen does not know the target.
    """
    hint = "Name a file that `save` or `polygen generate` wrote, as pg_up.cu"
    if not isinstance(path, str | Path) or not Path(path).name:
        raise SavedKernelError(f"{echo(path)} is no file of a kernel", nearest=hint)
    path = Path(path)
    if path.is_dir():
        raise SavedKernelError("it is a folder", where=str(path), nearest=hint)
    known = (suffix for suffix in (*_SUFFIXES, _MANIFEST) if path.name.endswith(suffix))
    name = path.name.removesuffix(next(known, ""))
    place = path.with_name(f"{name}{_MANIFEST}")
    try:
        manifest = json.loads(place.read_bytes())
    except OSError as reason:
        raise SavedKernelError(
            f"the manifest cannot be read: {reason.strerror}",
            where=str(place),
            nearest=hint,
        ) from reason
    except (ValueError, RecursionError) as reason:
        raise _damaged(str(place), f"it is not JSON: {reason}") from reason
    files = {}
    for suffix in _SUFFIXES:
        beside = place.with_name(f"{name}{suffix}")
        if beside.is_file():
            files[suffix] = beside.read_bytes()
    return unpack(manifest, files, str(place))


def to_bytes(saved: Saved) -> bytes:
    """A kernel as one value, for a pickle."""
    manifest, files = pack(saved)
    body = b"".join(files.values())
    head = {"manifest": manifest, "lengths": {suffix: len(data) for suffix, data in files.items()}}
    return json.dumps(head).encode() + b"\n" + body


def from_bytes(data: bytes) -> Saved:
    """The kernel of `to_bytes`.

    Raises:
        SavedKernelError, UnknownTarget: as for `unpack`.
    """
    line, _, body = data.partition(b"\n")
    head = json.loads(line)
    files, start = {}, 0
    for suffix, length in head["lengths"].items():
        files[suffix] = body[start : start + length]
        start += length
    return unpack(head["manifest"], files, "a pickled kernel")
