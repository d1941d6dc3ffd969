"""Attention in `torch.compile`: float64 on the CPU, and decisions on fake CUDA tensors."""

from __future__ import annotations

import functools

import pytest

from polygen.knobs import scope

torch = pytest.importorskip("torch")
pgt = pytest.importorskip("polygen.adapters.torch")
rewriting = pytest.importorskip("polygen.adapters.torch.rewriting")
launching = pytest.importorskip("polygen.adapters.torch.launching")
make_fx = pytest.importorskip("torch.fx.experimental.proxy_tensor").make_fx
FakeTensorMode = pytest.importorskip("torch._subclasses.fake_tensor").FakeTensorMode
decompositions = pytest.importorskip("torch._inductor.decomposition").select_decomp_table

nn, functional = torch.nn, torch.nn.functional
attention = functional.scaled_dot_product_attention
aten = torch.ops.aten
EAGER = {"take": "legal", "rest": "eager"}


def exact(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def repeated(x, count):
    b, h, s, d = x.shape
    return x[:, :, None].expand(b, h, count, s, d).reshape(b, h * count, s, d)


def in_rows(x, w):
    """Heads are split in rows, as models do."""
    b, s, _ = x.shape
    q, k, v = (part.view(b, s, 4, 8).transpose(1, 2) for part in (x @ w).chunk(3, -1))
    return attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, -1)


def by_hand(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) * 0.3, -1) @ v


CALLS = {
    "plain": (attention, [(2, 4, 10, 8), (2, 4, 12, 8), (2, 4, 12, 8)]),
    "causal": (
        lambda q, k, v: attention(q, k, v, is_causal=True, scale=0.3),
        [(2, 4, 10, 8), (2, 4, 12, 8), (2, 4, 12, 8)],
    ),
    "truth values": (
        lambda q, k, v: attention(q, k, v, attn_mask=torch.ones(10, 12).tril(1) > 0),
        [(2, 4, 10, 8), (2, 4, 12, 8), (2, 4, 12, 8)],
    ),
    "a bias of keys": (
        lambda q, k, v, m: attention(q, k, v, attn_mask=m),
        [(2, 4, 10, 8), (2, 4, 12, 8), (2, 4, 12, 8), (2, 1, 1, 12)],
    ),
    "repeated heads": (
        lambda q, k, v: attention(q, repeated(k, 2), repeated(v, 2)),
        [(2, 4, 10, 8), (2, 2, 12, 8), (2, 2, 12, 8)],
    ),
    "groups of heads": (
        lambda q, k, v, m: attention(q, k, v, attn_mask=m, enable_gqa=True),
        [(2, 4, 10, 8), (2, 2, 12, 8), (2, 2, 12, 8), (2, 4, 10, 12)],
    ),
    "by hand": (by_hand, [(2, 4, 10, 8), (2, 4, 12, 8), (2, 4, 12, 16)]),
    "by hand, masked": (
        lambda q, k, v, m: (
            torch.softmax((q @ k.mT).masked_fill(m[:, None] > 0, -torch.inf), -1) @ v
        ),
        [(2, 4, 10, 8), (2, 4, 12, 8), (2, 4, 12, 16), (2, 10, 12)],
    ),
    "by hand, groups": (
        lambda q, k, v, m: torch.softmax(q @ repeated(k, 2).mT + m, -1) @ repeated(v, 2),
        [(2, 4, 10, 8), (2, 2, 12, 8), (2, 2, 12, 16), (2, 1, 10, 12)],
    ),
    "matrices": (by_hand, [(3, 10, 8), (3, 12, 8), (3, 12, 16)]),
    "heads in rows": (in_rows, [(2, 10, 32), (32, 96)]),
}


def compared(function, *operands, options=EAGER, dynamic=None):
    """What became of the groups of a function whose results stay what they were."""
    torch._dynamo.reset()
    heard = []
    backend = functools.partial(pgt.polygen, options=options, heard=heard.append)
    call = torch.compile(function, backend=lambda graph, given: backend(graph, given),
                         dynamic=dynamic)  # fmt: skip
    with torch.no_grad():
        torch.testing.assert_close(call(*operands), function(*operands))
    return heard


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CALLS)
def test_attention_is_what_it_was(name):
    torch.manual_seed(0)
    function, shapes = CALLS[name]
    (record,) = compared(function, *(exact(*shape) for shape in shapes))
    assert record.taken and " attention over " in record.computes


@pytest.mark.slow
def test_inductor_s_own_patterns_are_attention():
    torch.manual_seed(0)
    operands = [exact(3, 10, 8), exact(3, 12, 8), exact(3, 12, 16)]
    options = {"take": "legal", "fx_graph_cache": False}
    (record,) = compared(by_hand, *operands, options=options)
    assert record.taken


def test_lengths_are_those_of_the_call():
    torch.manual_seed(0)
    shapes = (2, 4, 10, 8), (2, 4, 12, 8), (2, 4, 12, 8)
    (record,) = compared(by_hand, *(exact(*s) for s in shapes), dynamic=True)
    assert record.taken and " s" in record.computes


def test_modules_are_reached():
    torch.manual_seed(0)
    module = nn.MultiheadAttention(32, 4, batch_first=True).eval().double()
    first, *_ = compared(lambda x: module(x, x, x, need_weights=False)[0], exact(2, 10, 32))
    assert first.taken and first.computes.startswith("flash_for_cpu attention")


def test_what_a_backward_pass_keeps_is_left():
    torch.manual_seed(0)
    q, k, v = (exact(2, 4, 10, 8).requires_grad_() for _ in range(3))
    explanation = pgt.explain(attention, q, k, v, options=EAGER, backward=True)
    (record,) = (r for r in explanation.records if "attention" in r.computes)
    assert not record.taken and "its log-sum-exp is kept for a backward pass" in record.why
    wanted = torch.autograd.grad(attention(q, k, v).sum(), (q, k, v))
    for one, other in zip((q, k, v), wanted, strict=True):
        torch.testing.assert_close(one.grad, other)


# --- decisions, on fake CUDA tensors
FLASH, CUDNN, EFFICIENT = (
    functools.partial(lambda kernel, *args, **options: kernel(*args, **options)[0], kernel)
    for kernel in (
        aten._scaled_dot_product_flash_attention,
        aten._scaled_dot_product_cudnn_attention,
        aten._scaled_dot_product_efficient_attention,
    )
)
LONG = [(4, 16, 4096, 128)] * 3


def decided(function, shapes, dtype=torch.bfloat16, arch="sm_90a", **settings):
    """What becomes of attention in a function of fake tensors, and the graph."""
    with FakeTensorMode():
        operands = [torch.empty(shape, dtype=dtype, device="cuda") for shape in shapes]
        graph = make_fx(function, decomposition_table=decompositions())(*operands)
    graph.graph.eliminate_dead_code()
    with scope(arch=arch):
        records = rewriting.rewrite(graph.graph, rewriting.Settings(**settings))
    return records, graph.graph


def launched(graph):
    (node,) = (n for n in graph.nodes if n.target is torch.ops.polygen.launch.default)
    return node


@pytest.mark.slow
def test_a_slower_kernel_of_torch_gives_way():
    (record,), graph = decided(lambda q, k, v: FLASH(q, k, v, 0.0, True), LONG)
    assert record.taken and record.why.startswith("predicted ")
    assert record.computes == "flash attention over 4 x 16 x 4096 x 128"
    assert [n.op for n in graph.nodes] == ["placeholder"] * 3 + ["call_function"] * 2 + ["output"]


@pytest.mark.parametrize(
    ("rows", "size", "causal", "taken"),
    [(2048, 128, True, True), (2048, 128, False, False), (2048, 64, True, False),
     (1024, 128, True, False)],
)  # fmt: skip
def test_causal_attention_of_wide_heads_gives_way(rows, size, causal, taken):
    """Of others cuDNN's kernel was measured to take no longer than polygen's."""
    shape = (1, 32, rows, size)
    (record,), _ = decided(lambda q, k, v: CUDNN(q, k, v, None, False, 0.0, causal), [shape] * 3)
    assert record.taken == taken, record.why


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "rows"),
    [(FLASH, 1), (lambda q, k, v: CUDNN(q, k, v, None, False), 16)],
)
def test_attention_of_few_tokens_was_measured(function, rows):
    (record,), _ = decided(function, [(1, 32, rows, 128)] * 3)
    assert record.taken and record.why.startswith("predicted ")


@pytest.mark.parametrize(
    ("function", "shapes", "why"),
    [
        (lambda q, k, v: CUDNN(q, k, v, None, False), LONG, "1.00 times as long"),
        (
            lambda q, k, v: CUDNN(q, k, v, None, False),
            [(1, 32, 16, 128), (1, 32, 4096, 128), (1, 32, 4096, 128)],
            "fewer rows than the 512 that were measured: not predicted",
        ),
        (FLASH, [(4, 32, 16, 128)] * 3, "fewer rows than the 512 that were measured"),
        (
            lambda q, k, v: EFFICIENT(q, k, v, None, False),
            LONG,
            "efficient's attention was not measured beside polygen's: not predicted",
        ),
        (
            FLASH,
            [(4, 16, 64, 128), (4, 16, 4096, 128), (4, 16, 4096, 128)],
            "fewer rows than the 512 that were measured: not predicted",
        ),
        (
            by_hand,
            [(4, 16, 1, 128), (4, 16, 4096, 128), (4, 16, 4096, 128)],
            "a single row: not predicted",
        ),
        (lambda q, k, v: FLASH(q, k, v, 0.1), LONG, "PyTorch's random numbers are its own"),
    ],
)
def test_what_is_not_predicted_to_win_is_left(function, shapes, why):
    (record, *_), _ = decided(function, shapes)
    assert not record.taken and why in record.why


@pytest.mark.parametrize(
    ("shape", "options", "why"),
    [
        ((2, 4, 64, 264), {}, "a chain with 264 columns"),
        ((2, 4, 64, 64), {"arch": "sm_75"}, "a chain of products of bf16 on sm_75"),
        ((2, 4, 64, 64), {"dtype": torch.float32}, "query is f32"),
    ],
)
def test_what_no_kernel_does_is_left(shape, options, why):
    (record, *_), _ = decided(by_hand, [shape] * 3, take="legal", **options)
    assert not record.taken and why in record.why


def test_attention_of_float32_where_tf32_is_allowed():
    torch.set_float32_matmul_precision("high")
    try:
        of = functools.partial(decided, by_hand, dtype=torch.float32)
        (legal, *_), graph = of([(2, 4, 64, 64)] * 3, take="legal")
        (record, *_), _ = of(LONG)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert legal.taken and launched(graph)
    assert not record.taken and "of tf32 was not measured" in record.why


def test_libraries_were_measured_beside_kernels_of_one_target():
    (record, *_), _ = decided(FLASH, LONG, arch="sm_80")
    assert not record.taken and "flash's attention was not measured beside" in record.why


@pytest.mark.slow
def test_a_softmax_between_products_is_predicted():
    (record,), graph = decided(by_hand, LONG)
    assert record.taken and record.computes.startswith("softmax attention")
    assert launched(graph)


@pytest.mark.slow
def test_heads_are_read_and_written_where_they_are():
    """No node but views is left between a model's rows and the kernel."""

    def model(x, y, mask):
        b, s, _ = x.shape
        q = x.view(b, s, 8, 64).transpose(1, 2)
        k, v = (repeated(y[n].view(b, s, 2, 64).transpose(1, 2), 4) for n in range(2))
        found = torch.softmax(q @ k.mT * 0.125 + mask.expand(b, 8, s, s), -1) @ v
        return found.transpose(1, 2)

    shapes = [(2, 1024, 512), (2, 2, 1024, 128), (2, 1, 1, 1024)]
    (record,), graph = decided(model, shapes, take="legal")
    assert record.taken
    q, k, v, mask = launched(graph).args[0]
    assert [tuple(one.meta["val"].shape) for one in (q, k, v, mask)] == [
        (2, 2, 4, 1024, 64), (2, 2, 1, 1024, 64), (2, 2, 1, 1024, 64), (2, 1, 1, 1, 1024)
    ]  # fmt: skip
    assert q.meta["val"].stride() == (524288, 256, 64, 512, 1)
    (result,) = next(n for n in graph.nodes if n.op == "output").all_input_nodes
    assert result.meta["val"].is_contiguous()
    names = {n.target._schema.name for n in graph.nodes if hasattr(n.target, "_schema")}
    assert not names & {"aten::clone", "aten::bmm", "aten::exp", "aten::_to_copy"}


@pytest.mark.slow
def test_pytorch_s_own_decomposition_is_attention():
    """What no kernel of PyTorch takes it computes in f32, with both operands scaled."""

    def model(q, k, v, mask):
        return attention(q, k, v, attn_mask=mask, enable_gqa=True)

    shapes = [(2, 8, 256, 64), (2, 2, 512, 64), (2, 2, 512, 64), (2, 1, 256, 512)]
    (record,), graph = decided(model, shapes, take="legal")
    assert record.taken
    program = launching.read(launched(graph).args[2])
    assert [str(tensor.dtype) for tensor in program.tensors.values()][:3] == ["bf16"] * 3


@pytest.mark.slow
def test_attention_runs_on_the_machine(monkeypatch):
    """Grouped heads in rows under a mask, launched from the graph, from the kernel's PTX."""
    import ml_dtypes
    import numpy as np

    from polygen.adapters.kernels import stored
    from polygen.adapters.torch import running, tensors

    def on_machine(runner, operands):
        program, sizes = runner._program_for(operands)
        program = stored(program, [tensors.order_of(operand) for operand in operands])
        kernel = running.KERNELS.find(program, sizes)
        arrays = (o.float().numpy().astype(ml_dtypes.bfloat16, order="K") for o in operands)
        found = kernel.emulate(*arrays)
        return torch.from_numpy(np.ascontiguousarray(found, np.float32)).bfloat16()

    def model(x, y, mask):
        q = x.view(1, 70, 2, 32).transpose(1, 2)
        k, v = (repeated(y[n].view(1, 50, 1, 32).transpose(1, 2), 2) for n in range(2))
        return (torch.softmax(q @ k.mT * 0.2 + mask, -1) @ v).transpose(1, 2)

    torch.manual_seed(0)
    operands = [torch.randn(s).bfloat16() for s in ((1, 70, 64), (2, 1, 50, 32), (1, 1, 70, 50))]
    wanted = model(*(one.float() for one in operands))
    _, graph = decided(model, [tuple(one.shape) for one in operands], take="legal")
    monkeypatch.setattr(running.Runner, "on_cpu", on_machine)
    with scope(arch="sm_90a"):
        found = torch.fx.GraphModule(torch.nn.Module(), graph)(*operands)
    assert (found.float() - wanted).abs().max() <= 0.02
