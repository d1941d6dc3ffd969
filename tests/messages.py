"""What every message of a refusal keeps to."""

from __future__ import annotations

import re


def check_message(text):
    """One message: short, printable, about the input and not about polygen's inside."""
    assert text.endswith("\n") and len(text) < 5000, len(text)
    assert len(re.findall(r"^polygen", text, re.MULTILINE)) == 1, text
    assert text.startswith("polygen"), text
    for word in ("Traceback", "internal error", "site-packages", "<class", "object at 0x"):
        assert word not in text, text
    assert all(c.isprintable() or c == "\n" for c in text), repr(text)
    text.encode()  # no half characters, which no terminal can show
    first = text.splitlines()[0]
    assert len(first) > 20 and first[-1] in ".!?)`", first
