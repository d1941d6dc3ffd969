"""``python -m polygen`` is the command ``polygen``."""

from __future__ import annotations

import sys

from polygen.cli import main

if __name__ == "__main__":
    sys.exit(main())
