"""docs/gallery.md from the docstrings of examples/, what was measured, and pictures of kernels.

    python docs/make_gallery.py            # the page alone
    python docs/make_gallery.py --pictures # and docs/plots/gallery/*.svg, some seconds each

The pictures have what the cost model predicts in them; the page has docstrings and records alone,
so that a test can compare it.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "gallery.md"
RESULTS = ROOT / "docs" / "results"
RECORD = RESULTS / "gallery.json"  # made by docs/measure_gallery.py
PICTURES = ROOT / "docs" / "plots" / "gallery"
COMMAND = "python docs/make_gallery.py"
STYLE = ROOT / "polygen" / "page" / "templates" / "page.css"

# The kernels, in the order in which one reads them; those of a library need it installed.
KERNELS = (
    "linear_gelu",
    "gated_mlp",
    "batched_heads",
    "grouped_experts",
    "int8_weights",
    "logits_logsumexp",
    "attention",
    "low_rank",
    "kmeans_assignment",
    "odd_rows",
    "residual_statistics",
    "normed_heads",
    "qkv_heads",
    "decoder_block",
    "few_rows",
    "edit_schedule",
    "saved_from_c",
)
LIBRARIES = ("torch_operator", "torch_compile", "several_gpus")

# Which are about something else, or measured for more (docs/in_order.md).
NOT_MEASURED = ("edit_schedule", "saved_from_c", "decoder_block")
PEERS = {
    "separate": "cuBLAS and separate kernels",
    "eager": "PyTorch",
    "cublaslt": "cuBLASLt",
    "inductor": "Inductor",
    "triton": "Triton",
}

_LABELS = "Replaces|Why one|Why it works|Why it is different|What happens|What is saved"
LABEL = re.compile(rf"^({_LABELS}):", re.MULTILINE)

HEAD = f"""\
# Gallery

<!-- made by {COMMAND} from the docstrings of examples/ -->

Small programs, each a kernel that somebody has a use for. Without a GPU a program makes the
kernel of an H100 or H200 for large sizes and runs its PTX on NumPy at small ones, in a few
seconds; with an NVIDIA GPU it makes the kernel of that one, runs it at the large sizes and
prints its time. Either way results are compared with the program in float64, and a wrong one
ends it with exit code 1.

```
python examples/linear_gelu.py
```

The pictures show which leaf of which place runs for which k tile, and what lies in shared
memory ([page.md](page.md) says how to read them), and what the [cost model](cost-model.md)
predicts for an H200. Nothing in them is measured. What was measured of an example, by
`docs/measure_gallery.py`, stands below it with its point under the measured roofline; where that is
missing, the times of a row of the [records](performance.md) that is near: below 1 the other library
is faster.
"""

BETWEEN = """
## With a library

These need PyTorch. `examples/numpy` has ten programs that run unchanged on `polygen.adapters.numpy`
([numpy.md](numpy.md)).
"""


def paragraphs(name: str) -> list[str]:
    """The docstring of an example: its first sentence, and what follows."""
    tree = ast.parse((EXAMPLES / f"{name}.py").read_text())
    return [part.strip() for part in (ast.get_docstring(tree) or "").split("\n\n")]


def remarks(paragraph: str) -> str:
    """A paragraph of a docstring, its labelled remarks ("Replaces: ...") as points."""
    return LABEL.sub(r"- **\1**:", paragraph)


def measured(name: str) -> str:
    """What was measured of an example."""
    if RECORD.exists():
        record = json.loads(RECORD.read_text())
        row = record["rows"].get(name, {})
        if "us" in row:
            return gained(row, record)
    return "- **Measured**: not yet, its point under the roofline neither."


def gained(row: dict[str, Any], record: dict[str, Any]) -> str:
    """The measured gain of an example, and its point under the roofline.

    Args:
        row: of a record of docs/measure_gallery.py.
        record: with the card, and its roofs.
    """
    own, point, roofs = row["us"]["polygen"], row["roofline"], row.get("roofs", record["roofs"])
    named = {peer: title for peer, title in PEERS.items() if peer in row["us"]}
    others = ", ".join(f"{title} {row['us'][peer] / own:.2f}" for peer, title in named.items())
    sizes = ", ".join(f"{dim} = {extent}" for dim, extent in row["sizes"].items())
    bound = point["operations_per_byte"] * roofs["gbytes"] * 1e-3 < roofs["tflops"]
    return (
        f"- **Measured** on {row.get('gpu', record['gpu'])}, {sizes}: {own:.1f} us, "
        f"and {others} times as long.\n"
        f"- **Roofline**: {point['operations_per_byte']:.0f} operations per byte, "
        f"{point['tflops']:.0f} TFLOP/s, {point['of_roof']:.0%} of what "
        f"{'memory' if bound else 'products'} allow{'s' if bound else ''} there "
        f"({roofs['gbytes']:.0f} GB/s, {roofs['tflops']:.0f} TFLOP/s)."
    )


def section(name: str, level: str) -> Iterator[str]:
    """What the page says of an example."""
    first, *rest = paragraphs(name)
    yield f"\n{level} {name}\n\n{first}\n"
    for part in rest:
        yield f"\n{remarks(part)}\n"
    if name in KERNELS and name not in NOT_MEASURED:
        yield f"{measured(name)}\n"
    yield f"\n[examples/{name}.py](../examples/{name}.py)\n"
    if (PICTURES / f"{name}.svg").exists():
        yield f"\n![Timeline of {name}](plots/gallery/{name}.svg)\n"


def text() -> str:
    """The whole page."""
    parts = [HEAD]
    for name in KERNELS:
        parts += section(name, "##")
    parts.append(BETWEEN)
    for name in LIBRARIES:
        parts += section(name, "###")
    return "".join(parts)


# --- pictures -----------------------------------------------------------------------------------
def kernels(name: str) -> list[Any]:
    """The kernels that an example runs, made for its large sizes, without running them."""
    import gallery  # noqa: PLC0415 (needs polygen, which the page alone does not)

    made = []

    def compiled(function: Any, signature: Any, operands: Any, **options: Any) -> Any:
        sizes = options.pop("large")
        del options["small"]
        options.pop("roundings", None)
        made.append((function.compile(*signature, arch="sm_90a", sizes=sizes, **options), sizes))
        return made[-1][0]

    with mock.patch.object(gallery, "run", compiled):
        importlib.import_module(name).main()
    return made


def picture(kernel: Any, sizes: dict[str, int]) -> str:
    """The timeline of a kernel as a picture that stands alone."""
    from polygen.page.content import content  # noqa: PLC0415
    from polygen.page.render import environment  # noqa: PLC0415

    made = content(kernel.passes, sizes)
    macro = environment().get_template("picture.html.j2").module.picture
    svg = str(macro(made.timeline, "timeline", "leaves of all places over time")).strip()
    said = [
        f"{kernel.program.source} for {', '.join(f'{n} = {v}' for n, v in sizes.items())}: "
        f"{kernel.schedule.name}",
    ]
    if made.point is not None:
        said.append(
            f"predicted: {made.point.predicted:.0f} TFLOP/s at {made.point.intensity:.0f} "
            f"operations per byte, {made.point.predicted / made.point.roof:.0%} of the roof"
        )
    width, height = max(made.timeline.width, 900.0), made.timeline.height
    captions = "".join(
        f'<text x="0" y="{height + 20 + 16 * row}">{escape(line)}</text>'
        for row, line in enumerate(said)
    )
    keys, at = "", 0.0
    for leaf, hue in made.colours:
        keys += f'<rect class="{hue}" x="{at}" y="{height + 46}" width="10" height="10"/>'
        keys += f'<text x="{at + 14}" y="{height + 55}">{escape(leaf)}</text>'
        at += 24 + 6.4 * len(leaf)
    memory = str(macro(made.memory, "memory", "buffers of shared memory")).strip()
    memory = memory.replace("<svg ", f'<svg y="{height + 72}" ', 1)
    whole = height + 72 + made.memory.height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {whole}" width="{width}" '
        f'height="{whole}"><style>{style()}</style><rect width="100%" height="100%" fill="#fff"/>'
        f"{svg}{memory}<g class='picture'>{captions}{keys}</g></svg>\n"
    )


def style() -> str:
    """The rules of the pages' style sheet that pictures need."""
    wanted = (":root", ".picture", ".wait", ".tick", ".free", ".hue")
    lines = STYLE.read_text().splitlines()
    return "".join(line for line in lines if line.startswith(wanted)).replace(" background:", "")


def main() -> None:
    """Write the page, and the pictures on request."""
    if "--pictures" in sys.argv[1:]:
        sys.path[:0] = [str(EXAMPLES), str(ROOT)]
        PICTURES.mkdir(parents=True, exist_ok=True)
        for name in KERNELS:
            for kernel, sizes in kernels(name)[:1]:
                (PICTURES / f"{name}.svg").write_text(picture(kernel.kernels[0], sizes))
                print(PICTURES / f"{name}.svg")
    PAGE.write_text(text())
    print(PAGE)


if __name__ == "__main__":
    main()
