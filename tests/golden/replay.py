"""Generates the whole matrix of kernels at two commits and shows what changed.

    python tests/golden/replay.py                 # HEAD against the files as they are now
    python tests/golden/replay.py A B             # commit A against commit B
    python tests/golden/replay.py A --summary     # no diffs, only which kernels changed

1. Each commit is checked out into a temporary worktree, which is removed afterwards.
2. A child process imports polygen from there and writes each kernel's text, or why it was refused.
   The cases are those beside this file, so that both commits get the same ones.
3. The two folders are compared byte for byte. Exit code 0: all equal; 1: some differ; 2: failed.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from golden_cases import ROOT, Case, matrix

NOW = "now"  # the working tree


def write_all(folder: Path) -> None:
    """Write the text of every case, with the polygen that this process imports."""
    for case in matrix():
        (folder / f"{case.name}.cu").write_text(_text(case))


def _text(case: Case) -> str:
    import polygen as pg
    from polygen.frontend.parse import parse_expression

    names = [text.partition(":")[0] for text in case.operands]
    try:
        function = parse_expression(case.expression, names)
        function.expression = case.expression  # type: ignore[attr-defined]
        kernel = pg.fuse(function, name=case.name).compile(
            *case.operands,
            arch=case.arch,
            sizes=dict(case.sizes),
            static=case.static,
            out_dtype=case.out_dtype or None,
            acc_dtype=case.acc_dtype,
            schedule=case.schedule,
        )
    except pg.PolygenError as error:
        return f"refused: {error}\n"
    return str(kernel.source)


@contextlib.contextmanager
def checkout(commit: str, parent: Path) -> Iterator[Path]:
    """The files of a commit, in a worktree that goes away."""
    if commit == NOW:
        yield ROOT
        return
    where = parent / "tree"
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(where), commit], check=True)
    try:
        yield where
    finally:
        subprocess.run([*git, "remove", "--force", str(where)], check=True)


def generate(commit: str, folder: Path) -> dict[str, str]:
    """Every kernel's text at a commit, by name."""
    texts = folder / "texts"
    texts.mkdir(parents=True)
    with checkout(commit, folder) as tree:
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        command = [sys.executable, __file__, "--write", str(texts)]
        subprocess.run(command, cwd=tree, env=environment, check=True)
    return {path.stem: path.read_text() for path in sorted(texts.iterdir())}


def report(old: dict[str, str], new: dict[str, str], names: tuple[str, str], diffs: bool) -> int:
    """Print which kernels differ, and how; returns their number."""
    changed = [name for name in new if old.get(name) != new[name]]
    for name in changed:
        before, after = (texts.get(name, "").splitlines() for texts in (old, new))
        lines = list(difflib.unified_diff(before, after, *names, lineterm="", n=2))
        added = sum(line.startswith("+") for line in lines[2:])
        removed = sum(line.startswith("-") for line in lines[2:])
        print(f"{name}: +{added} -{removed}")
        if diffs:
            print("\n".join(lines), end="\n\n")
    refused = sum(text.startswith("refused:") for text in new.values())
    same = len(new) - len(changed)
    print(
        f"{len(new)} kernels: {same} same, {len(changed)} changed, {refused} refused in {names[1]}"
    )
    return len(changed)


def main() -> int:
    """Read the command line and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", nargs="?", default="HEAD", help="a commit; default HEAD")
    parser.add_argument("new", nargs="?", default=NOW, help="a commit; default: the files now")
    parser.add_argument("--summary", action="store_true", help="leave out the diffs")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write_all(options.write)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            old = generate(options.old, Path(folder) / "old")
            new = generate(options.new, Path(folder) / "new")
        except subprocess.CalledProcessError as error:
            print(f"failed: {' '.join(map(str, error.cmd))}", file=sys.stderr)
            return 2
    return 1 if report(old, new, (options.old, options.new), not options.summary) else 0


if __name__ == "__main__":
    sys.exit(main())
