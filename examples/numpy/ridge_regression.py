"""Ridge regression on standardised features; the penalty is chosen on data held back."""

import polygen.adapters.numpy as np


def main(points=200_000, features=128):
    """The weights for the best penalty, and R squared."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((points, features)) * (1 + np.arange(features) % 7) + 3.0
    truth = rng.standard_normal(features)
    y = x @ truth + 5.0 * rng.standard_normal(points)

    half = points // 2
    mean, deviation = x[:half].mean(axis=0), x[:half].std(axis=0)
    train, test = (x[:half] - mean) / deviation, (x[half:] - mean) / deviation
    offset = y[:half].mean()
    gram, moment = train.T @ train, train.T @ (y[:half] - offset)
    best, chosen, weights = np.inf, None, None
    for penalty in (0.1, 1.0, 10.0, 100.0, 1000.0):
        w = np.linalg.solve(gram + penalty * np.eye(features), moment)
        error = np.mean((test @ w + offset - y[half:]) ** 2)
        print(f"penalty {penalty}: error {float(error):.4f}")
        if error < best:
            best, chosen, weights = error, penalty, w
    residual = y[half:] - (test @ weights + offset)
    determined = 1 - (residual**2).sum() / ((y[half:] - y[half:].mean()) ** 2).sum()
    print(f"penalty {chosen}, R squared {float(determined):.4f}")
    return weights, determined


if __name__ == "__main__":
    main()
