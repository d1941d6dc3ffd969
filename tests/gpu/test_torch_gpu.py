"""Operators of PyTorch made of array code, on the GPU."""

from __future__ import annotations

import copy
import os
import subprocess
import sys

import pytest

import polygen as pg

torch = pytest.importorskip("torch")
pgt = pytest.importorskip("polygen.adapters.torch")
exported_ahead = pytest.importorskip("exported_ahead")

pytestmark = pytest.mark.gpu

BF16, F16 = torch.bfloat16, torch.float16


@pytest.fixture(scope="module", autouse=True)
def _cuda():
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")


@pgt.op
def layer(x, w, b):
    return pg.relu(x @ w.T + b)


@pgt.op
def smooth(x, w, b):
    return pg.gelu(x @ w.T + b)


@pgt.op
def gated(x, u, v):
    return pg.silu(x @ u.T) * (x @ v.T)


@pgt.op(scalars=("alpha",), outputs=2)
def pair(x, u, v, alpha):
    return alpha * (x @ u.T), pg.relu(x @ v.T).astype("f32")


def whole(*shape, dtype=BF16, most=2):
    """Integers, so that every order of summation gives the same."""
    return torch.randint(-most, most + 1, shape, device="cuda").to(dtype)


def real(*shape, dtype=BF16):
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def eager_layer(x, w, b):
    return torch.relu(x.float() @ w.float().T + b.float()).to(x.dtype)


def close(found, wanted, steps=4):
    """Within a few roundings to the result's type of the largest value of the matrix."""
    unit = torch.finfo(found.dtype).eps * wanted.abs().max().item()
    assert (found.double() - wanted.double()).abs().max().item() <= steps * unit


# --- forward
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("m", [1, 5, 64, 130, 1000])
def test_it_is_exact_on_integers(m, dtype):
    x, w, b = (whole(*s, dtype=dtype) for s in ((m, 136), (264, 136), (264,)))
    torch.testing.assert_close(layer(x, w, b), eager_layer(x, w, b), rtol=0, atol=0)


def test_it_is_close_on_floats():
    x, w, b = real(300, 512), real(640, 512) / 16, real(640)
    wanted = torch.nn.functional.gelu(x.double() @ w.double().T + b.double())
    close(smooth(x, w, b), wanted)


def test_batches_several_results_and_scalars():
    x, u, v = whole(3, 40, 64), whole(72, 64), whole(72, 64)
    a, b = pair(x, u, v, 2.0)
    assert (a.dtype, b.dtype) == (BF16, torch.float32)
    torch.testing.assert_close(a, (2 * (x.float() @ u.float().T)).bfloat16(), rtol=0, atol=0)
    torch.testing.assert_close(b, torch.relu(x.float() @ v.float().T), rtol=0, atol=0)


@pytest.mark.parametrize("view", ["transposed", "sliced", "strided", "expanded", "odd", "shifted"])
def test_every_view_is_taken(view):
    x = {
        "transposed": lambda: whole(128, 96).t(),
        "sliced": lambda: whole(96, 512)[:, 256:384],
        "strided": lambda: whole(96, 256)[:, ::2],
        "expanded": lambda: whole(1, 128).expand(96, 128),
        "odd": lambda: whole(96, 129)[:, :128],
        "shifted": lambda: whole(96 * 128 + 1)[1:].view(96, 128),
    }[view]()
    w, b = whole(80, 128), whole(80)
    torch.testing.assert_close(layer(x, w, b), eager_layer(x, w, b), rtol=0, atol=0)


def test_the_current_stream_is_used():
    w, b = whole(256, 256), whole(256)
    stream = torch.cuda.Stream()
    layer(whole(256, 256), w, b)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        x = whole(256, 256)
        for _ in range(20):
            torch.cuda._sleep(1_000_000)
            x = x.neg_()
            y = layer(x, w, b)
    stream.synchronize()
    torch.testing.assert_close(y, eager_layer(x, w, b), rtol=0, atol=0)


def test_a_graph_replays_it():
    x, w, b = whole(64, 128), whole(192, 128), whole(192)
    layer(x, w, b)  # compiled before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(layer(x, w[:128], b[:128]), w, b)
    for _ in range(3):
        x.copy_(whole(64, 128))
        graph.replay()
        wanted = eager_layer(eager_layer(x, w[:128], b[:128]), w, b)
        torch.testing.assert_close(y, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_autocast_gives_the_products_its_type(dtype):
    x, w, b = (whole(*s, dtype=torch.float32) for s in ((32, 64), (48, 64), (48,)))
    with torch.autocast("cuda", dtype=dtype):
        y = layer(x, w, b)
        assert y.dtype == torch.nn.functional.linear(x, w).dtype == dtype
    torch.testing.assert_close(y, eager_layer(x, w, b).to(dtype), rtol=0, atol=0)


def test_batches_of_one_alignment_class_share_kernels():
    from polygen.adapters.torch.running import KERNELS

    w, b = whole(1024, 1024), whole(1024)
    layer(whole(4096, 1024), w, b)
    before = len(KERNELS)
    for m in (4097, 4095, 4000, 4064):  # one choice of schedule
        x = whole(m, 1024)
        torch.testing.assert_close(layer(x, w, b), eager_layer(x, w, b), rtol=0, atol=0)
    x = whole(1024, 1024)  # as long as the others: still the same program
    torch.testing.assert_close(layer(x, w, b), eager_layer(x, w, b), rtol=0, atol=0)
    programs = {k.program for k in KERNELS._found.values() if k.program.name == "layer"}
    assert len(KERNELS) - before <= 2 and programs


# --- backward
def eager_gated(x, u, v):
    return torch.nn.functional.silu(x @ u.T) * (x @ v.T)


def grads(function, operands, cotangent):
    leaves = [operand.detach().clone().requires_grad_() for operand in operands]
    return torch.autograd.grad(function(*leaves), leaves, cotangent)


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("shape", [(64, 72, 128), (130, 264, 136), (8, 8, 8)])
def test_gradients_are_exact_on_integers(shape, dtype):
    m, n, k = shape
    x, w, b = (whole(*s, dtype=dtype, most=1) for s in ((m, k), (n, k), (n,)))
    g = whole(m, n, dtype=dtype, most=1)
    found = grads(layer, (x, w, b), g)
    wide = [t.double() for t in (x, w, b)]
    for one, wanted in zip(found, grads(eager_layer, wide, g.double()), strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one, wanted.to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(3, 40), (120,)])
def test_gradients_of_batches_of_rows(shape):
    x, w, b = whole(*shape, 64, most=1), whole(72, 64, most=1), whole(72)
    g = whole(*shape, 72, most=1)
    found = grads(layer, (x, w, b), g)
    wide = [t.double() for t in (x, w, b)]
    for one, wanted in zip(found, grads(eager_layer, wide, g.double()), strict=True):
        torch.testing.assert_close(one, wanted.bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("function", "eager", "shapes"),
    [
        (
            smooth,
            lambda x, w, b: torch.nn.functional.gelu(x @ w.T + b),
            [(256, 128), (384, 128), (384,)],
        ),
        (gated, eager_gated, [(256, 128), (384, 128), (384, 128)]),
    ],
)
def test_gradients_are_close_on_floats(function, eager, shapes):
    operands = [real(*shape) / 4 for shape in shapes]
    g = real(256, 384)
    exact = grads(eager, [t.double() for t in operands], g.double())
    rounded = grads(eager, operands, g)
    for one, wanted, usual in zip(grads(function, operands, g), exact, rounded, strict=True):
        scale = wanted.norm().item()
        error = (one.double() - wanted).norm().item() / scale
        assert error <= 1.5 * (usual.double() - wanted).norm().item() / scale + 1e-3


def test_gradients_that_arrive_expanded_are_taken():
    x, w, b = (whole(*s, most=1) for s in ((64, 72), (128, 72), (128,)))
    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    layer(*leaves).sum().backward()
    wide = [t.double() for t in (x, w, b)]
    ones = torch.ones(64, 128, dtype=torch.float64, device="cuda")
    for leaf, wanted in zip(leaves, grads(eager_layer, wide, ones), strict=True):
        torch.testing.assert_close(leaf.grad, wanted.bfloat16(), rtol=0, atol=0)


def test_training_under_autocast_and_torch_compile():
    torch.manual_seed(0)
    w, b = (torch.randn(*s, device="cuda").div_(8).requires_grad_() for s in ((192, 128), (192,)))
    torch._dynamo.reset()
    call = torch.compile(lambda x: smooth(x, w, b).square().sum(), fullgraph=True)
    for m in (64, 96, 128, 200):
        x = torch.randn(m, 128, device="cuda")
        with torch.autocast("cuda", dtype=BF16):
            found = torch.autograd.grad(call(x), (w, b))
            usual = torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b))
            wanted = torch.autograd.grad(usual.square().sum(), (w, b))
        for one, other in zip(found, wanted, strict=True):
            assert one.dtype == torch.float32
            assert (one - other).norm() <= 2e-2 * other.norm()


# --- under torch.compile
def test_it_is_one_node_of_a_compiled_function():
    w, b = whole(192, 128), whole(192)
    torch._dynamo.reset()
    call = torch.compile(lambda x: layer(x + 1, w, b) * 2, fullgraph=True)
    for m in (64, 65, 128, 200):
        x = whole(m, 128)
        wanted = (eager_layer(x + 1, w, b).float() * 2).bfloat16()
        torch.testing.assert_close(call(x), wanted, rtol=0, atol=0)


def test_cuda_graphs_of_a_compiled_function():
    w, b = whole(192, 128), whole(192)
    torch._dynamo.reset()
    call = torch.compile(lambda x: layer(x, w, b) * 2, mode="reduce-overhead", fullgraph=True)
    for _ in range(5):
        x = whole(64, 128)
        wanted = (eager_layer(x, w, b).float() * 2).bfloat16()
        torch.testing.assert_close(call(x).clone(), wanted, rtol=0, atol=0)


# --- torch.compile(backend="polygen")
class Layers(torch.nn.Module):
    """Two layers, with or without a gate, a normalisation before and a residual after."""

    def __init__(self, width=512, hidden=1024, gate=False, activation=torch.nn.functional.gelu):
        super().__init__()
        self.norm, self.activation = torch.nn.LayerNorm(width), activation
        self.up, self.down = torch.nn.Linear(width, hidden), torch.nn.Linear(hidden, width)
        self.gate = torch.nn.Linear(width, hidden, bias=False) if gate else None

    def forward(self, x):
        h = self.norm(x)
        y = self.activation(self.up(h))
        return x + self.down(y if self.gate is None else y * self.gate(h))


class Block(torch.nn.Module):
    """A block of a vision transformer; its attention is PyTorch's."""

    def __init__(self, width=384, heads=6):
        super().__init__()
        self.heads, self.norm = heads, torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.layers = Layers(width, 4 * width)

    def forward(self, x):
        b, s, w = x.shape
        q, k, v = (
            part.view(b, s, self.heads, w // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return self.layers(x + self.out(mixed.transpose(1, 2).reshape(b, s, w)))


def gated_layers(**sizes):
    return Layers(gate=True, activation=torch.nn.functional.silu, **sizes)


MODELS = {"layers": (Layers, 512), "gated layers": (gated_layers, 512), "block": (Block, 384)}


def compiled(model, **options):
    torch._dynamo.reset()
    return torch.compile(model, backend=pgt.polygen, options=options or None)


def error(found, exact):
    return ((found.double() - exact).norm() / exact.norm()).item()


def no_worse(found, usual, exact):
    """As close to the exact values as PyTorch's own results, but for a quarter."""
    assert error(found, exact) <= 1.25 * error(usual, exact) + 1e-4


@pytest.mark.parametrize("take", ["legal", "predicted", "measured"])
@pytest.mark.parametrize("name", MODELS)
def test_a_compiled_model_gives_what_it_gave(name, take):
    kind, width = MODELS[name]
    torch.manual_seed(0)
    model = kind().cuda().bfloat16()
    x = real(4, 197, width)
    with torch.no_grad():
        wide = kind().cuda().double()
        wide.load_state_dict(model.state_dict())
        no_worse(compiled(model, take=take)(x), model(x), wide(x.double()))


@pytest.mark.parametrize("name", MODELS)
def test_a_compiled_model_trains_as_it_did(name):
    kind, width = MODELS[name]
    torch.manual_seed(0)
    model = kind().cuda().bfloat16()
    wide = kind().cuda().double()
    wide.load_state_dict(model.state_dict())
    x = real(4, 197, width)
    cotangent = real(4, 197, width)

    def gradients(call, module, given, arriving):
        module.zero_grad()
        leaf = given.detach().clone().requires_grad_()
        call(leaf).backward(arriving)
        return [leaf.grad, *(p.grad for p in module.parameters())]

    found = gradients(compiled(model, take="legal"), model, x, cotangent)
    usual = gradients(model, model, x, cotangent)
    exact = gradients(wide, wide, x.double(), cotangent.double())
    for one, other, wanted in zip(found, usual, exact, strict=True):
        no_worse(one, other, wanted)


def test_groups_are_found_and_taken():
    model = gated_layers().cuda().bfloat16()
    with torch.no_grad():
        torch._dynamo.reset()
        explanation = pgt.explain(model, real(64, 512), options={"take": "legal"})
    assert len(explanation.taken) == 2
    assert "silu" in explanation.taken[0].computes and "mm" in explanation.taken[0].computes


class Mixing(torch.nn.Module):
    """Heads in groups, of rows, under a mask or causal; by a call or by hand."""

    def __init__(self, by_hand, masked):
        super().__init__()
        self.by_hand, self.masked = by_hand, masked
        self.q, self.kv = torch.nn.Linear(512, 512), torch.nn.Linear(512, 256)

    def forward(self, x, mask):
        b, s, _ = x.shape
        q = self.q(x).view(b, s, 8, 64).transpose(1, 2)
        k, v = (one.view(b, s, 2, 64).transpose(1, 2) for one in self.kv(x).chunk(2, -1))
        k, v = (one[:, :, None].expand(b, 2, 4, s, 64).reshape(b, 8, s, 64) for one in (k, v))
        if self.by_hand:
            scores = q @ k.mT * 0.125
            found = torch.softmax(scores + mask if self.masked else scores, -1) @ v
        else:
            given = {"attn_mask": mask} if self.masked else {"is_causal": True}
            found = torch.nn.functional.scaled_dot_product_attention(q, k, v, **given)
        return found.transpose(1, 2).reshape(b, s, 512)


@pytest.mark.parametrize("take", ["legal", "measured"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("by_hand", [False, True])
def test_attention_of_a_compiled_model(by_hand, masked, take):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("chains run on warpgroup instructions")
    torch.manual_seed(0)
    model, x = Mixing(by_hand, masked).cuda().to(BF16).eval(), real(2, 600, 512)
    mask = torch.zeros(2, 1, 600, 600, device="cuda", dtype=BF16)
    mask.masked_fill_(torch.rand(2, 1, 600, 600, device="cuda") < 0.3, -30.0)
    with torch.no_grad():
        usual, exact = model(x, mask), copy.deepcopy(model).double()(x.double(), mask.double())
        torch._dynamo.reset()
        records = pgt.explain(model, x, mask, options={"take": take}).records
        (record,) = (one for one in records if "attention over" in one.computes)
        assert record.taken or take == "measured", record
        assert take != "measured" or record.why.startswith("measured "), record
        torch._dynamo.reset()
        found = torch.compile(model, backend=pgt.polygen, options={"take": take})(x, mask)
    no_worse(found, usual, exact)


def test_a_new_batch_is_no_recompilation():
    model, heard = gated_layers().cuda().bfloat16(), []
    torch._dynamo.reset()
    call = torch.compile(
        model,
        backend=lambda graph, inputs: pgt.polygen(
            graph, inputs, options={"take": "legal"}, heard=heard.append
        ),
        dynamic=True,
    )
    wide = gated_layers().cuda().double()
    wide.load_state_dict(model.state_dict())
    with torch.no_grad():
        for batch in (8, 64, 200, 512, 1024, 1000):
            x = real(batch, 512)
            no_worse(call(x), model(x), wide(x.double()))
    assert len(heard) == 2, "one graph, of two groups"


def test_inductor_s_modes_and_graphs():
    model = gated_layers().cuda().bfloat16()
    wide = gated_layers().cuda().double()
    wide.load_state_dict(model.state_dict())
    torch._dynamo.reset()
    # A mode and options together are none of PyTorch's: the options are the mode's, then.
    modes = torch._inductor.list_mode_options("reduce-overhead")
    call = torch.compile(model, backend=pgt.polygen, options={"take": "legal", **modes})
    with torch.no_grad():
        for _ in range(4):
            x = real(64, 512)
            no_worse(call(x).clone(), model(x), wide(x.double()))


def test_compiled_under_autocast():
    model = Layers().cuda()
    wide = Layers().cuda().double()
    wide.load_state_dict(model.state_dict())
    x = torch.randn(96, 512, device="cuda")
    with torch.no_grad(), torch.autocast("cuda", dtype=BF16):
        found, usual = compiled(model, take="legal")(x), model(x)
        assert found.dtype == usual.dtype
    with torch.no_grad():
        no_worse(found, usual, wide(x.double()))


# --- refusals
def test_what_no_kernel_takes_is_refused():
    x, w, b = whole(8, 16), whole(8, 16), whole(8)
    with pytest.raises(pg.PolygenError, match="host memory"):
        layer(x, w.cpu(), b)
    with pytest.raises(pg.PolygenError, match=r"x is bf16, w.T is f64"):
        layer(x, w.double(), b)
    with pytest.raises(pg.PolygenError, match=r"w: the tensor is complex64"):
        layer(x, w.to(torch.complex64), b)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_of_another_device_run_there():
    x, w, b = (whole(*s).to("cuda:1") for s in ((8, 16), (8, 16), (8,)))
    assert torch.cuda.current_device() == 0
    torch.testing.assert_close(layer(x, w, b), eager_layer(x, w, b), rtol=0, atol=0)
    with pytest.raises(pg.PolygenError, match="is on device"):
        layer(x, w.to("cuda:0"), b)


# --- programs that are compiled before they are used
def test_exported_programs_are_compiled_ahead_of_time(tmp_path):
    """In a process of its own, which PyTorch's loader may end: then it does so without polygen."""

    def returned(whose):
        command = [sys.executable, exported_ahead.__file__, whose, str(tmp_path)]
        known = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, capture_output=True, text=True, env=known, check=False)
        return done.returncode, done.stderr

    code, said = returned("polygen")
    if code < 0 and returned("pytorch")[0] < 0:
        pytest.skip("PyTorch's loader ends a process that has no polygen, too")
    assert code == 0, said
