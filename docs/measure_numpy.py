"""Times the scripts of examples/numpy beside plain CuPy, and calls of an operator of PyTorch.

    python docs/measure_numpy.py --out docs/results/h200_numpy.json
    python docs/measure_numpy.py k_means nmf
    python docs/measure_numpy.py --dry      # no GPU: NumPy in CuPy's place, small and unmeasured
    python docs/measure_numpy.py --caches FOLDER   # what was compiled before is found there

The scripts are unchanged but for their import, `import cupy as np` there and
`import polygen.adapters.numpy as np` here. Both take turns in one process, in random order; times
are wall-clock milliseconds of `main()` until the GPU is done, medians, data drawn anew in each. The
first run of each is given apart: it compiles, with empty caches (where a folder is named it finds
what is there); who runs first takes turns from script to script, as the second finds some of the
first one's kernels. Results of scripts in float32 are also compared with CuPy's in float64, of the
same data. Calls: microseconds of the host while the GPU has other work, outputs allocated
in each.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import io
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parents[1] / "examples" / "numpy"
IMPORT = "import polygen.adapters.numpy as np"
TOLERANCE = 1e-4  # of the largest element: sums are in other orders, and steps add up
AGREES = 1.25  # times CuPy's own error beside float64: what adds up to more than that
SMALL: dict[str, dict[str, int]] = {
    "cosine_search": {"entries": 300, "queries": 20},
    "gaussian_process": {"points": 60, "queries": 20},
    "gram_schmidt": {"rows": 50, "columns": 12},
    "k_means": {"points": 400, "steps": 8},
    "kernel_density": {"points": 200, "side": 8},
    "logistic_regression": {"points": 300, "steps": 21},
    "mlp_training": {"points": 64, "hidden": 16, "steps": 12},
    "nmf": {"rows": 30, "columns": 20, "rank": 3, "steps": 12},
    "pca_power_iteration": {"points": 200, "most": 30},
    "ridge_regression": {"points": 300},
}


def loaded(path: Path, line: str) -> Callable[..., Any]:
    """A script's `main`, with another line in the place of its import."""
    text = path.read_text()
    assert text.count(IMPORT) == 1, path
    return _main_of(path, text.replace(IMPORT, line))


def in_double(path: Path, line: str) -> Callable[..., Any] | None:
    """A script's `main` in float64, of data that is rounded to float32; None: it has none of it."""
    single, double = "np.float32", "np.float64"
    if single not in path.read_text():
        return None
    text = path.read_text().replace(f"dtype={single}", f"dtype={double}")
    text = text.replace(f".astype({single})", f".astype({single}).astype({double})")
    return _main_of(path, text.replace(IMPORT, line))


def _main_of(path: Path, text: str) -> Callable[..., Any]:
    names: dict[str, Any] = {"__name__": path.stem}
    exec(compile(text, str(path), "exec"), names)
    main: Callable[..., Any] = names["main"]
    return main


def _timed(main: Callable[..., Any], options: dict[str, int], wait: Callable[[], Any]) -> Any:
    gc.collect()
    wait()
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        result = main(**options)
    wait()
    return (time.perf_counter() - start) * 1e3, result


def measured(path: Path, place: int, seconds: float, dry: bool) -> dict[str, Any]:
    """One row of the record.

    Args:
        path: the script.
        place: among all; the parity says who runs first.
        seconds: of rounds at most.
        dry: whether NumPy is in CuPy's place.
    """
    options = SMALL[path.stem] if dry else {}
    wait: Callable[[], Any] = _nothing if dry else _synchronize
    calls = {
        "cupy": loaded(path, "import numpy as np" if dry else "import cupy as np"),
        "polygen": loaded(path, IMPORT),
    }
    names = list(calls) if place % 2 == 0 else list(calls)[::-1]
    row: dict[str, Any] = {"first": names[0], "cold_ms": {}, "ms": {}, "rounds": 0}
    results = {}
    for name in names:
        cold, results[name] = _timed(calls[name], options, wait)
        row["cold_ms"][name] = round(cold, 3)
    row["largest_difference"] = difference(results["cupy"], results["polygen"])
    row["agrees"] = row["largest_difference"] <= TOLERANCE
    double = in_double(path, "import numpy as np" if dry else "import cupy as np")
    if double is not None:
        _, exact = _timed(double, options, wait)
        row["error"] = {name: difference(exact, found) for name, found in results.items()}
        row["agrees"] |= row["error"]["polygen"] <= AGREES * row["error"]["cupy"]
        del exact
    results.clear()
    if dry:
        return {"agrees": row["agrees"]}
    for name in names:  # kernels that are chosen later, and pools of memory
        _timed(calls[name], options, wait)
    each: dict[str, list[float]] = {name: [] for name in calls}
    order, began = random.Random(0), time.monotonic()
    while len(each["cupy"]) < 5 or (time.monotonic() - began < seconds and len(each["cupy"]) < 31):
        order.shuffle(names)
        for name in names:
            each[name].append(_timed(calls[name], options, wait)[0])
    row["rounds"] = len(each["cupy"])
    row["ms"] = {name: round(statistics.median(found), 4) for name, found in each.items()}
    row["ratio"] = round(row["ms"]["cupy"] / row["ms"]["polygen"], 4)
    return row


def _nothing() -> None:
    pass


def _synchronize() -> None:
    import cupy  # noqa: PLC0415

    cupy.cuda.Device().synchronize()


def difference(one: Any, other: Any) -> float:
    """The largest difference of two results' elements, as a part of the largest element."""
    import numpy  # noqa: PLC0415

    def host(array: Any) -> Any:
        got = array.get() if hasattr(array, "get") else array
        return numpy.asarray(got, dtype=numpy.float64)

    most = 0.0
    for first, second in zip(one, other, strict=True):
        a, b = host(first), host(second)
        if a.size:
            gap = float(abs(a - b).max() / max(abs(a).max(), 1e-300))
            most = max(most, gap if gap == gap else float("inf"))  # where something is no number
    return most


# --- calls ----------------------------------------------------------------------------------------
def calls(count: int = 200, rounds: int = 15) -> dict[str, Any]:
    """Microseconds of the host for a call of a kernel, and of an operator made of it."""
    import torch  # noqa: PLC0415

    import polygen as pg  # noqa: PLC0415
    import polygen.adapters.torch as pgt  # noqa: PLC0415
    from polygen.adapters.torch import launching  # noqa: PLC0415

    fused = pg.fuse(lambda x, w, b: pg.relu(x @ w.T + b))
    x, w, b = (
        torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
        for shape in ((64, 512), (512, 512), (512,))
    )
    signature = ("bf16[M,K]", "bf16[N,K]", "bf16[N]")
    kernel = fused.compile(*signature, sizes={"M": 64, "N": 512, "K": 512})
    operator = pgt.op(fused, name="measured_calls")
    text = launching.text_of(fused.program(*signature))
    out = kernel(x, w, b)

    def without_gradients() -> Any:
        with torch.no_grad():
            return operator(x, w, b)

    site = launching.Site(text)
    leaf = w.clone().requires_grad_()
    given = torch.ones_like(out)

    def backward() -> Any:
        return torch.autograd.grad(operator(x, leaf, b), leaf, given)

    each: dict[str, Callable[[], Any]] = {
        "kernel": lambda: kernel(x, w, b),
        "kernel, out=": lambda: kernel(x, w, b, out=out),
        "operator": lambda: operator(x, w, b),
        "operator, no_grad": without_gradients,
        "in Inductor's code": lambda: launching.at_once([x, w, b], [], text),
        "in Inductor's code, fixed shapes": lambda: site([x, w, b]),
        "operator and its gradient": backward,
        "torch.ops.polygen.launch": lambda: torch.ops.polygen.launch.default([x, w, b], [], text),
        "torch.nn.functional.linear": lambda: torch.nn.functional.linear(x, w, b),
    }
    found: dict[str, list[float]] = {name: [] for name in each}
    for call in each.values():
        call()
    order, names = random.Random(0), list(each)
    for _ in range(rounds):
        order.shuffle(names)
        for name in names:
            torch.cuda.synchronize()
            torch.cuda._sleep(20_000_000)
            start = time.perf_counter()
            for _ in range(count):
                each[name]()
            found[name].append((time.perf_counter() - start) / count * 1e6)
    torch.cuda.synchronize()
    us = {name: round(statistics.median(times), 2) for name, times in found.items()}
    return {"us": us, "above": round(us["operator"] - us["kernel"], 2)}


def _record(out: Path | None, dry: bool) -> dict[str, Any]:
    """A record's head, of today, with the rows of the one that is there."""
    known: dict[str, Any] = json.loads(out.read_text()) if out and out.exists() else {}
    import numpy  # noqa: PLC0415

    versions, head = {"numpy": numpy.__version__}, {"gpu": "none"}
    if not dry:
        import cupy  # noqa: PLC0415

        from polygen.bench.card import smi  # noqa: PLC0415
        from polygen.runtime.measure import device_name  # noqa: PLC0415

        versions["cupy"], head = cupy.__version__, {"gpu": device_name(), **smi("driver_version")}
    return {
        "format": 1,
        "kind": "numpy programs",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **head,
        "versions": versions,
        "protocol": __doc__.partition("\n\n")[2].partition("\n\n")[2].strip(),
        "rows": known.get("rows", {}),
    }


def main() -> None:
    """Measure, print, and write the record after every script."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="parts of scripts' names, or calls; default: all")
    parser.add_argument("--out", type=Path, help="the record")
    parser.add_argument("--seconds", type=float, default=130.0, help="begin nothing after that")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--caches", type=Path, help="a folder that keeps what is compiled")
    words = parser.parse_args()
    began = time.monotonic()
    wanted = [
        path
        for path in sorted(SCRIPTS.glob("*.py"))
        if not words.names or any(part in path.stem for part in words.names)
    ]
    with tempfile.TemporaryDirectory() as empty:
        folder = str(words.caches or empty)
        os.environ |= {"CUPY_CACHE_DIR": folder, "POLYGEN_CACHE_DIR": folder}
        record = _record(words.out, words.dry) | {"caches": "kept" if words.caches else "empty"}
        for place, path in enumerate(wanted):
            left = words.seconds - (time.monotonic() - began)
            if left < 0:
                print(f"no time for: {path.stem}")
                continue
            share = 0.6 * left / (len(wanted) - place)
            row = _safely(lambda p=path, n=place, s=share: measured(p, n, s, words.dry))  # type: ignore[misc]
            record["rows"][path.stem] = row
            print(f"{path.stem}: {row}", flush=True)
            _write(words.out, record)
        if not words.dry and (not words.names or "calls" in words.names):
            record["calls"] = _safely(calls)  # PyTorch is no part of the scripts' process before
            print(f"calls: {record['calls']}", flush=True)
        _write(words.out, record)
    ratios = [row["ratio"] for row in record["rows"].values() if "ratio" in row]
    if ratios:
        mean = statistics.geometric_mean(ratios)
        print(f"{len(ratios)} scripts: geometric mean {mean:.3f}, least {min(ratios):.3f}")


def _safely(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return measure()
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"[:500]}


def _write(out: Path | None, record: dict[str, Any]) -> None:
    if out:
        made = out.with_suffix(".new")
        made.write_text(json.dumps(record, indent=1) + "\n")
        made.replace(out)


if __name__ == "__main__":
    main()
