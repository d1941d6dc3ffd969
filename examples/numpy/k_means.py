"""Lloyd's k-means, until no centre moves."""

import polygen.adapters.numpy as np


def main(points=200_000, features=16, clusters=32, steps=30):
    """Centres, labels, and the mean squared distance."""
    rng = np.random.default_rng(1)
    places = 6 * rng.standard_normal((clusters, features))
    x = places[rng.integers(0, clusters, size=points)] + rng.standard_normal((points, features))
    centers = x[:clusters].copy()
    for step in range(steps):  # noqa: B007
        distances = (x**2).sum(axis=1)[:, None] - 2 * (x @ centers.T) + (centers**2).sum(axis=1)
        labels = distances.argmin(axis=1)
        members = (labels[:, None] == np.arange(clusters)).astype(x.dtype)
        counts = np.maximum(members.sum(axis=0), 1)
        moved = (members.T @ x) / counts[:, None]
        shift = np.sqrt(((moved - centers) ** 2).sum(axis=1)).max()
        centers = moved
        if shift < 1e-6:
            break
    inertia = np.maximum(distances.min(axis=1), 0).mean()
    print(f"{step + 1} steps, mean squared distance {float(inertia):.3f}")
    return centers, labels, inertia


if __name__ == "__main__":
    main()
