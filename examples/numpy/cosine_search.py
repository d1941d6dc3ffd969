"""The nearest vectors by cosine similarity: the best ten of a data base for every query."""

import polygen.adapters.numpy as np


def main(entries=100_000, queries=512, features=256, best=10):
    """The indices and values of the best entries for every query, and the recall."""
    rng = np.random.default_rng(7)
    base = rng.standard_normal((entries, features)).astype(np.float32)
    asked = base[:queries] + 0.5 * rng.standard_normal((queries, features)).astype(np.float32)

    base = base - base.mean(axis=0)
    base /= np.sqrt((base**2).sum(axis=1, keepdims=True)) + 1e-8
    asked = asked - asked.mean(axis=0)
    asked /= np.sqrt((asked**2).sum(axis=1, keepdims=True)) + 1e-8
    scores = asked @ base.T
    scores = np.where(scores > 0, scores, 0.1 * scores)
    found = np.argsort(-scores, axis=1)[:, :best]
    values = np.take_along_axis(scores, found, axis=1)
    recall = np.mean(found[:, 0] == np.arange(queries))
    print(f"recall {float(recall):.3f}, mean of the best {float(values[:, 0].mean()):.3f}")
    return found, values, recall


if __name__ == "__main__":
    main()
