"""Places in Inductor's code where kernels are launched again and again; the driver is played."""

from __future__ import annotations

import functools
import warnings

import pytest
from entered_functions import entered

torch = pytest.importorskip("torch")
pgt = pytest.importorskip("polygen.adapters.torch")
launching = pytest.importorskip("polygen.adapters.torch.launching")
codes = pytest.importorskip("torch._inductor.utils").run_and_get_code
pytest.importorskip("cupy")

from stand_in_gpu import stand_in  # noqa: E402

import polygen as pg  # noqa: E402

BF16 = torch.bfloat16


def whole(*shape):
    return torch.randint(-2, 3, shape).to(BF16)


@pytest.fixture
def gpu(monkeypatch):
    with stand_in(monkeypatch) as found:
        yield found


def relu_text():
    program = pg.fuse(lambda x, w: pg.relu(x @ w), name="at_a_site").program(
        *(f"bf16[{dims}]" for dims in ("M,K", "K,N"))
    )
    return launching.text_of(program)


def test_code_makes_no_views_and_looks_at_no_results(gpu):
    packed = torch.nn.Parameter(whole(40, 16))

    def model(x):
        return torch.relu(x @ packed[3:27].t()) * 2 + torch.relu(x @ packed[:24].t())

    options = {"take": "legal", "fx_graph_cache": False}
    torch._dynamo.reset()
    call = torch.compile(
        model, backend=functools.partial(pgt.polygen, options=options), dynamic=False
    )
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = whole(6, 16)
        found, (code,) = codes(call, x)
        assert torch.equal(found, model(x))
        for _ in range(4):
            x = whole(6, 16)
            assert torch.equal(call(x), model(x))
        packed.data = whole(40, 16)  # somewhere else
        for _ in range(3):
            x = whole(6, 16)
            assert torch.equal(call(x), model(x))
    assert len(gpu.launches) >= 8
    calls = [line for line in code.splitlines() if "= polygen_site_" in line and "([" in line]
    inside = [line for line in calls if not line.startswith("polygen")]
    assert inside and not any("reinterpret_tensor" in line for line in inside)
    assert "'torch.ops.polygen.launch.default')" not in code, "results are looked at once"


def test_a_site_reads_addresses_where_the_views_begin(gpu):
    site = launching.Site(relu_text(), (None, ((16, 8), (1, 16), 32)), (((6, 8), (8, 1)),))
    for _ in range(6):
        x, whole_w = whole(6, 16), whole(12, 16)
        (found,) = site([x, whole_w])
        assert torch.equal(found, torch.relu(x @ whole_w[2:10].t()))
    assert site._again is not None and len(gpu.launches) == 6


def test_results_that_lie_otherwise_are_no_results(gpu):
    site = launching.Site(relu_text(), (), (((6, 8), (1, 6)),))
    with pytest.raises(AssertionError, match="a result lies as"):
        site([whole(6, 16), whole(16, 8)])


def test_another_thread_may_give_up_what_is_called_meanwhile(monkeypatch):
    class Given(launching.Site):
        """What is repeated is gone as soon as it has been read."""

        left: tuple = ()
        _again = property(lambda self: self.left.pop() if self.left else None, lambda *_: None)

    monkeypatch.setattr(launching, "_on_gpu", lambda arrays, scalars, text: ["read"])
    runner = type("Runner", (), {"repeated": lambda self, arrays: None})()
    monkeypatch.setattr(launching, "_runner", lambda text: (runner, ()))
    site = Given("a program")
    site.left = [lambda arrays: ["again"]]
    assert [site([None]) for _ in range(2)] == [["again"], ["read"]]


def test_warm_calls_enter_few_functions(gpu):
    x, w = whole(6, 16), whole(16, 8)
    site = launching.Site(relu_text())
    for _ in range(4):
        site([x, w])
    for kernel in gpu.kernels.values():
        for ready in kernel._launcher._prepared.values():
            ready._launches = (lambda *_: None,)
    # A result that lies where none lay before is looked at, and has parameters of its own.
    fewest = min((entered(lambda: site([x, w])) for _ in range(1000)), key=len)
    assert len(fewest) <= 9, " ".join(fewest)


def test_gradients_of_an_operator_go_past_the_dispatcher(gpu, monkeypatch):
    up = pgt.op(lambda x, w: pg.gelu(x @ w), name="past_the_dispatcher")
    x, w = whole(6, 16), whole(16, 8).requires_grad_()
    monkeypatch.setattr(launching, "_dispatched", None)  # nobody calls it
    (found,) = torch.autograd.grad(up(x, w).float().sum(), w)
    z = x @ w.detach()
    z.requires_grad_()
    (wanted,) = torch.autograd.grad(torch.nn.functional.gelu(z).float().sum(), z)
    torch.testing.assert_close(found, x.t() @ wanted, rtol=0.05, atol=0.05)
