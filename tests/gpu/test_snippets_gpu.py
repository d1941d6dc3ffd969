"""The pages of the documentation on a machine with a GPU, with the snippets that need one."""

from __future__ import annotations

import pytest
from snippets import ON_A_GPU, pages, run_page

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", pages(ON_A_GPU))
def test_snippets_run_and_print_what_the_page_says(name, tmp_path):
    assert run_page(name, tmp_path, ON_A_GPU)
