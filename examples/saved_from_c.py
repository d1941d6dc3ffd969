"""A kernel saved to files, loaded again without isl, and called from C.

Replaces: linking a template library into a program, or keeping Python in it.
What is saved: a `.cu` that stands alone, with a launcher of C linkage that refuses what does
not fit; a C header with the launcher's tests; cubin, PTX, and a manifest from which Python
loads the kernel.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import gallery

import polygen as pg

SIGNATURE = ("bf16[M,K]", "bf16[N,K]", "bf16[N]")
SIZES = {"M": 512, "N": 256, "K": 128}
CALLER = Path(__file__).with_suffix(".c")


@pg.fuse
def up(x, w, b):
    """gelu(x @ w.T + b)."""
    return pg.gelu(x @ w.T + b)


def operands(sizes, random):
    """Arrays for x, w and b."""
    m, n, k = (sizes[name] for name in "MNK")
    normal = gallery.normal
    return normal(random, m, k), normal(random, n, k, scale=k**-0.5), normal(random, n)


def build(folder: Path, code: Path, target: str, gpu: bool) -> list[str] | None:
    """The command that builds the caller; None: there is no compiler for it."""
    program = str(folder / "caller")
    if gpu and shutil.which("nvcc"):
        number = target.removeprefix("sm_")
        architecture = f"arch=compute_{number},code={target}"
        files = ["-DWITH_GPU", f"-I{folder}", str(code), str(CALLER), "-o", program]
        return ["nvcc", "-gencode", architecture, *files]
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    return [compiler, f"-I{folder}", str(CALLER), "-o", program] if compiler else None


def main() -> None:
    """Save, load, run, and call from C."""
    gpu = gallery.current_arch()
    kernel = up.compile(*SIGNATURE, arch=gpu or "sm_80", sizes=SIZES)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        code = kernel.save(folder)
        print("saved:", ", ".join(sorted(path.name for path in folder.iterdir())))

        loaded = pg.Kernel.load(code)
        assert loaded.cubin == kernel.cubin  # nothing is compiled again
        arrays = operands({"M": 40, "N": 72, "K": 64}, gallery.np.random.default_rng(0))
        found = gallery.on_gpu(loaded, arrays) if gpu else loaded.emulate(*arrays)
        gallery.check(found, up.reference(*arrays), loaded)

        command = build(folder, code, gpu or "sm_80", bool(gpu))
        if command is None:
            print("no C compiler: the caller is not built")
            return
        subprocess.run(command, check=True)
        subprocess.run([str(folder / "caller")], check=True)


if __name__ == "__main__":
    main()
