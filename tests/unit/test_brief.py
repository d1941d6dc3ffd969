"""What a prompt and a notebook show of large records."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
from ml_dtypes import bfloat16
from runtime_samples import artifact, source

import polygen as pg
from polygen.check import CheckReport
from polygen.machine import Finding
from polygen.runtime.artifact import Artifact
from polygen.schedule.model import Pipeline
from polygen.tune.records import Measurement
from polygen.tune.search import Tuning


@pytest.fixture(scope="module")
def kernel():
    sizes = {"M": 8, "N": 8, "K": 16}
    fused = pg.fuse(lambda x, w: pg.where(x @ w.T < 3, 1.0, 2.0), name="up")
    return fused.compile("bf16[M,K]", "bf16[N,K]", arch="sm_80", sizes=sizes)


@pytest.fixture(scope="module")
def records(kernel):
    ones = np.ones((8, 16), bfloat16)
    emulation = kernel.emulation(ones, ones)
    finding = Finding("race-write-read", "thread 3 reads <too> early", "PTX line 7", 2)
    return [
        kernel.passes,
        kernel.program,
        kernel.artifact,
        kernel.passes.source,
        kernel.passes.scop,
        kernel.passes.tree,
        kernel.passes.plan,
        emulation,
        emulation.report,
        CheckReport((), (("M", 8),), "equals NumPy", ()),
        CheckReport((), (("M", 8),), "differs from NumPy", (finding,)),
    ]


def test_a_repr_is_one_short_line(kernel, records):
    for record in [*records, kernel]:
        text = repr(record)
        assert "\n" not in text and len(text) < 300, text
        assert text.startswith("<") and text.endswith(">")


def test_a_notebook_shows_the_whole_text(records):
    for record in records:
        html = record._repr_html_()
        assert html.startswith("<pre>") and html.endswith("</pre>")
    assert "&lt;too&gt;" in records[-1]._repr_html_()


def test_a_kernel_in_a_notebook(kernel):
    html = kernel._repr_html_()
    assert html.startswith("<table>") and html.count("<tr>") == 7
    assert "x @ w.T &lt; 3" in html and "bf16[N, K]" in html and "sm_80" in html
    assert "deterministic" in html


def test_a_function_in_a_notebook(kernel):
    fused = pg.fuse(lambda x, w: pg.where(x @ w.T < 3, 1.0, 2.0))
    html = fused._repr_html_()
    assert html.startswith("<table>") and "&lt; 3" in html and "x, w" in html


def test_a_schedule_in_a_notebook_has_what_is_not_usual():
    schedule = pg.Schedule("mine", pipeline=Pipeline(stages=7))
    html = schedule._repr_html_()
    assert html.startswith("<table>") and html.count("<tr>") == 3
    assert "mine" in html and "pipeline.stages" in html and ">7<" in html


def test_a_plan_in_words(kernel):
    text = str(kernel.passes.plan)
    assert "places:" in text and "ring_a: " in text and "barriers:" in text


def test_a_verdict_is_in_the_line(records):
    good, bad = records[-2:]
    assert repr(good) == "<CheckReport: 0 proofs, ran on NumPy: equals NumPy; no findings>"
    assert repr(bad).endswith("differs from NumPy; 1 findings, first: race-write-read>")


def test_bytes_and_code_are_not_printed():
    large = replace(artifact(), ptx="p" * 10**6, cubin=b"c" * 10**6)
    assert isinstance(large, Artifact) and len(repr(large)) < 200
    assert repr(source()) == "<KernelSource: scale for sm_80, 6 lines>"


def test_a_tuning_names_its_best():
    fields = {field.name: None for field in dataclasses.fields(Measurement)}
    best = Measurement(
        **fields | {"schedule": pg.Schedule("fast"), "microseconds": 2.0, "ratio": 0.5}
    )
    found = Tuning(best, "usual", 4.0, 10, (), 0, 1.0, True, False, "a GPU")
    assert repr(found) == (
        "<Tuning: fast, 2.00 us, 2.000 times as fast as usual, of 10 schedules, on a GPU>"
    )
