"""`polygen show --stage pipeline`: a schedule of a pipeline, proved and drawn."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from polygen.cli.output import print_json, print_pairs
from polygen.errors import UsageError
from polygen.parallel import drawing
from polygen.parallel.proved import prove
from polygen.parallel.timetable import Timetable, timetable
from polygen.parallel.turns import plan
from polygen.runtime.files import write_text_atomic

STAGE = "pipeline"
_SIZES = {"stages": 4, "ranks": 4, "microbatches": 8}


def show(options: argparse.Namespace) -> int:
    """Prove a schedule and print its timeline, or write it as a page."""
    sizes = dict(options.size)
    unknown = set(sizes) - {*_SIZES, "buffers"}
    if unknown:
        raise UsageError(
            f"--size {sorted(unknown)[0]}",
            where="show --stage pipeline",
            nearest=f"Sizes: {', '.join(_SIZES)}, buffers",
        )
    known = _SIZES | sizes
    chosen = timetable(options.program, known["stages"], known["ranks"])
    if options.signature:
        chosen = _where(chosen, options.signature)
    proved = prove(chosen, sizes.get("buffers"))
    drawn = plan(proved, known["microbatches"])
    if options.html is not None:
        write_text_atomic(Path(options.html), drawing.page(proved, drawn))
    if options.json:
        print_json(
            {
                "timetable": dataclasses.asdict(proved.timetable),
                "ticks": proved.length,
                "rings": [dataclasses.asdict(ring) for ring in proved.rings],
                "proofs": [dataclasses.asdict(proof) for proof in proved.proofs],
                "microbatches": drawn.microbatches,
                "bubble": drawn.bubble,
                "messages": len(drawn.messages),
                "page": options.html,
            }
        )
    elif options.html is not None:
        print_pairs([("page", options.html), ("pipeline", str(proved.timetable))])
    else:
        print(drawing.text(proved, drawn), end="")
    return 0


def _where(chosen: Timetable, words: list[str]) -> Timetable:
    """The timetable with a condition on the number of microbatches."""
    if len(words) > 1:
        raise UsageError(
            f"unrecognized arguments: {' '.join(words[1:])}",
            where="show --stage pipeline",
            nearest='A relation and a condition, as in "microbatches mod 4 = 0"',
        )
    return dataclasses.replace(chosen, requires=words[0])
