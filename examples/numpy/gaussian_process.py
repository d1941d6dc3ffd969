"""Gaussian process regression with a squared exponential kernel: mean and variance."""

import polygen.adapters.numpy as np


def kernel(a, b, length, variance):
    """The squared exponential of the distances of rows."""
    squared = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * (a @ b.T)
    return variance * np.exp(-0.5 * np.maximum(squared, 0) / length**2)


def main(points=3000, queries=1000, features=4, noise=0.1):
    """Mean and variance at the queries, and the error of the mean."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((points, features))
    y = np.sin(x).sum(axis=1) + noise * rng.standard_normal(points)
    query = rng.standard_normal((queries, features))

    best, chosen = -np.inf, None
    for length in (0.5, 1.0, 2.0):
        k = kernel(x, x, length, 1.0) + noise**2 * np.eye(points)
        factor = np.linalg.cholesky(k)
        alpha = np.linalg.solve(k, y)
        likelihood = -0.5 * (y @ alpha) - np.log(np.diag(factor)).sum()
        print(f"length {length}: log likelihood {float(likelihood):.1f}")
        if likelihood > best:
            best, chosen = likelihood, length
    cross = kernel(query, x, chosen, 1.0)
    k = kernel(x, x, chosen, 1.0) + noise**2 * np.eye(points)
    mean = cross @ np.linalg.solve(k, y)
    variance = 1.0 - (cross * np.linalg.solve(k, cross.T).T).sum(axis=1)
    error = np.sqrt(np.mean((mean - np.sin(query).sum(axis=1)) ** 2))
    print(f"length {chosen}, root mean squared error {float(error):.3f}")
    return mean, variance, error


if __name__ == "__main__":
    main()
