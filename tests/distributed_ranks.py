"""What the ranks of a process group do in tests, and how they are started.

    python tests/distributed_ranks.py RANK RANKS FOLDER CASE...

Each process runs the cases, and leaves what it found in each in FOLDER, as JSON.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 600  # seconds: guards against hangs alone
DYING = "this rank ends here"
FOUR, WIDTH, MICROBATCHES = 4, 8, 6

# Two microbatches forward, then both back: nothing overlaps, and two activations are kept.
IN_PAIRS = """[microbatches] -> {
    forward[s, m] -> [floor(s/2), 12*floor(m/2) + 2*(floor(s/2) + m mod 2) + s mod 2]
        : 0 <= s < 4 and 0 <= m < microbatches;
    backward[s, m] -> [floor(s/2), 12*floor(m/2) + 9 + 2*((m mod 2) - floor(s/2)) - s mod 2]
        : 0 <= s < 4 and 0 <= m < microbatches }"""


def start(ranks: int, folder: Path, *cases: str) -> dict[str, list[Any]]:
    """Run cases in as many processes as there are ranks.

    Args:
        ranks: how many.
        folder: for what they leave.
        *cases: functions of this module, in order; in the last one ranks may die.

    Returns:
        By case, what each rank found; None of a rank that died in it.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    logs = [folder / f"rank_{rank}.log" for rank in range(ranks)]
    with contextlib.ExitStack() as files:
        running = [
            subprocess.Popen(
                [sys.executable, str(Path(__file__).resolve()), str(rank), str(ranks), str(folder),
                 *cases],
                env=environment,
                stdout=files.enter_context(log.open("w")),
                stderr=subprocess.STDOUT,
            )
            for rank, log in enumerate(logs)
        ]  # fmt: skip
        for process in running:
            process.wait(timeout=PATIENCE)
    results: dict[str, list[Any]] = {}
    for case in cases:
        results[case] = []
        for rank, log in enumerate(logs):
            path = folder / f"{case}_{rank}.json"
            text = log.read_text()
            assert path.exists() or (DYING in text and case == cases[-1]), text
            results[case].append(json.loads(path.read_text()) if path.exists() else None)
    return results


# --- cases ----------------------------------------------------------------------------------------
def model() -> list[Any]:
    """Four stages of two layers, the same on all ranks."""
    import torch

    torch.manual_seed(0)
    return [
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(),
                            torch.nn.Linear(WIDTH, WIDTH))
        for _ in range(FOUR)
    ]  # fmt: skip


def loss(made: Any, wanted: Any) -> Any:
    return ((made - wanted) ** 2).sum()


def batch() -> tuple[Any, Any]:
    import torch

    made = torch.Generator().manual_seed(1)
    shape = (3 * MICROBATCHES, WIDTH)
    return torch.randn(shape, generator=made), torch.randn(shape, generator=made)


def alone(steps: int) -> tuple[list[Any], list[Any]]:
    """Losses, and the gradients by stage, of one process that takes the microbatches in order."""
    stages = model()
    x, y = batch()
    losses = []
    for _ in range(steps):
        for part, wanted in zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES), strict=True):
            made = part
            for stage in stages:
                made = stage(made)
            one = loss(made, wanted)
            one.backward()
            losses.append(one.detach())
    return losses, [[p.grad for p in stage.parameters()] for stage in stages]


def pipelines(rank: int, ranks: int) -> dict[str, Any]:
    """Every known schedule and a written one: gradients of one process, bit by bit."""
    import torch

    import polygen.adapters.torch as pgt
    from polygen.errors import ArgumentError, IllegalPipeline, PipelineError
    from polygen.parallel import Timetable

    found: dict[str, Any] = {}
    losses, wanted = alone(steps=2)
    x, y = batch()
    mine = Timetable("in pairs", FOUR, ranks, IN_PAIRS, "microbatches mod 2 = 0")
    for name in ("gpipe", "1f1b", "interleaved", "zero-bubble", mine):
        stages = model()
        cyclic = name == "interleaved"
        home = [n % ranks if cyclic else n * ranks // FOUR for n in range(FOUR)]
        local = [s if home[n] == rank else None for n, s in enumerate(stages)]
        made = pgt.pipeline(local, MICROBATCHES, name, loss=loss)
        told = [made.step(x, y), made.step(x, y)]
        same = [
            torch.equal(p.grad, g)
            for n, stage in enumerate(stages)
            if home[n] == rank
            for p, g in zip(stage.parameters(), wanted[n], strict=True)
        ]
        others = [p.grad for n, s in enumerate(stages) if home[n] != rank for p in s.parameters()]
        right = told == [None, None]
        if rank == home[-1]:
            right = torch.equal(torch.cat(told), torch.stack(losses))
        key = made.proved.timetable.name
        found[key] = [len(same), all(same), right, others == [None] * len(others)]

    def refused(kind: type[Exception], run: Callable[[], object]) -> str:
        try:
            run()
        except kind as error:
            return str(error)
        return "accepted"

    number = MICROBATCHES + rank
    found["disagree"] = refused(
        PipelineError, lambda: pgt.pipeline(model(), number, "gpipe", loss=loss)
    )
    found["illegal"] = refused(
        IllegalPipeline,
        lambda: pgt.pipeline(model(), 4, IN_PAIRS.replace("9 + 2", "3 + 2"), loss=loss),
    )
    found["absent"] = refused(
        PipelineError, lambda: pgt.pipeline([None] * FOUR, 4, "gpipe", loss=loss)
    )
    found["rows"] = refused(ArgumentError, lambda: made.step(x[:-1], y[:-1]))
    return found


def dies(rank: int, ranks: int) -> dict[str, Any]:
    """The last rank ends in the middle of a step; the others say so and keep what they had."""
    import torch

    import polygen.adapters.torch as pgt
    from polygen.errors import EngineError

    class Ends(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            if self.training and not isinstance(x, torch._subclasses.FakeTensor):
                self.seen = getattr(self, "seen", 0) + 1
                if self.seen == 3:
                    print(DYING, flush=True)
                    os._exit(9)
            return x

    stages = model()
    stages[-1] = torch.nn.Sequential(stages[-1], Ends())
    for stage in stages:
        for parameter in stage.parameters():
            parameter.grad = torch.ones_like(parameter)
    made = pgt.pipeline(stages, MICROBATCHES, "1f1b", loss=loss)
    x, y = batch()
    try:
        made.step(x, y)
    except EngineError as error:
        kept = all(bool((p.grad == 1).all()) for s in stages for p in s.parameters())
        return {"error": str(error), "kept": kept}
    return {"error": "none"}


def main(rank: int, ranks: int, folder: Path, cases: list[str]) -> None:
    import torch.distributed as dist

    store = dist.FileStore(str(folder / "store"), ranks)
    patience = datetime.timedelta(seconds=PATIENCE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=patience)
    for case in cases:
        found = globals()[case](rank, ranks)
        (folder / f"{case}_{rank}.json").write_text(json.dumps(found))
    os._exit(0)  # a rank may be gone: no farewell


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
