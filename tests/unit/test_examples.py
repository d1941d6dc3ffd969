"""The examples run on the PTX machine and check themselves; the gallery is made of them."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
# What each is about, beside the results that it compares.
SAYS = {
    "linear_gelu": "pingpong",
    "gated_mlp": "pingpong",
    "batched_heads": "without a GPU: B = 1",
    "grouped_experts": "rows of each expert: [",
    "int8_weights": "threads compute operands",
    "logits_logsumexp": "y1: right, largest error 0, allowed 0",
    "kmeans_assignment": "y0: right, largest error 0, allowed 0",
    "odd_rows": "rows are aligned to bytes: {'x': 2, 'w': 2, 'y0': 2}",
    "residual_statistics": "y1: right",
    "normed_heads": "its tiles cover rows of 64 elements",
    "qkv_heads": "its tiles cover rows of 64 elements",
    "decoder_block": "block_2: shipped",
    "few_rows": "dots_",
    "edit_schedule": "refused: ring_a: the schedule breaks a dependence: load_a[0,0,0] -> copy_a[",
    "attention": "y1: right",
    "low_rank": "y0: right",
    "saved_from_c": "saved: pg_up.cu, pg_up.cubin, pg_up.h, pg_up.json, pg_up.ptx",
}


@pytest.fixture(autouse=True)
def _as_if_run_there(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    before = set(sys.modules)
    import gallery

    monkeypatch.setattr(gallery, "current_arch", lambda: None)  # also where there is a GPU
    yield
    for name in set(sys.modules) - before:
        if name in SAYS or name == "gallery":
            del sys.modules[name]


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def make_gallery():
    return loaded("make_gallery")


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs_without_a_gpu_and_is_right(name, capsys):
    importlib.import_module(name).main()
    out = capsys.readouterr().out
    assert "y0: right, largest error" in out and "WRONG" not in out
    assert SAYS[name] in out


@pytest.mark.parametrize(
    ("found", "wanted", "right"),
    [
        (np.float32([1, 2]), [1, 2], True),
        (np.float32([1, 2.1]), [1, 2], False),
        (np.float32([1, np.nan]), [1, 2], False),
        (np.int32([3, 4]), [3, 4], True),
        (np.int32([3, 5]), [3, 4], False),
    ],
)
def test_a_wrong_result_ends_an_example(found, wanted, right, capsys):
    import gallery

    kernel = SimpleNamespace(program=SimpleNamespace(outputs=[SimpleNamespace(name="y0")]))
    if right:
        gallery.check(found, wanted, kernel)
    else:
        with pytest.raises(SystemExit):
            gallery.check(found, wanted, kernel)
    assert ("WRONG" in capsys.readouterr().out) is not right


def test_the_gallery_has_every_example():
    made = make_gallery()
    files = {path.stem for path in EXAMPLES.glob("*.py")} - {"gallery"}
    assert set(made.KERNELS) == set(SAYS) and len(SAYS) == 17
    assert files == {*made.KERNELS, *made.LIBRARIES}


def test_every_example_says_what_it_replaces():
    made = make_gallery()
    for name in made.KERNELS:
        first, *rest = made.paragraphs(name)
        assert "\n" not in first and any(part.startswith("Replaces: ") for part in rest), name


def test_the_gallery_is_made_of_the_docstrings():
    made = make_gallery()
    assert made.PAGE.read_text() == made.text(), f"run {made.COMMAND}"


def test_the_gallery_shows_what_was_measured_of_an_example(tmp_path, monkeypatch):
    made = make_gallery()
    monkeypatch.setattr(made, "RECORD", tmp_path / "gallery.json")
    assert "not yet" in made.measured("batched_heads")
    row = {
        "sizes": {"N": 11008, "K": 4096},
        "us": {"polygen": 25.0, "eager": 30.0, "inductor": 20.0},
        "roofline": {"operations_per_byte": 1.0, "tflops": 3.6, "of_roof": 0.9},
    }
    roofs = {"tflops": 700.0, "gbytes": 4000.0}
    rows = {"few_rows": row, "attention": {"failed": "x"}}
    record = {"gpu": "a card", "roofs": roofs, "rows": rows}
    made.RECORD.write_text(json.dumps(record))
    found = made.measured("few_rows")
    assert "on a card, N = 11008, K = 4096: 25.0 us, and PyTorch 1.20, Inductor 0.80 times" in found
    assert "1 operations per byte, 4 TFLOP/s, 90% of what memory allows there" in found
    row["roofline"]["operations_per_byte"] = 500.0
    made.RECORD.write_text(json.dumps(record))
    assert "of what products allow there" in made.measured("few_rows")
    assert "not yet" in made.measured("attention")


def test_every_kernel_of_the_gallery_is_measured_beside_what_it_replaces():
    made, measure = make_gallery(), loaded("measure_gallery")
    assert set(measure.CASES) == set(made.KERNELS) - set(made.NOT_MEASURED)
    assert len(measure.CASES) == 14
    assert measure.operations(("M N K", "M 16 K"), {"M": 2, "N": 3, "K": 5}) == 2 * (30 + 160)
    point = measure.point(8_000_000, 1_000_000, 2.0, {"tflops": 100.0, "gbytes": 1000.0})
    assert point == {
        "operations_per_byte": 8.0, "tflops": 4.0, "roof_tflops": 8.0, "of_roof": 0.5
    }  # fmt: skip


@pytest.mark.parametrize("name", ["few_rows", "residual_statistics", "kmeans_assignment"])
def test_what_an_example_replaces_computes_the_same(name):
    pytest.importorskip("torch")
    assert loaded("measure_gallery").dry(name)["apart"] < 1e-12
