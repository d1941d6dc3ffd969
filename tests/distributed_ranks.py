"""What the ranks of a process group do in tests, and how they are started.

    python tests/distributed_ranks.py RANK RANKS FOLDER CASE...

Each process runs the cases, and leaves what it found in each in FOLDER, as JSON.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import runpy
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


def graphs(rank: int, ranks: int) -> dict[str, Any]:
    """Captured steps, with a capture that is played: it runs what it captures, as do replays."""
    import warnings

    import torch

    import polygen.adapters.torch as pgt
    from polygen.adapters.torch import capturing, step_graphs

    counts = {"captures": 0, "replays": 0, "forgotten": 0}
    local: list[Any] = []

    def record(run: Callable[[], Any], beside: Any) -> Any:
        counts["captures"] += 1
        captured = [(p, p.grad) for s in local if s is not None for p in s.parameters()]
        results = run()

        def replay() -> None:
            counts["replays"] += 1
            now = [p.grad for p, _ in captured]
            for p, gradient in captured:  # a graph writes where it wrote when it was captured
                p.grad = gradient
            made = run()
            for (p, _), gradient in zip(captured, now, strict=True):
                p.grad = gradient
            if results is not None:
                results.copy_(made)

        def forget() -> None:
            counts["forgotten"] += 1

        return replay, results, forget

    found: dict[str, Any] = {}
    stages = model()
    local = [s if n * ranks // FOUR == rank else None for n, s in enumerate(stages)]
    made = pgt.pipeline(local, MICROBATCHES, "1f1b", loss=loss, graph=True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            made.step(*batch())
    found["said"] = [str(one.message) for one in said]

    capturing.record, capturing.prepared = record, lambda run: run()
    step_graphs.against = lambda *_: ""
    losses, wanted = alone(steps=4)
    x, y = batch()
    for name in ("1f1b", "zero-bubble"):
        stages = model()
        unused = torch.nn.Parameter(torch.ones(2))
        for stage in stages:
            stage.unused = unused
        local = [s if n * ranks // FOUR == rank else None for n, s in enumerate(stages)]
        made = pgt.pipeline(local, MICROBATCHES, name, loss=loss, graph=True)
        told = [made.step(x, y) for _ in range(4)]
        own = [p for s in local if s is not None for p in s.parameters() if p is not unused]
        right = [g for n, s in enumerate(local) if s is not None for g in wanted[n]]
        same = all(torch.equal(p.grad, g) for p, g in zip(own, right, strict=True))
        of_losses = told == [None] * 4 if rank == 0 else torch.equal(
            torch.cat(told), torch.stack(losses)
        )  # fmt: skip
        before = [p.grad for p in own]
        copies = [g.clone() for g in before]
        for p in own:
            p.grad = None
        made.step(2 * x, y)
        apart = all(torch.equal(*both) for both in zip(before, copies, strict=True))
        again = pgt.pipeline([*map(_fresh, local)], MICROBATCHES, name, loss=loss)
        again.step(2 * x, y)
        others = [p for s in again._stages.values() for p in s.parameters()]
        others = [p for p in others if p.grad is not None]
        anew = all(torch.equal(p.grad, q.grad) for p, q in zip(own, others, strict=True))
        made.forget()
        found[name] = [same, of_losses, apart, anew, unused.grad is None]
    found["counts"] = counts
    return found


def _fresh(stage: Any) -> Any:
    import copy

    made = copy.deepcopy(stage)
    if made is not None:
        made.zero_grad()
    return made


def tensors(rank: int, ranks: int) -> dict[str, Any]:
    """Layers of polygen's operators cut in two, beside one process, on whole numbers: exact."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        parallelize_module,
    )

    import polygen as pg
    import polygen.adapters.torch as pgt
    from polygen.errors import ArgumentError, GradientError, UnsupportedProgram

    up = pgt.op(lambda x, w, b: pg.relu(x @ w.T + b), name="up_shared")
    down = pgt.op(lambda x, w, b, r: pg.relu(x @ w.T + b + r), name="down_shared")
    plain = pgt.op(lambda x, w: 2.0 * (x @ w.T), name="plain_shared")
    added = pgt.op(lambda x, w, b, r: x @ w.T + b + r, name="added_shared")
    turned = pgt.op(lambda x, w: pg.softmax(x @ w.T, axis=0), name="turned_shared")
    mesh = init_device_mesh("cpu", (ranks,))
    made = torch.Generator().manual_seed(2)

    def whole(*shape: int) -> Any:
        return torch.randint(-3, 4, shape, generator=made).to(torch.float64)

    class Up(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            return up(x, self.weight, self.bias)

    class Down(torch.nn.Linear):
        def forward(self, x: Any, residual: Any = None) -> Any:
            return down(x, self.weight, self.bias, residual)

    class Mlp(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = Up(8, 16, dtype=torch.float64)
            self.down = Down(16, 8, dtype=torch.float64)
            for parameter in self.parameters():
                parameter.data = whole(*parameter.shape)

        def forward(self, x: Any) -> Any:
            return self.down(self.up(x), residual=x)

    found: dict[str, Any] = {}
    mlp, x = Mlp(), whole(12, 8)
    wanted = mlp(x)
    wanted.square().sum().backward()
    gradients = {name: p.grad for name, p in mlp.named_parameters()}
    mlp.zero_grad()
    entry = PrepareModuleInput(
        input_layouts=Replicate(), desired_input_layouts=Replicate(), use_local_output=False
    )
    parallelize_module(mlp, mesh, entry)
    styles = {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel()}
    parallelize_module(mlp, mesh, styles)
    result = mlp(x)
    result.square().sum().backward()
    found["forward"] = torch.equal(result, wanted)
    found["backward"] = {
        name: [str(p.grad.placements[0]), torch.equal(p.grad.full_tensor(), gradients[name])]
        for name, p in mlp.named_parameters()
    }

    # --- what is linear in the sums stays a part, whatever else waits for them
    def over(tensor: Any, *placements: Any) -> Any:
        return distribute_tensor(tensor, mesh, placements)

    w, b, r = whole(6, 8), whole(6), whole(12, 6)
    part = plain(over(x, Shard(1)), over(w, Shard(1)))
    found["linear"] = [str(part.placements[0]), torch.equal(part.full_tensor(), 2 * x @ w.T)]
    summed = down(over(x, Shard(1)), over(w, Shard(1)), over(b, Replicate()), over(r, Replicate()))
    right = torch.relu(x @ w.T + b + r)
    found["waits"] = [str(summed.placements[0]), torch.equal(summed.to_local(), right)]
    operands = over(x, Shard(1)), over(w, Shard(1)), over(b, Replicate()), over(r, Replicate())
    once = added(*operands)
    found["once"] = [str(once.placements[0]), torch.equal(once.to_local(), x @ w.T + b + r)]
    odd = added(over(x[:7], Shard(1)), *operands[1:3], over(r[:7], Replicate()))
    found["odd rows"] = torch.equal(odd.to_local(), (x @ w.T + b + r)[:7])
    rows = down(over(x, Shard(0)), over(w, Replicate()), over(b, Replicate()), over(r, Shard(0)))
    found["rows"] = [str(rows.placements[0]), torch.equal(rows.full_tensor(), right)]
    half = DTensor.from_local(x / ranks, mesh, [Partial()])
    found["part"] = torch.equal(plain(half, over(w, Replicate())).full_tensor(), 2 * x @ w.T)

    other = init_device_mesh("cpu", (1, ranks))
    in_two = [
        distribute_tensor(tensor, other, [Replicate(), Shard(1) if cut else Replicate()])
        for tensor, cut in ((x, True), (w, True), (b, False), (r, False))
    ]
    found["two dims"] = torch.equal(down(*in_two).to_local(), right)

    # --- chunks
    mine = x.chunk(ranks)[rank], r.chunk(ranks)[rank]
    found["gathered"] = [
        torch.equal(pgt.gathered(down, mine[0], w, b, r, chunks=chunks), right)
        for chunks in (1, 3, None)
    ]
    part_x, part_w = (t.chunk(ranks, 1)[rank].contiguous() for t in (x, w))
    own = right.chunk(ranks)[rank]
    found["scattered"] = [
        torch.equal(pgt.scattered(down, part_x, part_w, b, mine[1], shards=("r",), chunks=3), own),
        torch.equal(pgt.scattered(down, part_x, part_w, b, r, chunks=2), own),
        torch.equal(pgt.scattered(down, part_x, part_w, b, r), own),
        torch.equal(pgt.scattered(down, part_x, part_w, b, mine[1], shards=("r",)), own),
        torch.equal(
            pgt.scattered(added, part_x, part_w, b, mine[1], shards=("r",)),
            (x @ w.T + b + r).chunk(ranks)[rank],
        ),
        torch.equal(pgt.scattered(plain, part_x, part_w), (2 * x @ w.T).chunk(ranks)[rank]),
    ]

    # --- refused
    def refused(kind: type[Exception], run: Callable[[], object]) -> str:
        try:
            run()
        except kind as error:
            return str(error)
        return "accepted"

    seven = whole(12, 7)
    found["refused"] = [
        refused(ArgumentError, lambda: plain(over(x, Shard(1)), w)),
        refused(ArgumentError, lambda: plain(over(x, Shard(1)), distribute_tensor(
            w, other, [Replicate(), Shard(1)]))),
        refused(ArgumentError, lambda: plain(over(seven, Shard(1)), over(whole(6, 7), Shard(1)))),
        refused(ArgumentError, lambda: pgt.gathered(plain, mine[0], w, chunks=4)),
        refused(UnsupportedProgram, lambda: pgt.gathered(turned, mine[0], w)),
        refused(ArgumentError, lambda: pgt.scattered(plain, part_x, part_w, chunks=5)),
        refused(ArgumentError, lambda: pgt.scattered(plain, part_x, part_w, shards=("q",))),
        refused(ArgumentError, lambda: pgt.scattered(plain, part_x, part_w, shards=("x",))),
        refused(GradientError, lambda: pgt.gathered(plain, mine[0].clone().requires_grad_(), w)),
    ]  # fmt: skip
    return found


def several(rank: int, ranks: int) -> dict[str, Any]:
    """More than two ranks: sums by rows, gathers, and a pipeline with a stage to a rank."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    import polygen as pg
    import polygen.adapters.torch as pgt

    added = pgt.op(lambda x, w, b, r: x @ w.T + b + r, name="several_added")
    down = pgt.op(lambda x, w, b, r: pg.relu(x @ w.T + b + r), name="several_down")
    mesh = init_device_mesh("cpu", (ranks,))
    made = torch.Generator().manual_seed(2)

    def whole(*shape: int) -> Any:
        return torch.randint(-3, 4, shape, generator=made).to(torch.float64)

    found: dict[str, Any] = {"sums": [], "scattered": [], "gathered": []}
    for times in range(3):  # rounds come after one another
        x, w, b, r = whole(24, 24), whole(6, 24), whole(6), whole(24, 6)
        right = x @ w.T + b + r
        placements = (Shard(1), Shard(1), Replicate(), Replicate())
        operands = [
            distribute_tensor(t, mesh, [at]) for t, at in zip((x, w, b, r), placements, strict=True)
        ]
        for operator, wanted in ((added, right), (down, torch.relu(right))):
            found["sums"].append(torch.equal(operator(*operands).to_local(), wanted))
            own = wanted.chunk(ranks)[rank]
            part_x, part_w = (t.chunk(ranks, 1)[rank].contiguous() for t in (x, w))
            mine = r.chunk(ranks)[rank]
            for chunks in (None, times % 2 + 1):
                one = pgt.scattered(
                    operator, part_x, part_w, b, mine, shards=("r",), chunks=chunks
                )  # fmt: skip
                found["scattered"].append(torch.equal(one, own))
                two = pgt.gathered(operator, x.chunk(ranks)[rank], w, b, r, chunks=chunks)
                found["gathered"].append(torch.equal(two, wanted))
    if ranks == FOUR:
        _, wanted = alone(steps=1)
        local = [stage if n == rank else None for n, stage in enumerate(model())]
        pgt.pipeline(local, MICROBATCHES, "1f1b", loss=loss).step(*batch())
        own = local[rank].parameters()
        found["pipeline"] = all(torch.equal(p.grad, g) for p, g in
                                zip(own, wanted[rank], strict=True))  # fmt: skip
    return found


def examples(rank: int, ranks: int) -> dict[str, Any]:
    """The example's differences from one process."""
    made = runpy.run_path(str(ROOT / "examples" / "several_gpus.py"))
    return {"differences": made["work"]()}


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


def leaves(rank: int, ranks: int) -> dict[str, Any]:
    """The last rank ends between two calls of a row-parallel layer, in all ways of running it."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    import polygen.adapters.torch as pgt
    from polygen.errors import EngineError

    added = pgt.op(lambda x, w, r: x @ w.T + r, name="added_until_the_end")
    mesh = init_device_mesh("cpu", (ranks,))

    def call(rows: int) -> Any:
        ones = torch.ones(rows, 4, dtype=torch.float64)  # this rank's columns
        x, w = (DTensor.from_local(t, mesh, [Shard(1)], run_check=False) for t in (ones, ones[1:]))
        r = DTensor.from_local(ones[:, :1].expand(rows, rows - 1).contiguous(), mesh, [Replicate()],
                               run_check=False)  # fmt: skip
        return added(x, w, r)

    def chunks() -> Any:
        ones = torch.ones(4, 8, dtype=torch.float64)
        return pgt.gathered(added, ones, ones, torch.ones(8, 4, dtype=torch.float64), chunks=2)

    def said(run: Callable[[], Any]) -> str:
        try:
            run()
        except EngineError as error:
            return str(error)
        return "none"

    calls = [lambda: call(6), lambda: call(7), chunks]  # by rows, added once, in chunks
    for run in calls:
        run()
    if rank == ranks - 1:
        print(DYING, flush=True)
        os._exit(9)
    return {"said": [said(run) for run in calls]}


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
