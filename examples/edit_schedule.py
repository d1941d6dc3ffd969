"""A schedule, edited into one that would race, refused with the reason, then mended.

Replaces: changing a pipeline by hand, running it until a sanitizer or a wrong result says
something, or nothing does.
What happens: a schedule is data. Copies are statements like any other, so that a copy that runs
too far ahead breaks a dependence, which is found for all sizes before there is any code.
"""

from __future__ import annotations

from dataclasses import replace

import gallery

import polygen as pg

SIGNATURE = ("f16[M,K]", "f16[N,K]")
SIZES = {"M": 72, "N": 72, "K": 200}


@pg.fuse
def product(x, w):
    """The product x @ w.T."""
    return x @ w.T


def operands(sizes, random):
    """Both matrices."""
    m, n, k = (sizes[name] for name in "MNK")
    x, w = random.standard_normal((m, k)), random.standard_normal((n, k)) * k**-0.5
    return x.astype("float16"), w.astype("float16")


def main() -> None:
    """Take a schedule, edit it twice."""
    kernel = product.compile(*SIGNATURE, arch="sm_80", sizes=SIZES)
    usual = kernel.schedule
    print(f"{usual.name}: {usual.pipeline}")

    # As far ahead as the ring has slots, and first in a step: into a slot that is still read.
    greedy = replace(usual.pipeline, distance=usual.pipeline.stages, order=("copy", "mma"))
    edited = replace(usual, name="greedy", pipeline=greedy)
    try:
        product.compile(*SIGNATURE, arch="sm_80", sizes=SIZES, schedule=edited)
    except pg.PolygenError as refusal:
        print(f"refused: {refusal}")
    else:
        raise SystemExit("a schedule that races was not refused")

    # Behind the products of a step the slot is free again.
    late = replace(greedy, distance=usual.pipeline.stages - 1, order=("mma", "copy"))
    mended = replace(usual, name="mended", pipeline=late)
    again = product.compile(*SIGNATURE, arch="sm_80", sizes=SIZES, schedule=mended)
    arrays = operands(SIZES, gallery.np.random.default_rng(0))
    gallery.check(again.emulate(*arrays), product.reference(*arrays), again)


if __name__ == "__main__":
    main()
