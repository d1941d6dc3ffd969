"""docs/performance.md is what docs/make_tables.py makes of the committed records."""

import runpy
from pathlib import Path


def test_the_performance_page_comes_from_the_records():
    docs = Path(__file__).resolve().parents[2] / "docs"
    made = runpy.run_path(str(docs / "make_tables.py"))["render"]()
    assert (docs / "performance.md").read_text() == made
    assert "| `x @ w.T` |" in made
