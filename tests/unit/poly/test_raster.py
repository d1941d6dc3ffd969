"""The formulas that say which tile is whose: code has them as they are proved."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polygen.errors import VerifyError
from polygen.poly import raster

GROUP = 4
BROKEN: dict[str, tuple[str, Callable[..., object], Callable[..., object]]] = {
    "a tile twice": (
        "block_tile",
        lambda group, x, y: (f"{y} * {group} + {x} % {group - 1}", f"{x} / {group}"),
        raster.prove_raster,
    ),
    "columns left out": (
        "block_tile",
        lambda group, x, y: (f"{y} * {group} + {x} % {group}", f"{x} / {group + 1}"),
        raster.prove_raster,
    ),
    "matrices that two rounds have": (
        "round_matrix",
        lambda layers, number, z: f"{number} * {layers - 1} + {z}",
        raster.prove_rounds,
    ),
    "matrices between rounds": (
        "round_matrix",
        lambda layers, number, z: f"{number} * {layers + 1} + {z}",
        raster.prove_rounds,
    ),
    "groups that overlap": (
        "width_of",
        lambda group, band, along: f"min({group + 1}, {along} - {band} * {group})",
        raster.prove_linear_raster,
    ),
    "the last group is as wide as others": (
        "width_of",
        lambda group, band, along: f"{group}",
        raster.prove_linear_raster,
    ),
    "items of the last group as of others": (
        "item_tile",
        lambda group, band, item, width: (
            f"{band} * {group} + {item} % {group}",
            f"{item} / {group}",
        ),
        raster.prove_linear_raster,
    ),
    "a divisor for whole groups in the last": (
        "last_width",
        lambda group, along: f"{group}",
        raster.prove_linear_raster,
    ),
    "a divisor of more than is left": (
        "last_width",
        lambda group, along: f"max(({along} + 1) % {group}, 1)",
        raster.prove_linear_raster,
    ),
    "tiles of the group behind": (
        "item_tile",
        lambda group, band, item, width: (
            f"{band} * {group} + {group} + {item} % {width}",
            f"{item} / {width}",
        ),
        raster.prove_linear_raster,
    ),
    "runs that skip a tile": (
        "run_column",
        lambda run, column, place: f"{column} * {run} + {place} + {column}",
        raster.prove_runs,
    ),
    "runs of the tile before": (
        "run_place",
        lambda run, tile: (f"{tile} / {run}", f"{tile} % {run + 1}"),
        raster.prove_runs,
    ),
    "rows behind the last": (
        "rows_of_range",
        lambda y, count: f"{count} - {y}",
        lambda _: raster.prove_ranges.__wrapped__(),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_no_proof_accepts_another_formula(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    formula, broken, prove = BROKEN[name]
    plain = getattr(prove, "__wrapped__", prove)  # what is proved once is proved again
    plain(GROUP)
    monkeypatch.setattr(raster, formula, broken)
    with pytest.raises(VerifyError, match=r"exactly once"):
        plain(GROUP)
