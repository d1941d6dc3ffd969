"""What statistics and solvers are written with, for `docs/measure_fused.py`: vectors, few columns,
few results of long sums, of f32 where nothing else is said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fused_cases import Case, pytorch

import polygen as pg


def statistics() -> dict[str, Case]:
    """All of them, by their names."""
    found = {}
    for m, k in ((1_000_000, 64), (65536, 512)):
        found[f"correlations of f32 {m}x{k}"] = Case(
            _correlations, lambda x: _correlations(x, correction=0), (f"f32[M,{k}]",), {"M": m},
            2 * m * k * k, (),
        )  # fmt: skip
    m, k = 262144, 128
    found[f"weighted covariance of f32 {m}x{k}"] = Case(
        _covariance, _covariance, (f"f32[M,{k}]", "f32[M]"), {"M": m}, 2 * m * k * k,
    )  # fmt: skip
    found[f"gradient of a linear regression of f32 {m}x{k}"] = Case(
        _regression, _regression, (f"f32[M,{k}]", "f32[M]", f"f32[{k}]"), {"M": m}, 4 * m * k, (2,)
    )
    found["a step of Sinkhorn's iteration, f32 4096"] = Case(
        _sinkhorn, _sinkhorn, ("f32[N,N]", "f32[N]", "f32[N]"), {"N": 4096}, 4 * 4096**2, (),
        made={at: _positive(at) for at in range(3)},
    )  # fmt: skip
    found[f"the loss of a logistic regression, f32 {m}x{k}"] = Case(
        lambda x, w, y: _logistic(x, w, y),
        lambda x, w, y: _logistic(x, w, y, pytorch().nn.functional.softplus),
        (f"f32[M,{k}]", f"f32[{k}]", "f32[M]"), {"M": m}, 2 * m * k,
    )  # fmt: skip
    found["a step of the power method, f32 8192"] = Case(
        lambda a, v: _power(a, v), lambda a, v: _power(a, v, pytorch().sqrt),
        ("f32[N,N]", "f32[N]"), {"N": 8192}, 2 * 8192**2, (),
    )  # fmt: skip
    for kind, (m, n, k) in (
        ("bf16", (65536, 16, 512)), ("f32", (65536, 10, 784)), ("f32", (262144, 10, 64)),
    ):  # fmt: skip
        found[f"softmax of {n} classes, {kind} {m}x{n}x{k}"] = Case(
            lambda x, w, b: pg.softmax(x @ w.T + b, axis=-1).astype(x.dtype),
            lambda x, w, b: (x @ w.T + b).softmax(-1),
            (f"{kind}[M,K]", f"{kind}[N,K]", f"{kind}[N]"), {"M": m, "N": n, "K": k},
            2 * m * n * k,
        )  # fmt: skip
    for kind, (m, k) in (("f32", (4096, 4096)), ("f32", (1_000_000, 64)), ("f64", (4096, 4096))):
        found[f"x @ v of {kind} {m}x{k}"] = Case(
            lambda x, v: x @ v, lambda x, v: x @ v, (f"{kind}[M,K]", f"{kind}[K]"),
            {"M": m, "K": k}, 2 * m * k, (),
        )  # fmt: skip
        found[f"x.T @ v of {kind} {m}x{k}"] = Case(
            lambda x, v: x.T @ v, lambda x, v: x.T @ v, (f"{kind}[M,K]", f"{kind}[M]"),
            {"M": m, "K": k}, 2 * m * k, (),
        )  # fmt: skip
    for m, n, k in ((2048, 2048, 2048), (512, 512, 65536)):
        found[f"x.T @ y of f32 {m}x{n}x{k}"] = Case(
            lambda x, y: x.T @ y, lambda x, y: x.T @ y, ("f32[K,M]", "f32[K,N]"),
            {"M": m, "N": n, "K": k}, 2 * m * n * k, (), inductor=k < 65536,
        )  # fmt: skip
    return found


def _positive(at: int) -> Callable[[dict[str, int]], Any]:
    def made(sizes: dict[str, int]) -> Any:
        generator = pytorch().Generator(device="cuda").manual_seed(at)
        shape = (sizes["N"],) * (2 if at == 0 else 1)
        return pytorch().rand(shape, generator=generator, device="cuda") + 0.1

    return made


def _correlations(x: Any, **more: int) -> Any:
    z = (x - x.mean(0)) / x.std(0, **more)
    return z.T @ z / x.shape[0]


def _covariance(x: Any, p: Any) -> Any:
    centred = x - (p[:, None] * x).sum(0)
    return (centred * p[:, None]).T @ centred


def _regression(x: Any, y: Any, w: Any) -> Any:
    return x.T @ (x @ w - y) * (2.0 / x.shape[0])


def _logistic(x: Any, w: Any, y: Any, softplus: Callable[[Any], Any] = pg.softplus) -> Any:
    z = x @ w
    return (softplus(z) - y * z).mean()


def _power(a: Any, v: Any, sqrt: Callable[[Any], Any] = pg.sqrt) -> Any:
    u = a @ v
    return u / sqrt((u * u).sum())


def _sinkhorn(k: Any, u: Any, b: Any) -> Any:
    v = b / (k.T @ u)
    return v, 1.0 / (k @ v)
