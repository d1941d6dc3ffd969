"""Non-negative matrix factorisation by multiplicative updates, in float32."""

import polygen.adapters.numpy as np


def main(rows=4096, columns=4096, rank=32, steps=50):
    """The factors, and the relative error of their product."""
    rng = np.random.default_rng(9)
    v = (rng.random((rows, rank)) @ rng.random((rank, columns))).astype(np.float32)
    v += 0.01 * rng.random((rows, columns)).astype(np.float32)
    w = rng.random((rows, rank)).astype(np.float32) + 0.1
    h = rng.random((rank, columns)).astype(np.float32) + 0.1
    for step in range(steps):
        h *= (w.T @ v) / ((w.T @ w) @ h + 1e-9)
        w *= (v @ h.T) / (w @ (h @ h.T) + 1e-9)
        if step % 10 == 0:
            error = np.sqrt(((v - w @ h) ** 2).sum() / (v**2).sum())
            print(f"step {step}: relative error {float(error):.5f}")
    return w, h, error


if __name__ == "__main__":
    main()
