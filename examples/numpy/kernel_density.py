"""Kernel density estimation in two dimensions on a grid, and its log likelihood."""

import polygen.adapters.numpy as np


def density(points, grid, width):
    """The estimate at every point of a grid."""
    scale = 1 / (2 * np.pi * width**2 * len(points))
    dx = (grid[:, None, 0] - points[:, 0]) / width
    dy = (grid[:, None, 1] - points[:, 1]) / width
    return scale * np.exp(-0.5 * (dx**2 + dy**2)).sum(axis=1)


def main(points=20_000, side=64):
    """The density on a grid, its integral, and the log likelihood of other points."""
    rng = np.random.default_rng(6)
    first = rng.standard_normal((points // 2, 2)) * 0.5 - 1.0
    second = rng.standard_normal((points - points // 2, 2)) + 1.0
    sample = np.concatenate([first, second])
    axis = np.linspace(-4, 4, side)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    for width in (0.1, 0.2, 0.4):
        found = density(sample, grid, width)
        total = found.sum() * (8 / (side - 1)) ** 2
        held = np.log(density(sample[::2], sample[1::32], width) + 1e-300).mean()
        print(f"width {width}: integral {float(total):.4f}, log likelihood {float(held):.4f}")
    return found.reshape(side, side), total, held


if __name__ == "__main__":
    main()
