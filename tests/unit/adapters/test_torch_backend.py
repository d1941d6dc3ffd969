"""`torch.compile` with groups replaced: float64 on the CPU, and decisions on fake CUDA tensors."""

from __future__ import annotations

import functools
import tomllib
import warnings
from pathlib import Path

import pytest

from polygen.errors import ArgumentError
from polygen.knobs import scope

torch = pytest.importorskip("torch")
pgt = pytest.importorskip("polygen.adapters.torch")
backend = pytest.importorskip("polygen.adapters.torch.backend")
rewriting = pytest.importorskip("polygen.adapters.torch.rewriting")
placing = pytest.importorskip("polygen.adapters.torch.placing")
make_fx = pytest.importorskip("torch.fx.experimental.proxy_tensor").make_fx
FakeTensorMode = pytest.importorskip("torch._subclasses.fake_tensor").FakeTensorMode
decompositions = pytest.importorskip("torch._inductor.decomposition").select_decomp_table

nn, functional = torch.nn, torch.nn.functional
LEGAL = {"take": "legal", "rest": "eager"}  # everything legal, the rest operation by operation


class Layers(nn.Module):
    """Two layers with a normalisation before, and a residual."""

    def __init__(self, width=16, hidden=24, activation=functional.gelu):
        super().__init__()
        self.norm, self.activation = nn.LayerNorm(width), activation
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(self.activation(self.up(self.norm(x))))


class Gated(nn.Module):
    """A gated layer."""

    def __init__(self, width=16, hidden=24):
        super().__init__()
        self.up, self.gate = (nn.Linear(width, hidden, bias=b) for b in (True, False))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.down(self.up(x) * functional.silu(self.gate(x)))


class Block(nn.Module):
    """A transformer's block, with attention spelt out."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads, self.layers, self.norm = heads, Layers(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, s, w = x.shape
        q, k, v = (
            part.view(b, s, self.heads, w // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        scores = torch.softmax((q @ k.transpose(-2, -1)) * (w // self.heads) ** -0.5, -1)
        mixed = (scores @ v).transpose(1, 2).reshape(b, s, w)
        return self.layers(x + self.out(mixed))


class Heads(nn.Module):
    """Queries, and fewer keys and values, of one input."""

    def __init__(self, width=16, few=8):
        super().__init__()
        self.q, self.k = nn.Linear(width, width), nn.Linear(width, few, bias=False)
        self.v = nn.Linear(width, few)

    def forward(self, x):
        return self.q(x), self.k(x) * 2, functional.relu(self.v(x))


MODELS = {
    "layers": Layers,
    "relu": functools.partial(Layers, activation=functional.relu),
    "tanh gelu": functools.partial(
        Layers, activation=functools.partial(functional.gelu, approximate="tanh")
    ),
    "gated": Gated,
    "block": Block,
}


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()


def exact(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def explained(model, *operands, **options):
    return pgt.explain(model, *operands, options=LEGAL, **options)


# --- the results
@pytest.mark.parametrize("name", MODELS)
def test_forward_and_backward_are_what_they_were(name):
    model = MODELS[name]().double()
    x = exact(2, 6, 16).requires_grad_()
    explanation = explained(model, x, backward=True)
    assert len(explanation.taken) >= 3
    left = [record for record in explanation.records if not record.taken]
    assert len(left) == (name == "block")
    assert all("read elsewhere, as by a backward pass" in record.why for record in left)
    leaves = [x, *model.parameters()]
    found = [leaf.grad for leaf in leaves]
    wanted = torch.autograd.grad(model(x).sum(), leaves)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
    torch._dynamo.reset()
    call = torch.compile(model, backend=functools.partial(pgt.polygen, options=LEGAL))
    torch.testing.assert_close(call(x), model(x))


def test_products_of_one_input_are_one_kernel():
    model, x = Heads().double(), exact(2, 6, 16)
    with torch.no_grad():
        (record,) = explained(model, x).records
        assert record.taken and record.computes.endswith("over 12 x 16, 12 x 8")
        torch._dynamo.reset()
        call = torch.compile(model, backend=functools.partial(pgt.polygen, options=LEGAL))
        for one, other in zip(call(x), model(x), strict=True):
            torch.testing.assert_close(one, other)


def test_every_batch_is_served_by_one_graph():
    model, heard = Gated().double(), []
    call = torch.compile(
        model,
        backend=lambda graph, inputs: pgt.polygen(graph, inputs, options=LEGAL, heard=heard.append),
        dynamic=True,
    )
    with torch.no_grad():
        for batch, rows in ((2, 6), (3, 5), (16, 24), (7, 2)):
            x = exact(batch, rows, 16)
            torch.testing.assert_close(call(x), model(x))
    assert [record.taken for record in heard] == [True]


def test_a_group_that_cannot_be_put_in_place_is_left(monkeypatch):
    from polygen.errors import UnsupportedProgram

    def fails(*_):
        raise UnsupportedProgram("no argument of the graph has the size s1")

    monkeypatch.setattr(placing, "size", fails)
    model, heard = Layers().double(), []
    call = torch.compile(
        model,
        backend=lambda graph, inputs: pgt.polygen(graph, inputs, options=LEGAL, heard=heard.append),
        dynamic=True,
    )
    with torch.no_grad():
        for batch, rows in ((2, 6), (3, 5)):
            x = exact(batch, rows, 16)
            torch.testing.assert_close(call(x), model(x))
    assert any("has the size s1" in record.why and not record.taken for record in heard)


def test_groups_read_what_is_stored_in_any_order():
    def model(x, w, r):
        return torch.relu(x.t() @ w.t()) * r.t()

    operands = exact(6, 5), exact(7, 6), exact(7, 5)
    assert len(explained(model, *operands).taken) == 1
    torch._dynamo.reset()
    call = torch.compile(model, backend=functools.partial(pgt.polygen, options=LEGAL))
    torch.testing.assert_close(call(*operands), model(*operands))


@pytest.mark.parametrize(
    "function",
    [
        lambda z, r: torch.clamp(z, -0.5, 0.5) + r,
        lambda z, r: torch.where(z > r, z, 0.1 * r),
        lambda z, r: (z - 2 * r).pow(2).add(1).rsqrt(),
        lambda z, r: functional.leaky_relu(z) / (1 + r.abs()),
        lambda z, r: functional.mish(z) - functional.elu(r),
        lambda z, r: functional.hardswish(z) * functional.softplus(r),
        lambda z, r: torch.maximum(z, r) - torch.minimum(z, -r),
        lambda z, r: torch.sigmoid(z).mul(r) + torch.tanh(z),
        lambda z, r: ((z > 0) & (r < 0)).double() * z,
        lambda z, r: torch.add(z, r, alpha=3) - torch.rsub(z, r, alpha=2),
    ],
)
def test_pointwise_work_is_what_it_was(function):
    def model(x, w, r):
        return function(x @ w, r)

    operands = exact(6, 8), exact(8, 10), exact(6, 10)
    assert len(explained(model, *operands).taken) == 1
    torch._dynamo.reset()
    call = torch.compile(model, backend=functools.partial(pgt.polygen, options=LEGAL))
    torch.testing.assert_close(call(*operands), model(*operands))


@pytest.mark.parametrize(
    "activation",
    [
        functools.partial(functional.gelu, approximate="tanh"),
        lambda z: 0.5 * z * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (z + 0.044715 * z.pow(3)))),
        lambda z: 0.5 * z * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (z + 0.044715 * (z * z * z)))),
    ],
)
def test_gelu_by_tanh_is_one_function(activation):
    model, x = Layers(activation=activation).double(), exact(4, 16)
    with torch.no_grad():
        explanation = explained(model, x)
        assert explanation.records[0].computes.startswith("addmm, gelu over")
        torch._dynamo.reset()
        call = torch.compile(model, backend=functools.partial(pgt.polygen, options=LEGAL))
        torch.testing.assert_close(call(x), model(x))


def test_a_cube_of_something_else_is_no_gelu():
    def activation(z):
        return 0.5 * z * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (z + 0.044715 * z.pow(2))))

    model, x = Layers(activation=activation).double(), exact(4, 16)
    with torch.no_grad():
        assert "gelu" not in explained(model, x).records[0].computes
        torch._dynamo.reset()
        call = torch.compile(model, backend=functools.partial(pgt.polygen, options=LEGAL))
        torch.testing.assert_close(call(x), model(x))


def test_products_with_factors_are_what_they_were():
    def model(c, x, w, b, y, v):
        return torch.relu(torch.addmm(c, x, w, beta=2, alpha=0.5)), torch.baddbmm(b, y, v).exp()

    operands = exact(6, 7), exact(6, 5), exact(5, 7), exact(3, 4, 6), exact(3, 4, 5), exact(3, 5, 6)
    assert len(explained(model, *operands).taken) == 2
    torch._dynamo.reset()
    call = torch.compile(model, backend=functools.partial(pgt.polygen, options=LEGAL))
    for one, other in zip(call(*operands), model(*operands), strict=True):
        torch.testing.assert_close(one, other)


def test_what_a_kernel_cannot_do_is_left():
    def model(x, w):
        z = x @ w
        return torch.relu(z).cumsum(-1), torch.fmod(z, 2.0)

    operands = exact(6, 8), exact(8, 10)
    call = torch.compile(model, backend=functools.partial(pgt.polygen, options=LEGAL))
    for one, other in zip(call(*operands), model(*operands), strict=True):
        torch.testing.assert_close(one, other)


def test_inductor_compiles_the_rest():
    pytest.importorskip("torch._inductor.compile_fx")
    model = Gated().double()
    x = exact(4, 16)
    options = {"take": "legal", "fx_graph_cache": False}
    call = torch.compile(model, backend=functools.partial(pgt.polygen, options=options))
    with torch.no_grad():
        torch.testing.assert_close(call(x), model(x))


@pytest.mark.parametrize("fixed", [True, False])
def test_inductor_s_code_calls_kernels_at_once(monkeypatch, fixed):
    codes = pytest.importorskip("torch._inductor.utils").run_and_get_code
    from polygen.adapters.torch import running, tensors

    ran = []

    def at_once(runner, operands):
        ran.append(len(operands))
        return runner.on_cpu(operands)

    monkeypatch.setattr(tensors, "DEVICES", {"cpu"})  # which float64 is run on
    monkeypatch.setattr(running.Runner, "on_gpu", at_once)
    model, x = Layers().double(), exact(4, 16)
    options = {"take": "legal", "fx_graph_cache": False}
    backend = functools.partial(pgt.polygen, options=options)
    call = torch.compile(model, backend=backend, dynamic=not fixed)
    monkeypatch.setattr(running.Runner, "repeated", lambda runner, operands: None)
    with torch.no_grad():
        found, (code,) = codes(call, x)
        torch.testing.assert_close(found, model(x))
    assert ran == [3, 4], "the second reads what the first gives"
    assert "launch.default(" not in code
    assert ("at_once as polygen_launch" in code) is not fixed
    assert ("= polygen_site_1([" in code) is fixed


class Positive(nn.Module):
    """A gated layer whose functions keep whole numbers whole."""

    def __init__(self, width=16, hidden=24):
        super().__init__()
        self.up, self.gate = (nn.Linear(width, hidden) for _ in range(2))
        self.down = nn.Linear(hidden, width)
        for parameter in self.parameters():
            parameter.data = torch.randint(-1, 2, parameter.shape).double()

    def forward(self, x):
        return x + self.down(torch.relu(self.gate(x)) * self.up(x))


def test_kernels_of_groups_are_exact_on_the_machine(monkeypatch):
    """Forward and backward, with every launch run from its PTX."""
    from polygen.adapters.kernels import stored
    from polygen.adapters.torch import running, tensors

    ran = []

    def on_machine(runner, operands):
        program, sizes = runner._program_for(operands)
        program = stored(program, [tensors.order_of(operand) for operand in operands])
        kernel = running.KERNELS.find(program, sizes)
        found = kernel.emulate(*(o.detach().numpy().astype("f4", order="K") for o in operands))
        ran.append(program.name)
        found = found if isinstance(found, tuple) else (found,)
        return tuple(torch.from_numpy(array).double() for array in found)

    model, x = Positive(), torch.randint(-2, 3, (2, 5, 16)).double().requires_grad_()
    leaves = [x, *model.parameters()]
    wanted = [model(x).detach(), *torch.autograd.grad(model(x).sum(), leaves)]
    monkeypatch.setattr(running.Runner, "on_cpu", on_machine)
    with scope(arch="sm_80"):
        call = torch.compile(model, backend=functools.partial(pgt.polygen, options=LEGAL))
        y = call(x)
        found = [y.detach(), *torch.autograd.grad(y.sum(), leaves)]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert len(ran) >= 4


# --- decisions, on fake CUDA tensors
def decided(model, *shapes, dtype=torch.bfloat16, **settings):
    """What becomes of the groups of a function of fake tensors on a Hopper GPU."""
    with FakeTensorMode():
        operands = [torch.empty(shape, dtype=dtype, device="cuda") for shape in shapes]
        graph = make_fx(model, decomposition_table=decompositions())(*operands)
    graph.graph.eliminate_dead_code()  # as torch.compile does
    with scope(arch="sm_90a"):
        records = rewriting.rewrite(graph.graph, rewriting.Settings(**settings))
    launches = [n for n in graph.graph.nodes if n.target is torch.ops.polygen.launch.default]
    assert len(launches) == sum(record.taken for record in records)
    return records


def gelu_layer(x, w, b):
    return functional.gelu(functional.linear(x, w, b))


def test_a_group_that_is_predicted_to_win_is_taken():
    (record,) = decided(gelu_layer, (4096, 256), (4096, 256), (4096,))
    assert record.taken and record.why.startswith("predicted ")
    assert str(record).startswith("taken  addmm, gelu over 4096 x 4096: predicted ")


def test_a_group_that_is_predicted_to_lose_is_left():
    (record,) = decided(gelu_layer, (4096, 256), (4096, 256), (4096,), threshold=50.0)
    assert not record.taken and "times as long" in record.why


def adapted(x, w, bias, a, b):
    return functional.linear(x, w, bias) + functional.linear(functional.linear(x, a), b) * 2.0


def test_what_goes_on_with_sums_is_one_kernel():
    shapes = ((2, 2048, 4096), (4096, 4096), (4096,), (16, 4096), (4096, 16))
    (record,) = decided(adapted, *shapes)
    assert record.taken and record.why.startswith("predicted ")
    assert record.computes == "addmm, mm, mm, mul, add over 4096 x 4096"


def linears(x, *weights):
    return tuple(functional.linear(x, w) for w in weights)


def test_products_of_one_input_are_one_kernel_where_that_is_predicted_to_win():
    (record,) = decided(linears, (64, 4096), (4096, 4096), (1024, 4096), (1024, 4096))
    assert record.taken and record.computes == "mm, mm, mm over 64 x 4096, 64 x 1024"


def test_what_shares_no_kernel_is_decided_by_itself():
    def layers(x, w, u):
        return functional.linear(x, w), functional.gelu(functional.linear(x, u))

    shapes = (4096, 256), (4096, 256), (1024, 256)
    whole, *parts = decided(layers, *shapes, threshold=50.0)
    assert not whole.taken and "4096 x 4096, 4096 x 1024" in whole.computes
    assert [part.computes for part in parts] == ["mm, gelu over 4096 x 1024"]


def swiglu(x, up, gate):
    return functional.silu(x @ gate.t()) * (x @ up.t())


@pytest.mark.parametrize("rows", [64, 2048, 8192])
def test_products_share_a_kernel_or_the_last_has_the_work(rows):
    whole, *others = decided(swiglu, (rows, 4096), (14336, 4096), (14336, 4096))
    assert whole.computes == f"mm, silu, mm, mul over {rows} x 14336"
    assert whole.taken == (rows < 8192)  # at 2048 it is 1.02 times as fast as its parts' kernels
    assert [one.computes for one in others if one.taken] == (
        [] if whole.taken else ["silu, mm, mul over 8192 x 14336"]
    )


def test_the_last_of_several_products_gives_what_it_gave(monkeypatch):
    from polygen.errors import UnsupportedProgram

    def refused(program):
        return UnsupportedProgram("several") if len(program.contractions) > 1 else None

    monkeypatch.setattr(rewriting, "refusal", refused)
    model, x = Gated().double(), exact(2, 6, 16)
    with torch.no_grad():
        first, second = explained(model, x).records
        assert not first.taken and second.taken and second.computes.startswith("mm, silu, mul")
        torch._dynamo.reset()
        call = torch.compile(model, backend=functools.partial(pgt.polygen, options=LEGAL))
        torch.testing.assert_close(call(x), model(x))


def normed(x, w, r, g):
    z = r + x @ w.t()
    wide = z.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    return z, (wide * scale).to(z.dtype) * g


def normed_as_t5_does(x, w, r, g):
    z = r + x @ w.t()
    scale = torch.rsqrt(z.float().pow(2).mean(-1, keepdim=True) + 1e-5)
    return z, (z * scale).to(z.dtype) * g


def sum_alone(x, w, r, g):
    return normed(x, w, r, g)[1]


def test_what_a_norm_behind_computes_in_passing_is_no_gain():
    shapes = (64, 4096), (4096, 4096), (64, 4096), (4096,)
    (record,) = decided(sum_alone, *shapes)
    assert record.computes == "mm, add over 64 x 4096", "its squares are no result"
    assert not record.taken
    (record,) = decided(normed, *shapes)
    assert record.computes == "mm, add over 64 x 4096" and record.taken
    (record,) = decided(normed_as_t5_does, *shapes)
    assert record.computes == "mm, add over 64 x 4096"


def test_a_bias_alone_is_left_to_the_library():
    (record,) = decided(lambda x, w, b: torch.mm(x, w) + b, (4096, 256), (256, 4096), (4096,))
    assert not record.taken


def test_sizes_that_are_symbols_are_decided_by_those_of_the_trace():
    shapes = pytest.importorskip("torch.fx.experimental.symbolic_shapes")
    source = pytest.importorskip("torch._dynamo.source").LocalSource("x")
    dynamic = shapes.DimDynamic
    context = shapes.StatelessSymbolicContext(
        dynamic_sizes=[dynamic.DYNAMIC, dynamic.DYNAMIC, dynamic.STATIC]
    )
    mode = FakeTensorMode(shape_env=shapes.ShapeEnv())
    example = torch.empty(4, 512, 256, dtype=torch.bfloat16, device="meta")
    given = mode.from_tensor(example, symbolic_context=context, source=source)
    with mode:
        x, w, b = (
            torch.empty(s, dtype=torch.bfloat16, device="cuda")
            for s in (given.shape, (4096, 256), (4096,))
        )
        graph = make_fx(gelu_layer, decomposition_table=decompositions())(x, w, b)
    with scope(arch="sm_90a"):
        (record,) = rewriting.rewrite(graph.graph, rewriting.Settings())
    assert record.taken and record.computes.startswith("addmm, gelu over s")
    (launch,) = (n for n in graph.graph.nodes if n.target is torch.ops.polygen.launch.default)
    program = pytest.importorskip("polygen.adapters.torch.launching").read(launch.args[2])
    assert program.name == "addmm_gelu" and len(program.sizes) == 3, "sizes stay arguments"
    (result,) = next(n for n in graph.graph.nodes if n.op == "output").all_input_nodes
    assert [str(e) for e in result.meta["val"].shape] == [*map(str, x.shape[:2]), "4096"]


def test_what_the_model_does_not_know_is_left():
    (record,) = decided(gelu_layer, (4096, 250), (4096, 250), (4096,))
    assert not record.taken and "no multiple of 16 bytes: not predicted" in record.why


def linear_silu(x, w):
    return functional.silu(x @ w.t())


def test_single_rows_are_a_library_s_where_inductor_leaves_them_whole():
    config = pytest.importorskip("torch._inductor.config")
    shapes = (1, 4096), (14336, 4096)
    (record,) = decided(linear_silu, *shapes)
    assert record.taken and record.why.startswith("predicted ")
    (column,) = decided(lambda x, w: linear_silu(w, x), *shapes)
    assert not column.taken and column.why.endswith(": not predicted")
    with config.patch(coordinate_descent_tuning=True):  # as in max-autotune
        assert decided(linear_silu, *shapes) == []


def test_f32_is_left_unless_tf32_is_allowed():
    before = torch.get_float32_matmul_precision()
    shapes = ((4096, 256), (4096, 256), (4096,))
    try:
        torch.set_float32_matmul_precision("highest")
        (record,) = decided(gelu_layer, *shapes, dtype=torch.float32)
        assert not record.taken and "is f32" in record.why
        torch.set_float32_matmul_precision("high")
        (record,) = decided(gelu_layer, *shapes, dtype=torch.float32, threshold=0.0)
        assert record.taken
    finally:
        torch.set_float32_matmul_precision(before)


def test_rules_of_one_s_own_are_asked():
    from polygen.adapters.rules import NOTHING, RULES

    asked = []

    @pgt.rule
    def listens(graph, group, node):
        asked.append(node.name)
        return NOTHING

    try:
        decided(lambda x, w: torch.mm(x, w).cumsum(0), (64, 64), (64, 64))
    finally:
        RULES.remove(listens)
    assert asked == ["cumsum"]


# --- on the CPU, and options
def test_tensors_on_the_cpu_are_left_and_that_is_said_once():
    backend._said.clear()
    model = Gated()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows in (4, 5):
            torch._dynamo.reset()
            explanation = pgt.explain(model, torch.randn(rows, 16), options={"rest": "eager"})
            assert explanation.taken == () and len(explanation.records) == 2
            assert "not on a CUDA device" in explanation.records[0].why
    said = [w for w in caught if "tensors on the CPU" in str(w.message)]
    assert len(said) == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"take": "all"}, "take = 'all'. Legal: predicted, measured, legal"),
        ({"rest": "jit"}, "rest = 'jit'. Legal: inductor, eager"),
        ({"threshold": "high"}, "threshold = 'high'. A number such as 1.05"),
    ],
)
def test_options_that_are_none_are_refused(options, text):
    graph = torch.fx.symbolic_trace(nn.Linear(2, 2))
    with pytest.raises(ArgumentError) as raised:
        pgt.polygen(graph, [], options=options)
    assert text in str(raised.value)


def test_options_are_polygen_s_and_inductor_s():
    own, others = backend._options({"measure": True, "threshold": 1.2, "max_autotune": True})
    assert own == (rewriting.Settings("measured", 1.2), "inductor")
    assert others == {"max_autotune": True}


def test_the_cache_of_inductor_knows_what_decided():
    same, other, measured = (
        backend.GroupPass(rewriting.Settings(*given), None).uuid()
        for given in (("predicted", 1.03), ("predicted", 1.1), ("measured", 1.03))
    )
    assert same and same != other and measured is None
    assert same == backend.GroupPass(rewriting.Settings(), None).uuid()


def test_torch_finds_the_backend_by_its_name():
    file = Path(__file__).parents[3] / "pyproject.toml"
    entry = tomllib.loads(file.read_text())["project"]["entry-points"]["torch_dynamo_backends"]
    module, _, name = entry["polygen"].partition(":")
    assert getattr(pytest.importorskip(module), name) is pgt.polygen


def test_an_explanation_is_text():
    records = (
        rewriting.Record(("mm", "relu"), "mm, relu over 4 x 4", True, "legal"),
        rewriting.Record(("mm_1", "exp"), "mm, exp over 4 x 4", False, "refused"),
    )
    assert str(backend.Explanation(records)).splitlines() == [
        "2 groups, 1 taken",
        "taken  mm, relu over 4 x 4: legal",
        "left   mm, exp over 4 x 4: refused",
    ]


def test_a_place_in_inductor_s_code_repeats_its_call(monkeypatch):
    from polygen.adapters.torch import launching

    ran = []

    class Ran:
        def on_gpu(self, operands, out=None):
            ran.append("read")
            return exact(2)

        def repeated(self, operands):
            if ran == ["read"]:
                return None  # the first call of a process has found out what tensors are
            return lambda arrays: again(arrays)

    def again(arrays):
        if arrays[0] is None:
            raise LookupError(0)
        ran.append("address")
        return [arrays[0]]

    monkeypatch.setattr(launching, "_runner", lambda text: (Ran(), (True,)))
    site, x = launching.Site("a program"), exact(3)
    for _ in range(4):
        site([x])
    assert ran == ["read", "read", "address", "address"]
    site([None])  # of another device
    site([x])
    assert ran[4:] == ["read", "address"]


def test_a_place_whose_calls_are_more_than_launches_stops_asking(monkeypatch):
    from polygen.adapters.torch import launching

    asked = []

    class Ran:
        def on_gpu(self, operands, out=None):
            return exact(2)

        def repeated(self, operands):
            asked.append(operands)

    monkeypatch.setattr(launching, "_runner", lambda text: (Ran(), (True,)))
    site = launching.Site("a program")
    for _ in range(9):
        site([exact(3)])
    assert len(asked) == 4
