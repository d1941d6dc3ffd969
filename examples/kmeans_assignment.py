"""The nearest of many centres for every point: a step of k-means.

Replaces: a product that writes all distances, a kernel that adds the norms, one that finds the
least of every row.
Why one: the distances are stored nowhere; what leaves the kernel is one index for each point.
"""

from __future__ import annotations

import gallery
import numpy as np

import polygen as pg

SIGNATURE = ("f16[P,D]", "f16[C,D]", "f32[C]")


@pg.fuse
def nearest(points, centres, norms):
    """The index of the nearest centre: |p - c|^2 without |p|^2, which all centres share."""
    return np.argmin(norms - 2 * (points @ centres.T), axis=1)


def operands(sizes, random):
    """Points and centres on a grid, so that products are exact; the centres' squared norms."""
    p, c, d = (sizes[name] for name in "PCD")
    points = random.integers(-3, 4, (p, d)).astype(np.float16)
    centres = random.integers(-3, 4, (c, d)).astype(np.float16)
    return points, centres, (centres.astype(np.float32) ** 2).sum(axis=1)


def main() -> None:
    """Run and check it."""
    small, large = {"P": 72, "C": 40, "D": 32}, {"P": 1 << 17, "C": 1024, "D": 64}
    gallery.run(nearest, SIGNATURE, operands, small=small, large=large)


if __name__ == "__main__":
    main()
