"""Folders that are files are said to be, and nothing is written."""

import pytest

from polygen.errors import CacheError
from polygen.runtime.files import write_text_atomic


def test_a_folder_that_is_a_file(tmp_path):
    there = tmp_path / "there"
    there.write_text("kept")
    for path in (there / "a.cu", there / "deeper" / "a.cu"):
        with pytest.raises(CacheError, match="there is a file") as error:
            write_text_atomic(path, "text")
        assert "Name a folder" in str(error.value) and there.read_text() == "kept"
