"""What the prediction decides, against what was measured: the records beside Inductor on an H200.

The rows say how long `torch.compile` in the mode max-autotune took, and polygen's kernel. Groups
that are predicted to win have to have won.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import polygen as pg
from polygen.adapters.chain_gain import predicted_chain
from polygen.adapters.gain import (
    is_pointwise_work,
    library_time,
    microseconds,
    predicted,
    unknown,
)
from polygen.adapters.legality import refusal
from polygen.bench.operations import operations
from polygen.decide import candidates
from polygen.decision import decision
from polygen.hardware.device import device
from polygen.tune.choose import choose
from polygen.tune.cost import cost

RESULTS = Path(__file__).parents[3] / "docs" / "results"
VOCABULARY = {name: getattr(pg, name) for name in pg.__all__}
THRESHOLD = 1.03


def rows():
    for file in ("h200.json", "h200_products.json"):
        for row in json.loads((RESULTS / file).read_text())["rows"]:
            timed = "inductor" in row["times"] and "polygen" in row["times"]
            usual = row["dtype"] in ("bf16", "f16") and row["acc"] == "f32" and not row["pad"]
            if timed and usual:
                yield row


def decided(row):
    """Whether the row's program is taken, and how many times as long Inductor took."""
    operation = operations()[row["op"]]
    function = eval(f"lambda {', '.join(operation.names)}: {operation.expression}", VOCABULARY)
    signature = [f"{row['dtype']}[{','.join(dims)}]" for _, dims in operation.operands]
    program = pg.fuse(function, name="row").program(*signature)
    sizes = {"B": row.get("batch", row.get("B"))} | {name: row.get(name) for name in "MNK"}
    sizes = {name: sizes[name] for name in program.sizes}
    measured = row["times"]["inductor"]["us"] / row["times"]["polygen"]["us"]
    if not is_pointwise_work(program) or unknown(program, sizes):
        return None, measured
    return predicted(program, device("sm_90a"), sizes).ratio >= THRESHOLD, measured


@pytest.mark.slow
def test_what_is_taken_was_no_slower_than_inductor():
    found = {row["key"]: decided(row) for row in rows()}
    taken = {key: ratio for key, (take, ratio) in found.items() if take}
    assert len(taken) > 90
    take, ratio = found["pairs bf16 4096x4096x2048"]  # a library adds one product to another
    assert take is None and ratio < 0.95
    assert {key: ratio for key, ratio in taken.items() if ratio < 0.98} == {}
    mean = math.exp(sum(map(math.log, taken.values())) / len(taken))
    assert mean > 1.2


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"M": 4096, "N": 4096, "K": 1031}, "rows of x are no multiple of 16 bytes"),
        ({"M": 5000, "N": 777, "K": 512}, "rows of y0 are no multiple of 16 bytes"),
        ({"M": 1, "N": 4096, "K": 4096}, "x has a single row"),
        ({"M": 4096, "N": 4096, "K": 1024}, ""),
    ],
)
def test_what_the_model_does_not_know_is_left(sizes, text):
    program = pg.fuse(lambda x, w: pg.gelu(x @ w.T)).program("bf16[M,K]", "bf16[N,K]")
    found = unknown(program, sizes)
    assert found.startswith(text) and bool(found) == bool(text)


# --- products of few rows
def few_rows():
    """Rows, columns and length of products that a library made on an H200, and its time."""
    for row in json.loads((RESULTS / "h200_few_rows.json").read_text())["rows"]:
        if row["op"] == "mm":
            yield tuple(row[name] for name in "MNK"), row["times"]["eager"]["us"]
    found = json.loads((RESULTS / "h200_few_rows_libraries.json").read_text())["rows"]
    for name, row in found.items():
        expression, _, sizes = name.rpartition(" ")
        if expression == "x @ w.T":
            yield tuple(map(int, sizes.split("x"))), row["us"]["library"]


def test_a_library_s_product_of_few_rows_has_a_price_between_ours_and_what_it_took():
    program = pg.fuse(lambda x, w: x @ w.T).program("bf16[M,K]", "bf16[N,K]")
    h200, dearer = device("sm_90a"), []
    for extents, took in few_rows():
        sizes = dict(zip("MNK", extents, strict=True))
        own, library = (price(program, h200, sizes) for price in (microseconds, library_time))
        assert own <= library <= took, sizes
        if library > own:
            dearer.append(extents)
    assert len(dearer) > 3 and all(rows <= 64 for rows, _, _ in dearer)


@pytest.mark.parametrize("rows", [1, 4, 16])
def test_a_residual_behind_few_rows_is_taken(rows):
    """Of 16 rows a library's product alone took 1.16 times as long."""
    program = pg.fuse(lambda x, w, r: x @ w.T + r).program("bf16[M,K]", "bf16[N,K]", "bf16[M,N]")
    sizes = {"M": rows, "N": 4096, "K": 4096}
    followed = [tensor.name for tensor in program.outputs]
    assert predicted(program, device("sm_90a"), sizes, followed).ratio >= THRESHOLD


def test_what_was_measured_fastest_takes_no_longer_than_what_would_be_chosen_else():
    h200, sizes = device("sm_90a"), {"M": 2048, "N": 4096, "K": 14336}
    program = pg.fuse(lambda x, w, r: x @ w.T + r).program("bf16[M,K]", "bf16[N,K]", "bf16[M,N]")
    schedule, origin = decision(program, h200, sizes)
    problem, fit = candidates(program, h200, sizes)
    others = cost(h200, fit(choose(h200, problem, fit)[0]), problem).microseconds
    assert "measured fastest" in origin
    assert microseconds(program, h200, sizes) == others
    assert others < cost(h200, fit(schedule), problem).microseconds


# --- chains whose rows begin anywhere
def test_attention_by_warps_is_legal_and_its_gain_over_libraries_unknown():
    """Libraries were measured beside kernels with roles, which copy aligned rows."""
    sizes = {"B": 64, "S": 4096, "T": 4096}
    found = []
    for rows in ("64]", "36]@8"):
        given = tuple(f"bf16[B,{side},{rows}" for side in "STT")
        program = pg.fuse(lambda q, k, v: pg.softmax((q @ k.mT) * 0.1) @ v).program(*given)
        assert refusal(program) is None
        found.append(predicted_chain(program, device("sm_90a"), sizes, "flash"))
    assert found[0].fused > 0 and "not measured beside" in found[1]


@pytest.mark.parametrize("library", ["flash", ""])
def test_attention_of_what_is_made_first_is_not_predicted(library):
    given = ("bf16[2,8,4096,128]",) * 3
    found = pg.fuse(lambda q, k, v: pg.softmax(pg.rms_norm(q) @ (k * 2).mT) @ v).program(*given)
    assert refusal(found) is None
    assert "makes: not predicted" in predicted_chain(found, device("sm_90a"), {}, library)
