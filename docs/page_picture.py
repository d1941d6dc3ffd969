"""The picture in docs/page.md: the page of a kernel, with a barrier pointed at.

    python docs/page_picture.py [BROWSER]

BROWSER is a Chromium that runs without a window; without it the usual names are tried.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import polygen as pg

PICTURE = Path(__file__).parent / "plots" / "page.png"
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
POINT = "<script>document.querySelector('#barriers [data-sync=empty_ring]').click()</script>"
SIZE = "1240,1000"


@pg.fuse
def up(x, w, b):
    """The kernel of the picture."""
    return pg.gelu(x @ w.T + b)


def main() -> int:
    """Write the picture; 1 without a browser."""
    browser = sys.argv[1] if len(sys.argv) > 1 else next(filter(None, map(shutil.which, NAMES)), "")
    if not browser:
        print(f"no browser: looked for {', '.join(NAMES)}", file=sys.stderr)
        return 1
    sizes = {"M": 4096, "N": 4096, "K": 1024}
    kernel = up.compile("bf16[M,K]", "bf16[N,K]", "bf16[N]", arch="sm_90a", sizes=sizes)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(kernel.page().replace("</body>", f"{POINT}</body>"))
        words = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        words += [f"--window-size={SIZE}", f"--screenshot={PICTURE}", file.as_uri()]
        subprocess.run([browser, *words], check=True, capture_output=True)
    print(PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
