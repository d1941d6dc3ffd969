"""The log of the sum of exponentials of every row of logits, without the logits.

Replaces: a product that writes the logits, the largest matrix of a language model's training
step, and a kernel that reads them to fold every row; beside it the largest one and where it is.
Why one: a fold takes the products from registers. Nothing of the size of the vocabulary is
stored.
"""

from __future__ import annotations

import gallery

import polygen as pg

SIGNATURE = ("bf16[T,K]", "bf16[V,K]")


@pg.fuse
def normaliser(h, w):
    """What cross entropy needs of the logits h @ w.T, and the most likely token."""
    logits = h @ w.T
    return pg.logsumexp(logits, axis=1), pg.argmax(logits, axis=1)


def operands(sizes, random):
    """Hidden states and the table of the vocabulary: whole numbers, so that products are exact."""
    t, v, k = (sizes[name] for name in "TVK")
    shapes = (t, k), (v, k)
    return tuple(
        random.integers(-2, 3, shape).astype(gallery.ml_dtypes.bfloat16) for shape in shapes
    )


def main() -> None:
    """Run and check it."""
    small, large = {"T": 40, "V": 150, "K": 72}, {"T": 4096, "V": 32000, "K": 4096}
    gallery.run(normaliser, SIGNATURE, operands, small=small, large=large)


if __name__ == "__main__":
    main()
