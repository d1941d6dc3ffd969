"""Modified Gram-Schmidt: each step makes a column a unit vector, the rest orthogonal to it."""

import polygen.adapters.numpy as np


def main(rows=20_000, columns=96):
    """The factors Q and R of a random matrix."""
    rng = np.random.default_rng(8)
    a = rng.standard_normal((rows, columns)) + 0.5
    q, r = a.copy(), np.zeros((columns, columns))
    for j in range(columns):
        r[j, j] = np.sqrt((q[:, j] ** 2).sum())
        q[:, j] /= r[j, j]
        r[j, j + 1 :] = q[:, j] @ q[:, j + 1 :]
        q[:, j + 1 :] -= q[:, j, None] * r[j, j + 1 :]
    error = np.abs(q.T @ q - np.eye(columns)).max()
    residual = np.abs(q @ r - a).max()
    print(f"orthogonal up to {float(error):.1e}, residual {float(residual):.1e}")
    return q, r


if __name__ == "__main__":
    main()
