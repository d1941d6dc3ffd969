"""A network of two layers learns a function by gradient descent with momentum, in float32."""

import polygen.adapters.numpy as np


def main(points=8192, features=256, hidden=1024, classes=16, steps=30, rate=0.1):
    """Weights and biases after training, and the accuracy."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((points, features)).astype(np.float32)
    teacher = rng.standard_normal((features, classes)).astype(np.float32)
    labels = (x @ teacher).argmax(axis=1)
    target = np.eye(classes, dtype=np.float32)[labels]

    w1 = (rng.standard_normal((features, hidden)) * np.sqrt(2 / features)).astype(np.float32)
    w2 = (rng.standard_normal((hidden, classes)) * np.sqrt(2 / hidden)).astype(np.float32)
    b1, b2 = np.zeros(hidden, dtype=np.float32), np.zeros(classes, dtype=np.float32)
    weights = [w1, b1, w2, b2]
    speeds = [np.zeros_like(one) for one in weights]
    for step in range(steps):
        z = x @ weights[0] + weights[1]
        h = np.maximum(z, 0)
        logits = h @ weights[2] + weights[3]
        e = np.exp(logits - logits.max(axis=1, keepdims=True))
        p = e / e.sum(axis=1, keepdims=True)
        if step % 10 == 0:
            loss = -np.mean((target * np.log(p + 1e-9)).sum(axis=1))
            print(f"step {step}: loss {float(loss):.4f}")
        d2 = (p - target) / points
        d1 = (d2 @ weights[2].T) * (z > 0)
        gradients = [x.T @ d1, d1.sum(axis=0), h.T @ d2, d2.sum(axis=0)]
        for weight, speed, gradient in zip(weights, speeds, gradients):  # noqa: B905
            speed *= 0.9
            speed -= rate * (gradient + 1e-4 * weight)
            weight += speed
    accuracy = np.mean(logits.argmax(axis=1) == labels)
    print(f"accuracy {float(accuracy):.3f}")
    return *weights, accuracy


if __name__ == "__main__":
    main()
