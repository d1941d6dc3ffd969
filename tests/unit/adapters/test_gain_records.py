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
from polygen.adapters.gain import is_pointwise_work, predicted, unknown
from polygen.adapters.legality import refusal
from polygen.bench.operations import operations
from polygen.hardware.device import device

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
    left = {key: ratio for key, (take, ratio) in found.items() if take is False}
    assert len(taken) > 90 and len(left) > 2
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
