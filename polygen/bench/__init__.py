"""Measures fused kernels beside other libraries on one GPU, and tells what was measured.

`polygen.bench.run` leads a run: rows of suites, compiled in parallel, measured by a child process,
kept in a record. `polygen.bench.report` and `polygen.bench.plots` turn records into pages.
"""
