"""Derivatives of operators: float64 on the CPU, through the programs that kernels are made of."""

from __future__ import annotations

import numpy as np
import pytest

import polygen as pg
from polygen.adapters.gradients import derive
from polygen.errors import ArgumentError, GradientError
from polygen.frontend.functions import LATER, TABLE
from polygen.hardware.device import device
from polygen.kernel import Kernel

torch = pytest.importorskip("torch")
pgt = pytest.importorskip("polygen.adapters.torch")
meaning = pytest.importorskip("polygen.adapters.torch.meaning")
vocabulary = pytest.importorskip("polygen.adapters.torch.vocabulary")
launching = pytest.importorskip("polygen.adapters.torch.launching")


@pgt.op
def smooth(x, w, b):
    return pg.gelu(x @ w.T + b)


@pgt.op
def gate(x, u, v):
    return pg.silu(x @ u.T) * (x @ v.T)


@pgt.op(scalars="alpha", outputs=2)
def both(x, w, r, alpha):
    return pg.tanh(alpha * (x @ w)), x @ w + r


@pgt.op
def scores(q, k):
    return pg.exp(0.1 * (q @ k.mT))


@pgt.op
def matrix_vector(w, x, b):
    return pg.softplus(w @ x + b)


@pgt.op
def perceptron(x, u, b, d):
    return pg.gelu(x @ u + b) @ d + x


def exact(*shape, seed=0):
    made = torch.Generator().manual_seed(seed + 7 * sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=made).requires_grad_()


CASES = {
    "a layer": (smooth, [(3, 4), (5, 4), (5,)]),
    "rows of a batch": (smooth, [(2, 3, 4), (5, 4), (5,)]),
    "gated": (gate, [(3, 4), (5, 4), (5, 4)]),
    "two results, a scalar": (lambda x, w, r: both(x, w, r, 0.7), [(3, 4), (4, 5), (3, 1)]),
    "stretched batches": (scores, [(2, 3, 4, 2), (2, 1, 5, 2)]),
    "a perceptron": (perceptron, [(3, 4), (4, 6), (6,), (6, 4)]),
    "a vector": (matrix_vector, [(3, 4), (4,), (3,)]),
}


@pytest.mark.parametrize("case", CASES)
def test_gradcheck(case):
    function, shapes = CASES[case]
    assert torch.autograd.gradcheck(function, tuple(exact(*shape) for shape in shapes))


def test_arguments_that_need_no_gradient_get_none():
    x, w, b = exact(3, 4), exact(5, 4).detach(), exact(5)
    smooth(x, w, b).sum().backward()
    assert x.grad is not None and b.grad is not None and w.grad is None
    wanted = torch.nn.functional.gelu(x @ w.T + b)
    (grad,) = torch.autograd.grad(wanted.sum(), x)
    torch.testing.assert_close(x.grad, grad)


def test_a_result_that_is_not_used_is_no_trouble():
    x, w, r = exact(3, 4), exact(4, 5), exact(3, 1)
    a, _ = both(x, w, r, 2.0)
    a.sum().backward()
    assert torch.equal(r.grad, torch.zeros(3, 1, dtype=torch.float64))


def kept(function, *operands):
    shapes = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: (shapes.append(tuple(t.shape)), t)[1], lambda t: t
    ):
        function(*operands)
    return shapes


def test_nothing_computed_is_kept_and_no_argument_in_vain():
    sparing = pgt.op(lambda x, w, b: pg.gelu(x @ w.T + b), name="gelu_kept", keep="arguments")
    assert kept(sparing, exact(3, 4), exact(5, 4), exact(5)) == [(3, 4), (5, 4), (5,)]
    assert kept(smooth, exact(3, 4), exact(5, 4), exact(5)) == [(3, 4), (5, 4), (3, 5)]
    linear = pgt.op(lambda x, w, b: x @ w.T + b, name="linear_kept")
    assert kept(linear, exact(3, 4), exact(5, 4), exact(5)) == [(3, 4), (5, 4)]
    assert kept(linear, exact(3, 4), exact(5, 4).detach(), exact(5)) == [(5, 4)]


def test_products_between_layers_are_kept_or_not():
    given = exact(3, 4), exact(4, 6), exact(6), exact(6, 4)
    shapes = [(3, 4), (4, 6), (6,), (6, 4)]
    assert kept(perceptron, *given) == [*shapes, (3, 6)]
    sparing = pgt.op(
        lambda x, u, b, d: pg.gelu(x @ u + b) @ d + x, name="sparing", keep="arguments"
    )
    assert kept(sparing, *given) == shapes
    found = torch.autograd.grad(perceptron(*given).sum(), given)
    again = torch.autograd.grad(sparing(*given).sum(), given)
    for one, other in zip(found, again, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    last = *(one.detach() for one in given[:3]), given[3]
    assert kept(perceptron, *last) == [*[(3, 4), (4, 6), (6,), (6, 4)][2:], (3, 6)], "dd alone"


def test_what_is_kept_is_a_word():
    with pytest.raises(ArgumentError, match=r"keep='all' .*'products' or 'arguments'"):
        pgt.op(lambda x, w: x @ w, keep="all")


def test_results_that_are_not_used_arrive_as_zeros():
    layers = pgt.op(
        lambda x, u, d: ((h := pg.tanh(x @ u)) @ d, h), name="layers_returned", outputs=2
    )
    x, u, d = exact(3, 4), exact(4, 6), exact(6, 5)
    first = torch.autograd.grad(layers(x, u, d)[0].sum(), (x, u, d))
    wanted = torch.autograd.grad((torch.tanh(x @ u) @ d).sum(), (x, u, d))
    (last,) = torch.autograd.grad(layers(x, u, d)[1].sum(), u)
    (alone,) = torch.autograd.grad(torch.tanh(x @ u).sum(), u)
    for one, other in zip((*first, last), (*wanted, alone), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_second_derivatives_are_refused():
    x, w, b = exact(3, 4), exact(5, 4), exact(5)
    (grad,) = torch.autograd.grad(smooth(x, w, b).sum(), x, create_graph=True)
    with pytest.raises(GradientError, match=r"second derivative .*create_graph=True"):
        grad.sum().backward()


@pytest.mark.parametrize("which", ["one layer", "two layers"])
def test_second_derivatives_through_what_is_kept_are_refused(which):
    """Also where the gradient that arrives needs one itself, so that there is a graph."""
    given = [exact(3, 4), exact(5, 4), exact(5)]
    function = smooth
    if which == "two layers":
        function, given = perceptron, [exact(3, 4), exact(4, 6), exact(6), exact(6, 4)]
    value = function(*given)
    for wanted in given[1:]:
        (grad,) = torch.autograd.grad((value * value).sum(), wanted, create_graph=True)
        with pytest.raises(GradientError, match="a second derivative"):
            torch.autograd.grad(grad.sum(), given[0], retain_graph=True)


def test_slices_of_what_needs_a_gradient_are_refused():
    sliced = pgt.op(lambda x, w: x[:, ::2] @ w, name="sliced_gradient")
    with pytest.raises(GradientError, match="Slice x outside"):
        sliced(exact(3, 8), exact(4, 5))
    sliced(exact(3, 8).detach(), exact(4, 5)).sum().backward()


def test_compiled_functions_have_the_same_gradients_for_every_batch():
    w, b = exact(5, 4), exact(5)
    aot = pytest.importorskip("torch._dynamo.backends.common").aot_autograd
    graphs = []

    def keep(graph, _):
        graphs.append([str(n.target) for n in graph.graph.nodes if n.op == "call_function"])
        return graph

    torch._dynamo.reset()
    call = torch.compile(
        lambda x: torch.sin(smooth(torch.cos(x), w, b)).sum(),
        backend=aot(fw_compiler=keep, bw_compiler=keep),
        fullgraph=True,
    )
    for batch in (3, 6, 4, 5, 9):
        x = exact(batch, 4)
        found = torch.autograd.grad(call(x), (x, w, b))
        value = torch.sin(torch.nn.functional.gelu(torch.cos(x) @ w.T + b)).sum()
        for one, wanted in zip(found, torch.autograd.grad(value, (x, w, b)), strict=True):
            torch.testing.assert_close(one, wanted)
    assert len(graphs) == 4, "forward and backward, of the first size and of all others"
    assert graphs[2].count("polygen.smooth_keeping.default") == 1
    assert graphs[3].count("polygen.launch.default") == 2, "data and weight"


def test_torch_s_own_checks_of_an_operator():
    operands = exact(3, 4), exact(5, 4), exact(5)
    torch.library.opcheck(
        smooth.overload, operands, test_utils=["test_schema", "test_faketensor",
                                               "test_autograd_registration"]
    )  # fmt: skip
    program, _ = smooth.program_for([o.detach() for o in operands])
    given = [o.detach() for o in operands], [], launching.text_of(program)
    torch.library.opcheck(
        torch.ops.polygen.launch.default, given, test_utils=["test_schema", "test_faketensor"]
    )


def test_a_launch_holds_its_program_as_text():
    program = pg.fuse(lambda x, w, a: a * (x @ w)).program("tf32[M,K]", "tf32[K,N]", "f32")
    assert launching.read(launching.text_of(program)) == program
    x, w = exact(3, 4).detach(), exact(4, 5).detach()
    (y,) = launching.launch(launching.text_of(program), [x, w, 2.5])
    torch.testing.assert_close(y, 2.5 * (x @ w))


# --- PyTorch's own operations, where no kernel is made
@pytest.mark.parametrize("name", sorted(set(TABLE) - LATER - {"cast"}))
def test_functions_are_the_vocabulary_s(name):
    function = TABLE[name]
    rng = np.random.default_rng(1)
    args = [rng.uniform(0.1, 2.0, 50) for _ in function.parameters]
    if name == "where":
        args[0] = args[0] > 1
    elif name.startswith("logical"):
        args = [a > 1 for a in args]
    found = vocabulary.applied(name, [torch.from_numpy(a) for a in args])
    wanted = np.asarray(function.reference(*args))
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12, atol=1e-12)
    if len(args) == 2 and not name.startswith("logical"):
        for number in (0, 1):
            given = [torch.from_numpy(a) if n != number else 0.5 for n, a in enumerate(args)]
            mixed = [a if n != number else 0.5 for n, a in enumerate(args)]
            np.testing.assert_allclose(
                vocabulary.applied(name, given).numpy(), function.reference(*mixed), rtol=1e-12
            )


def test_programs_without_a_kernel_run_in_torch():
    program = pg.fuse(lambda x, w, b: pg.relu(x[:, ::2] @ w).T + b[:, None]).program(
        "tf32[3,8]", "tf32[4,5]", "f32[5]"
    )
    x, w, b = exact(3, 8).detach(), exact(4, 5).detach(), exact(5).detach()
    (found,) = meaning.run(program, [x, w, b], {})
    torch.testing.assert_close(found, torch.relu(x[:, ::2] @ w).T + b[:, None])
    (rounded,) = meaning.run(program, [x.float(), w.float(), b.float()], {})
    torch.testing.assert_close(rounded, found.float())


# --- the kernels of a backward pass, on the machine
@pytest.mark.parametrize("piece", [0, 1, 2])
def test_backward_kernels_are_proved_and_exact_on_integers(piece):
    program = pg.fuse(lambda x, w, b: pg.relu(x @ w.T + b), name="layer").program(
        "bf16[M,K]", "bf16[N,K]", "bf16[N]"
    )
    made = derive(program, frozenset("xwb")).pieces[piece].program
    report = Kernel(made, device("sm_80"), {}, "auto").check({})
    assert report.ok, report.findings


def test_gradients_are_averaged_by_ddp(tmp_path):
    """One process: what hooks on gradients see of an operator is what PyTorch's own give them."""
    dist = pytest.importorskip("torch.distributed")
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("PyTorch without Gloo")
    layer = pgt.op(lambda x, w, b: pg.gelu(x @ w.T + b), name="in_ddp")

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            made = torch.Generator().manual_seed(3)
            self.w = torch.nn.Parameter(torch.randn(5, 4, dtype=torch.float64, generator=made))
            self.b = torch.nn.Parameter(torch.randn(5, dtype=torch.float64, generator=made))

        def forward(self, x):
            return layer(x, self.w, self.b)

    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = Layer()
        x = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
        torch.nn.parallel.DistributedDataParallel(model)(x).square().sum().backward()
        wanted = Layer()
        found = torch.nn.functional.gelu(torch.nn.functional.linear(x, wanted.w, wanted.b))
        found.square().sum().backward()
        torch.testing.assert_close(model.w.grad, wanted.w.grad)
        torch.testing.assert_close(model.b.grad, wanted.b.grad)
    finally:
        dist.destroy_process_group()
