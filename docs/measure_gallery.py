"""Times the twelve kernels of the gallery beside what they replace, on this GPU.

    python docs/measure_gallery.py --out docs/results/gallery.json
    python docs/measure_gallery.py few_rows attention
    python docs/measure_gallery.py --dry      # no GPU: small sizes on the CPU, untimed

Sizes and schedules are the examples' own. Contenders take turns in one process, in random order;
operands are drawn from a normal distribution, the L2 cache is written over before each launch,
medians of microseconds of CUDA events: polygen, what the example replaces as PyTorch runs it
eagerly, and the same by Inductor. Roofs are measured in the same process: products of
8192x8192x8192 in bfloat16 by cuBLAS, and a copy of 1 GiB, read and written. A kernel's point is
the operations of its products per byte of its operands and results, and how many of them it does
in a second. Results are compared with the same code in float64, or float32 where that takes too
much memory. A record that is there keeps the rows that are not measured again; rows of
another card than the record's name it, with its roofs.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import importlib
import json
import math
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
TYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "s8": "int8", "s32": "int32"}
GROUP = 64  # weights of a scale
Maker = Callable[[dict[str, int], list[int]], Any]  # of sizes, and the shape


def _torch() -> Any:
    import torch  # noqa: PLC0415

    return torch


# --- what is replaced -----------------------------------------------------------------------------
def linear_gelu(x: Any, w: Any, b: Any) -> Any:
    """A linear layer, and GELU."""
    nn = _torch().nn.functional
    return nn.gelu(nn.linear(x, w, b))


def gated_mlp(x: Any, u: Any, v: Any) -> Any:
    """Two products and the gate."""
    return _torch().nn.functional.silu(x @ u.T) * (x @ v.T)


def batched_heads(q: Any, k: Any, slope: Any) -> Any:
    """Products of all heads, the bias of positions, the mask."""
    torch = _torch()
    at = torch.arange(q.shape[1], device=q.device)
    row, column = at[:, None], at[None, :]
    scores = torch.einsum("bshd,bthd->bhst", q, k) * 0.125 + (slope * (column - row)).to(q.dtype)
    return torch.where(column <= row, scores, -10000.0)


def grouped_experts(x: Any, gate: Any, up: Any, bias: Any, ends: Any) -> Any:
    """PyTorch's product by groups where it takes the type, else one for each group."""
    torch = _torch()
    if x.dtype == torch.bfloat16 and x.is_cuda:
        first, second = (torch._grouped_mm(x, w.mT, offs=ends) for w in (gate, up))
    else:
        parts = torch.tensor_split(x, ends[:-1].cpu().long())
        first, second = (
            torch.cat([part @ one.T for part, one in zip(parts, w, strict=True)])
            for w in (gate, up)
        )
    rows = torch.arange(len(x), device=x.device, dtype=ends.dtype)
    of_row = torch.searchsorted(ends, rows, right=True)
    return torch.nn.functional.silu(first + bias[of_row]) * second


def int8_weights(x: Any, q: Any, s: Any) -> Any:
    """The weights as numbers of x's type, and the product."""
    return x @ (q.to(x.dtype) * s.repeat_interleave(GROUP, 1)).T


def logits_logsumexp(h: Any, w: Any) -> Any:
    """All logits, and what is asked of them."""
    logits = h @ w.T
    return _torch().logsumexp(_wide(logits), 1), logits.argmax(1)


def attention(q: Any, k: Any, v: Any) -> Any:
    """Scores with a soft cap, distances and a mask; their softmax and its normaliser."""
    torch = _torch()
    s = torch.tanh(_wide(q @ k.mT) * (0.125 / 30)) * 30
    i = torch.arange(s.shape[-2], device=s.device)[:, None]
    j = torch.arange(s.shape[-1], device=s.device)[None, :]
    s = torch.where(i >= j, s - (i - j) * 0.0625, -torch.inf)
    return s.softmax(-1).to(v.dtype) @ v, s.logsumexp(-1)


def low_rank(x: Any, w: Any, a: Any, b: Any, s: Any) -> Any:
    """Three products and a sum."""
    return x @ w.T + (x @ a.T) @ b.T * s


def kmeans_assignment(points: Any, centres: Any, norms: Any) -> Any:
    """All distances, and the nearest."""
    return (norms - 2 * _wide(points @ centres.T)).argmin(1)


def odd_rows(x: Any, w: Any) -> Any:
    """A product and relu."""
    return _torch().relu(x @ w.T)


def residual_statistics(x: Any, w: Any, residual: Any) -> Any:
    """The sum, and the statistics of its rows."""
    v = x @ w.T + residual
    return v, (_wide(v).square().mean(1) + 1e-5).rsqrt()


def normed_heads(x: Any, w: Any, g: Any, cos: Any, sin: Any) -> Any:
    """Heads of a projection, each with its norm, turned, in front of positions."""
    return _turned_heads(x @ w.T, g, cos, sin)


def _turned_heads(y: Any, g: Any, cos: Any, sin: Any) -> Any:
    q = _wide(y.unflatten(-1, (-1, 128)))
    q = q * (q.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * g
    (a, b), cos, sin = q.chunk(2, -1), cos[:, None], sin[:, None]
    turned = _torch().cat([a * cos - b * sin, b * cos + a * sin], -1)
    return turned.transpose(0, 1).to(y.dtype).contiguous()


def qkv_heads(x: Any, w: Any, g: Any, h: Any, cos: Any, sin: Any) -> Any:
    """Heads of queries and keys like these, and of values as they are."""
    q, k, v = (x @ w.T).split([2048, 1024, 1024], -1)
    own = v.unflatten(-1, (-1, 128)).transpose(0, 1).contiguous()
    return _turned_heads(q, g, cos, sin), _turned_heads(k, h, cos, sin), own


def few_rows(x: Any, w: Any, b: Any) -> Any:
    """A linear layer of one token, and SiLU."""
    nn = _torch().nn.functional
    return nn.silu(nn.linear(x, w, b))


def _wide(v: Any) -> Any:
    return v if v.dtype == _torch().float64 else v.float()


# --- cases ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Case:
    """One example.

    Attributes:
        replaced: what it replaces, on tensors.
        products: "MNK" by sizes' names, one for each product: multiplications are their extents'.
        made: operands that are drawn otherwise, by position.
        scaled: operands that are drawn smaller, by k to the power -1/2.
    """

    replaced: Callable[..., Any]
    products: tuple[str, ...] = ("M N K",)
    made: dict[int, Maker] = field(default_factory=dict)
    scaled: tuple[int, ...] = (1,)


def _scales(_: dict[str, int], shape: list[int]) -> Any:
    return _torch().rand(*shape).add(0.5).div(127 * (GROUP * shape[1]) ** 0.5).bfloat16()


def _ends(sizes: dict[str, int], _: list[int]) -> Any:
    torch = _torch()
    routed = torch.randint(0, sizes["E"], (sizes["T"],), generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(routed, minlength=sizes["E"])
    return counts.cumsum(0).to(torch.int32)


CASES = {
    "linear_gelu": Case(linear_gelu),
    "gated_mlp": Case(gated_mlp, ("M N K", "M N K"), scaled=(1, 2)),
    "batched_heads": Case(batched_heads, ("B H S S D",), {2: lambda *_: 0.25}, ()),
    "grouped_experts": Case(grouped_experts, ("T N K", "T N K"), {4: _ends}, (1, 2)),
    "int8_weights": Case(int8_weights, ("M N 8192",), {2: _scales}, ()),
    "logits_logsumexp": Case(logits_logsumexp, ("T V K",)),
    "attention": Case(attention, ("B H S T 64", "B H S T 64"), scaled=()),
    "low_rank": Case(low_rank, ("M N K", "M 16 K", "M N 16"), {4: lambda *_: 2.0}, (1, 2)),
    "kmeans_assignment": Case(kmeans_assignment, ("P C D",), scaled=()),
    "odd_rows": Case(odd_rows),
    "residual_statistics": Case(residual_statistics),
    "normed_heads": Case(normed_heads, ("S 2048 K",)),
    "qkv_heads": Case(qkv_heads, ("S 4096 K",)),
    "few_rows": Case(few_rows, ("1 N K",)),
}  # fmt: skip


def operations(products: Sequence[str], sizes: dict[str, int]) -> int:
    """Multiplications and additions of products: each two for every combination of indices."""
    extents = ([sizes.get(dim) or int(dim) for dim in one.split()] for one in products)
    return 2 * sum(map(math.prod, extents))


def example(name: str) -> tuple[Any, tuple[str, ...], dict[str, int], dict[str, int]]:
    """What an example fuses: the function, its signature, the small sizes and the large ones."""
    sys.path[:0] = [str(ROOT / "examples")]
    import gallery  # noqa: PLC0415

    found: list[Any] = []

    def noted(function: Any, signature: Any, operands: Any, **options: Any) -> Any:
        found.append((function, tuple(signature), options["small"], options["large"]))
        raise StopIteration  # what an example does with its kernel has no part in this

    with mock.patch.object(gallery, "run", noted), contextlib.suppress(StopIteration):
        importlib.import_module(name).main()
    return found[0]  # type: ignore[no-any-return]


def operands(case: Case, signature: Sequence[str], sizes: dict[str, int], where: str) -> list[Any]:
    """Tensors of a signature."""
    torch, found = _torch(), []
    torch.manual_seed(0)
    for place, text in enumerate(signature):
        kind, *dims = re.findall(r"\w+", text)
        shape = [int(dim) if dim.isdigit() else sizes[dim] for dim in dims]
        if place in case.made:
            one = case.made[place](sizes, shape)
            found.append(one.to(where) if hasattr(one, "to") else one)
            continue
        dtype = getattr(torch, TYPES[kind])
        if dtype == torch.int8:
            found.append(torch.randint(-127, 128, shape, device=where, dtype=dtype))
            continue
        scale = shape[-1] ** -0.5 if place in case.scaled else 1.0
        found.append((torch.randn(*shape, device=where, dtype=torch.float32) * scale).to(dtype))
    return found


def _results(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def difference(found: Any, wanted: Any) -> float:
    """The largest difference of numbers, or the share of indices that are others."""
    worst = 0.0
    for one, other in zip(_results(found), _results(wanted), strict=True):
        if not other.is_floating_point():
            worst = max(worst, float((one.long() != other.long()).double().mean()))
            continue
        near, far = one.double(), other.double()
        worst = max(worst, float(((near - far).abs() / (1 + far.abs())).nan_to_num(9.0).max()))
    return worst


def exact(case: Case, given: Sequence[Any]) -> Any:
    """What is replaced, in float64; in float32 where that does not fit."""
    torch = _torch()
    for kind in (torch.float64, torch.float32):
        try:
            wide = [
                v.to(kind) if hasattr(v, "is_floating_point") and v.is_floating_point() else v
                for v in given
            ]
            return tuple(one.cpu() for one in _results(case.replaced(*wide)))
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
    return None


# --- measuring ------------------------------------------------------------------------------------
def ceilings() -> dict[str, float]:
    """TFLOP/s of bfloat16 products by cuBLAS, and GB/s of a copy."""
    from polygen.runtime.measure import interleaved  # noqa: PLC0415

    torch, n = _torch(), 8192
    a, b = (torch.randn(n, n, device="cuda").bfloat16() for _ in range(2))
    source = torch.empty(1 << 29, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    found = interleaved({"products": lambda: a @ b, "copy": lambda: target.copy_(source)}, 15)
    products, copy = (statistics.median(found[name]) for name in ("products", "copy"))
    return {
        "tflops": round(2 * n**3 / products / 1e6, 1),
        "gbytes": round(2 * source.nbytes / copy / 1e3, 1),
    }


def measured(name: str, rounds: int, roofs: dict[str, float], inductor: bool) -> dict[str, Any]:
    """One row of the record."""
    from polygen.runtime.measure import interleaved  # noqa: PLC0415

    torch, case = _torch(), CASES[name]
    function, signature, _, sizes = example(name)
    given = operands(case, signature, sizes, "cuda")
    kernel = function.compile(*signature, sizes=sizes)
    calls: dict[str, Callable[[], Any]] = {
        "polygen": lambda: kernel(*given),
        "eager": lambda: case.replaced(*given),
    }
    row: dict[str, Any] = {"sizes": sizes, "schedule": kernel.schedule.name, "apart": {}}
    if inductor:
        torch._dynamo.reset()
        compiled = torch.compile(case.replaced)
        try:
            compiled(*given)
            calls["inductor"] = lambda: compiled(*given)
        except Exception as error:
            row["inductor"] = f"{type(error).__name__}: {error}"[:200]
    wanted = exact(case, given)
    found = calls["polygen"]()
    moved = sum(v.nbytes for v in (*given, *_results(found)) if hasattr(v, "nbytes"))
    if wanted is not None:
        for who, call in calls.items():
            made = tuple(one.cpu() for one in _results(call()))
            row["apart"][who] = difference(made, wanted)
    del found, wanted
    torch.cuda.empty_cache()
    times = interleaved(calls, rounds)
    row["us"] = {who: round(statistics.median(each), 2) for who, each in times.items()}
    row["gain"] = {who: round(us / row["us"]["polygen"], 3) for who, us in row["us"].items()}
    done = operations(case.products, sizes)
    row["roofline"] = point(done, moved, row["us"]["polygen"], roofs)
    return row


def point(done: int, moved: int, microseconds: float, roofs: dict[str, float]) -> dict[str, float]:
    """Where a kernel lies under the roofs.

    Args:
        done: operations.
        moved: bytes of operands and results.
        microseconds: that it takes.
        roofs: from `ceilings`.
    """
    intensity, rate = done / moved, done / microseconds / 1e6
    roof = min(roofs["tflops"], intensity * roofs["gbytes"] * 1e-3)
    return {
        "operations_per_byte": round(intensity, 1),
        "tflops": round(rate, 1),
        "roof_tflops": round(roof, 1),
        "of_roof": round(rate / roof, 3),
    }


def dry(name: str) -> dict[str, Any]:
    """What is replaced beside the example's meaning, at small sizes on the CPU, untimed."""
    case, (function, signature, sizes, _) = CASES[name], example(name)
    given = operands(case, signature, sizes, "cpu")
    torch = _torch()
    wide = [
        v.double() if hasattr(v, "is_floating_point") and v.is_floating_point() else v
        for v in given
    ]
    numbers = [v.numpy() if hasattr(v, "numpy") else v for v in wide]
    wanted = tuple(map(torch.as_tensor, _results(function.reference(*numbers))))
    return {"apart": difference(_results(case.replaced(*wide)), wanted)}


def main() -> None:
    """Measure, print, and write the record after every row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="parts of examples' names; default: all")
    parser.add_argument("--out", type=Path, help="the record")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no row after that")
    parser.add_argument("--no-inductor", action="store_true")
    parser.add_argument("--dry", action="store_true")
    words = parser.parse_args()
    wanted = [n for n in CASES if not words.names or any(part in n for part in words.names)]
    if words.dry:
        for name in wanted:
            print(f"{name}: {dry(name)}", flush=True)
        return
    began, record, roofs = time.monotonic(), _record(words.out), ceilings()
    card = _torch().cuda.get_device_name()
    alone = {} if card == record["gpu"] else {"gpu": card, "roofs": roofs}
    if not alone:
        record["roofs"] = roofs
    for name in wanted:
        if time.monotonic() - began > words.seconds:
            print(f"no time for: {name}")
            continue
        try:
            row = measured(name, words.rounds, roofs, not words.no_inductor) | alone
        except Exception as error:
            row = {"failed": f"{type(error).__name__}: {error}"[:500]}
        record["rows"][name] = row
        print(f"{name}: {row.get('us') or row} {row.get('roofline', '')}", flush=True)
        gc.collect()
        _torch().cuda.empty_cache()
        if words.out:
            made = words.out.with_suffix(".new")
            made.write_text(json.dumps(record, indent=1) + "\n")
            made.replace(words.out)


def _record(out: Path | None) -> dict[str, Any]:
    if out and out.exists():
        found: dict[str, Any] = json.loads(out.read_text())
        return found
    from polygen.bench.card import smi  # noqa: PLC0415

    torch = _torch()
    return {
        "format": 1,
        "kind": "gallery",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "gpu": torch.cuda.get_device_name(),
        **smi("driver_version"),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda},
        "protocol": (__doc__ or "").rpartition("\n\n")[2].strip(),
        "rows": {},
    }


if __name__ == "__main__":
    main()
