"""Runs the snippets of a page of documentation, and compares what they print with what it says.

Python runs in one namespace, the shell in one folder, in the order of the page. A ```text block
right behind a snippet is what it prints, with "…" for what was left out. ```py is Python that needs
a GPU, or PyTorch or JAX with one. What a page's snippets take for granted is in `given_names`.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import re
import subprocess
import sys
import types
from pathlib import Path

from given_names import anywhere, on_gpu

from polygen import knobs

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ANYWHERE, ON_A_GPU = ("python", "sh"), ("python", "sh", "py")
OTHERS = ("", "text", "toml")  # what is no snippet
APART = {  # pages whose snippets no test runs by themselves
    "parallel.md": "they are of processes with a GPU each: examples/several_gpus.py, which "
    "tests/distributed_ranks.py runs, has the same calls",
}


def as_printed(wanted, printed):
    """Whether a text was printed, with "…" standing for anything; lines may be broken anywhere."""
    parts = [r"\s+".join(map(re.escape, part.split())) for part in wanted.split("…")]
    return re.search(r"(?s)" + r"\s*.*?\s*".join(parts), printed) is not None


def in_python(code, module):
    """Run; functions find their source, as they do in a file."""
    out, name = io.StringIO(), f"<snippet {hash(code)}>"
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    with contextlib.redirect_stdout(out):
        exec(compile(code, name, "exec"), vars(module))
    return out.getvalue()


def in_a_shell(code, folder):
    """Run by bash, which stops at the first command that fails; `polygen` is this one."""
    home = folder / "bin"
    home.mkdir(exist_ok=True)
    command = home / "polygen"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m polygen "$@"\n')
    command.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{home}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    words = ["bash", "-euo", "pipefail", "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def pages(languages):
    """The pages that have snippets in some languages, and are no others' to run."""
    texts = [(path.name, path.read_text()) for path in sorted(DOCS.glob("*.md"))]
    texts.append(("../README.md", (ROOT / "README.md").read_text()))
    return [
        name
        for name, text in texts
        if name not in APART and any(language in languages for language, _ in FENCE.findall(text))
    ]


def run_page(name, folder, languages):
    """Run a page's snippets in some languages; False if it has none.

    Raises:
        AssertionError: one fails, or prints something else.
    """
    blocks = FENCE.findall((DOCS / name).read_text())
    assert {language for language, _ in blocks} <= {*ON_A_GPU, *OTHERS}
    module = types.ModuleType("page")
    vars(module).update(anywhere(name))
    printed, ran, on_a_gpu = None, False, False
    with knobs.scope(arch=None, schedule=None), contextlib.chdir(folder):
        for language, code in blocks:
            if language in languages:
                if language == "py" and not on_a_gpu:
                    vars(module).update(on_gpu(name, vars(module)))
                    on_a_gpu = True
                printed = in_a_shell(code, folder) if language == "sh" else in_python(code, module)
                ran = True
            elif language == "text" and printed is not None:
                assert as_printed(code, printed), f"{code}\nis not what is printed:\n{printed}"
                printed = None
            else:
                printed = None
    return ran
