"""The first principal components by power iteration with deflation."""

import polygen.adapters.numpy as np


def main(points=100_000, features=128, components=3, most=100):
    """The components, and the variance along each."""
    rng = np.random.default_rng(3)
    scale = 1.0 + 20.0 * 0.6 ** np.arange(features)
    x = rng.standard_normal((points, features)) * scale + 5.0
    x -= x.mean(axis=0)
    x /= np.sqrt(points - 1)

    found, variances = [], []
    for number in range(components):
        v = np.ones(features) / np.sqrt(features)
        for step in range(most):  # noqa: B007
            u = x.T @ (x @ v)
            for w in found:
                u -= (w @ u) * w
            u /= np.sqrt((u * u).sum())
            change = np.abs(u - v).max()
            v = u
            if change < 1e-9:
                break
        variance = ((x @ v) ** 2).sum()
        print(f"component {number}: variance {float(variance):.3f} after {step + 1} steps")
        found.append(v)
        variances.append(float(variance))
    return np.stack(found), variances


if __name__ == "__main__":
    main()
