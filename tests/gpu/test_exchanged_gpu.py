"""Operands exchanged, on the GPU: every schedule that ships so, many rows, many launches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import polygen as pg
from polygen.decide import candidates
from polygen.hardware.device import device
from polygen.runtime.environment import current_arch
from polygen.schedule.load import shipped
from polygen.schedule.model import Schedule
from polygen.schedule.problem import Fitted

pytestmark = pytest.mark.gpu
# Those whose consumers compute an operand are for other programs.
SCHEDULES = [one for one in shipped("sm_90a") if one.exchange and not one.from_registers]
ROWS = (1, 2, 7, 8, 9, 16, 17, 31, 33, 64, 65, 100, 128, 129)


@pytest.fixture(scope="module", autouse=True)
def hopper() -> None:
    if not device(current_arch() or "sm_80").has("wgmma"):
        pytest.skip("needs warpgroup instructions")


@pg.fuse
def layer(x: Any, w: Any, b: Any, r: Any) -> Any:
    return pg.relu(x @ w.T + b + r)


def operands(m: int, n: int, k: int) -> list[Any]:
    import torch

    torch.manual_seed(m + n + k)
    shapes = ((m, k), (n, k), (n,), (m, n))
    return [torch.randint(-2, 3, s, device="cuda").bfloat16() for s in shapes]


def expected(x: Any, w: Any, b: Any, r: Any) -> Any:
    import torch

    return torch.relu((x.double() @ w.double().T).float() + b.float() + r.float()).bfloat16()


def compiled(schedule: Schedule) -> pg.Kernel:
    """With as many stages as the matrix that comes in leaves room for."""
    signature = ("bf16[M,K]", "bf16[N,K]", "bf16[N]", "bf16[M,N]")
    _, fit = candidates(layer.program(*signature), device("sm_90a"), {})
    fitted = fit(schedule)
    assert isinstance(fitted, Fitted), fitted
    return layer.compile(*signature, arch="sm_90a", schedule=fitted.schedule)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda one: one.name)
def test_every_number_of_rows_is_exact_and_nothing_beside_it_is_touched(schedule: Schedule) -> None:
    import torch

    kernel = compiled(schedule)
    for m in ROWS:
        for n, k in ((1000, 264), (4096, 1032)):
            given = operands(m, n, k)
            around = torch.full((m + 2, n + 16), 77.0, device="cuda").bfloat16()
            out = around[1 : m + 1, :n]
            kernel(*given, out=out)
            torch.cuda.synchronize()
            assert torch.equal(out, expected(*given)), (m, n, k)
            out.fill_(77.0)
            assert (around == 77.0).all(), (m, n, k)


@pytest.mark.parametrize(
    "schedule", [one for one in SCHEDULES if one.cluster.k > 1], ids=lambda one: one.name
)
def test_ten_thousand_launches_of_shared_sums(schedule: Schedule) -> None:
    import torch

    kernel, given = compiled(schedule), operands(16, 4096, 1032)
    wanted, out = expected(*given), torch.empty(16, 4096, device="cuda").bfloat16()
    for _ in range(20):
        for _ in range(500):
            kernel(*given, out=out)
        torch.cuda.synchronize()
        assert torch.equal(out, wanted)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize(
    "name",
    ["cooperative_64x64x64_s11_k2", "cooperative_64x64x64_s12", "cooperative_64x128x64_s6_k4"],
)
def test_both_ways_give_the_same_bits(name: str, dtype: str) -> None:
    """What `exchangeable` in the data of instructions says, on normal data."""
    import torch

    plain = next(one for one in shipped("sm_90a") if one.name == name)
    both = []
    for exchange in (False, True):
        schedule = replace(
            plain, exchange=exchange, epilogue=replace(plain.epilogue, through="lines")
        )
        both.append(
            pg.fuse(lambda x, w: x @ w.T).compile(
                f"{dtype}[M,K]", f"{dtype}[N,K]", arch="sm_90a", schedule=schedule,
                sizes={"M": 100, "N": 1000, "K": 4104}, out_dtype="f32",
            )
        )  # fmt: skip
    kind = torch.bfloat16 if dtype == "bf16" else torch.float16
    for seed in range(10):
        torch.manual_seed(seed)
        x, w = (torch.randn(n, 4104, device="cuda").to(kind) for n in (100, 1000))
        assert torch.equal(*(kernel(x, w) for kernel in both))
