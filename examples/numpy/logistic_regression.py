"""Logistic regression by gradient descent; the log-loss is printed every ten steps."""

import polygen.adapters.numpy as np


def main(points=200_000, features=64, steps=50, rate=0.5):
    """The weights, and the accuracy on what they were fitted to."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((points, features))
    truth = rng.standard_normal(features)
    y = (x @ truth + 0.5 * rng.standard_normal(points) > 0).astype(np.float64)

    w = np.zeros(features)
    for step in range(steps):
        p = 1 / (1 + np.exp(-(x @ w)))
        gradient = x.T @ (p - y) / points + 1e-3 * w
        w -= rate * gradient
        if step % 10 == 0:
            q = np.clip(p, 1e-12, 1 - 1e-12)
            loss = -np.mean(y * np.log(q) + (1 - y) * np.log(1 - q))
            print(f"step {step}: loss {float(loss):.4f}")
    accuracy = np.mean((x @ w > 0) == (y > 0.5))
    print(f"accuracy {float(accuracy):.3f}")
    return w, accuracy


if __name__ == "__main__":
    main()
