"""The scripts of examples/numpy give what the same scripts give with NumPy itself."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from polygen.adapters.numpy import polygen_options
from polygen.adapters.numpy.backends import NUMPY

EXAMPLES = Path(__file__).parents[3] / "examples" / "numpy"
IMPORT = "import polygen.adapters.numpy as np"
SMALL = {
    "cosine_search": {"entries": 300, "queries": 20, "features": 16},
    "gaussian_process": {"points": 60, "queries": 20},
    "gram_schmidt": {"rows": 50, "columns": 12},
    "k_means": {"points": 400, "features": 4, "clusters": 5, "steps": 8},
    "kernel_density": {"points": 200, "side": 8},
    "logistic_regression": {"points": 300, "features": 6, "steps": 21},
    "mlp_training": {"points": 64, "features": 8, "hidden": 16, "classes": 4, "steps": 12},
    "nmf": {"rows": 30, "columns": 20, "rank": 3, "steps": 12},
    "pca_power_iteration": {"points": 200, "features": 12, "most": 30},
    "ridge_regression": {"points": 300, "features": 10},
}


def ran(path, line, capsys):
    """What a script returns and prints, with another line in the place of its import."""
    text = path.read_text()
    assert text.count("import") == 1 and IMPORT in text, "nothing but the import is changed"
    names = {"__name__": path.stem}
    exec(compile(text.replace(IMPORT, line), str(path), "exec"), names)
    result = names["main"](**SMALL[path.stem])
    return result, capsys.readouterr().out


def test_every_script_is_compared():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SMALL) and len(SMALL) == 10


@pytest.mark.parametrize("name", sorted(SMALL))
def test_a_script_gives_what_numpy_gives(name, capsys):
    path = EXAMPLES / f"{name}.py"
    wanted, said = ran(path, "import numpy as np", capsys)
    with polygen_options(backend=NUMPY):
        found, says = ran(path, IMPORT, capsys)
        assert says == said != ""
        for one, other in zip(found, wanted, strict=True):
            numpy.testing.assert_array_equal(numpy.asarray(one), numpy.asarray(other))
            assert numpy.asarray(one).dtype == numpy.asarray(other).dtype
