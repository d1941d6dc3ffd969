"""Attention from array code: masks, soft caps and log-sum-exp, in one kernel each.

python examples/attention.py            # derives and checks it; needs no GPU
"""

from __future__ import annotations

import numpy as np

import polygen as pg


@pg.fuse
def causal(q, k, v):
    """Causal attention, and the logarithms of its rows' sums."""
    s = (q @ k.mT) * 0.125
    i, j = pg.indices(s)[-2:]
    s = pg.where(i >= j, s, -np.inf)
    return pg.softmax(s) @ v, pg.logsumexp(s, axis=-1)


@pg.fuse
def capped(q, k, v):
    """Scores that a soft cap keeps within 30, nearer keys counting more."""
    s = pg.tanh((q @ k.mT) * (0.125 / 30)) * 30
    i, j = pg.indices(s)[-2:]
    return pg.softmax(s - pg.abs(i - j) * 0.0625) @ v


def main() -> None:
    """Compile both for an H100 or H200, print the derivation, and check them on the PTX machine."""
    for function in (causal, capped):
        kernel = function.compile("bf16[B,S,64]", "bf16[B,S,64]", "bf16[B,S,64]", arch="sm_90a")
        print(kernel.show("rewrite"))
        report = kernel.check({"B": 1, "S": 200})
        print(report.brief())
        assert report.ok, report


if __name__ == "__main__":
    main()
