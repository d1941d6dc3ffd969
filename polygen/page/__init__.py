"""A kernel, or several in order, as one HTML page that stands alone: no network, no other file.

`page` gathers what the passes hold (`content`; `sequence` of several), works the pictures out
(`timeline`, `pictures`) and fills the template. Nothing here decides anything about a kernel.
"""

from polygen.page.render import page, sequence_page
from polygen.page.sequence import sequence_content

__all__ = ["page", "sequence_content", "sequence_page"]
