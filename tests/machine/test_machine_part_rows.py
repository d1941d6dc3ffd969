"""Results that are put together of several matrices, whose elements use folds of their own rows.

Every part of an output has a statement of its own, and the launch that follows stores all of them.
"""

from __future__ import annotations

import numpy as np
import pytest
from matrix import roles, small, tiled

import polygen as pg
from polygen.errors import UnsupportedProgram
from polygen.schedule.model import Epilogue

X_U_V = ("bf16[M,K]", "bf16[40,K]", "bf16[40,K]")
SIZES = {"M": 72, "K": 96}
PAIRS, TILE = Epilogue(through="registers"), Epilogue(through="registers", rows="tile")
SCHEDULES = {
    "after": ("sm_80", small(epilogue=PAIRS)),
    "after, by roles": ("sm_90a", roles("one", through="registers")),
    "tile": ("sm_80", tiled((32, 64, 32), (16, 64), epilogue=TILE)),
    "tile, by roles": ("sm_90a", roles("two", through="registers", rows="tile")),
}


@pg.fuse
def behind(x, u, v):
    """Columns of two products, each below the most of its own row; and the most of both."""
    a, b = x @ u.T, x @ v.T
    of_a, of_b = (np.max(one, axis=1, keepdims=True) for one in (a, b))
    return np.concatenate([a - of_a, b - of_b], axis=1), np.maximum(of_a, of_b)


@pg.fuse
def in_turns(x, u, v):
    """Even columns and odd ones."""
    a, b = x @ u.T, x @ v.T
    most = np.max(np.maximum(a, b), axis=1, keepdims=True)
    return np.stack([a - most, most - b], axis=-1)


@pytest.mark.parametrize("way", SCHEDULES)
@pytest.mark.parametrize("function", [behind, in_turns], ids=["behind", "in_turns"])
def test_every_part_is_stored(function, way):
    arch, schedule = SCHEDULES[way]
    kernel = function.compile(*X_U_V, arch=arch, sizes=SIZES, schedule=schedule)
    report = kernel.check(SIZES)
    assert report.ok, str(report)
    assert report.comparison == "equal to NumPy, bit for bit"


def halves(*parts):
    """A matrix, and what it is below the most of its row or column, put together."""

    def put_together(x, u, v):
        a = (x @ u.T).astype("f32")
        found = {
            "itself": a,
            "below its row": a - np.max(a, axis=1, keepdims=True),
            "below its column": a - np.max(a, axis=0, keepdims=True),
            "the row's": np.max(a, axis=1, keepdims=True),
        }
        return np.concatenate([found[one] for one in parts], axis=1), x @ v.T

    return pg.fuse(put_together)


REFUSED = {
    ("itself", "below its row"): "stored by the kernel and the launch that follows, of rows over M",
    ("below its row", "below its column"): "of rows over M and the launch that follows, of rows ov",
    ("below its row", "the row's"): "stored by the launch that follows and the launch that follows",
    ("the row's", "the row's"): "whoever has a result stores it in an array of its own",
}


@pytest.mark.parametrize("parts", REFUSED)
def test_parts_of_several_launches_are_refused(parts):
    with pytest.raises(UnsupportedProgram, match="y0 has parts") as error:
        halves(*parts).compile(*X_U_V, arch="sm_80", sizes=SIZES)
    assert REFUSED[parts] in str(error.value)
    assert "Return the parts, and put them behind one another outside" in str(error.value)
