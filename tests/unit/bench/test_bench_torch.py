"""Operands, references and PyTorch's contenders on the CPU, where PyTorch is installed."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from polygen.bench.operations import operations
from polygen.bench.peers.cublaslt import through_torch
from polygen.bench.peers.eager import Eager
from polygen.bench.peers.joined import EagerJoined, function_of
from polygen.bench.peers.separate import Separate
from polygen.bench.products import product
from polygen.bench.rows import Row
from polygen.bench.torch_code import torch_function
from polygen.errors import BenchError

torch = pytest.importorskip("torch")
gpu = pytest.importorskip("polygen.bench.gpu")

ROWS = [
    Row("bias_gelu", 24, 40, 32), Row("mm_tt", 24, 40, 32), Row("bmm", 24, 40, 32, batch=5),
    Row("bmm_nn", 24, 40, 32, batch=5, pad=3), Row("bmm_bias_gelu_nn", 24, 40, 32, batch=5),
    Row("gated", 24, 40, 32), Row("pairs", 24, 40, 32), Row("qkv", 24, 40, 32),
]  # fmt: skip


def by_numpy(row, held):
    """The expressions, written once more."""
    x, *rest = (held[name].double().numpy() for name in row.operation.names)

    def gelu(z):
        return 0.5 * z * (1 + np.tanh(0.7978845608028654 * (z + 0.044715 * z**3)))

    def gated(x, u, v):
        a = np.einsum("mk,nk->mn", x, u)
        return a / (1 + np.exp(-a)) * np.einsum("mk,nk->mn", x, v)

    known = {
        "bias_gelu": lambda x, w, b: gelu(np.einsum("mk,nk->mn", x, w) + b),
        "mm_tt": lambda x, w: np.einsum("km,nk->mn", x, w),
        "bmm": lambda x, w: np.einsum("bmk,bnk->bmn", x, w),
        "bmm_nn": lambda x, w: np.einsum("bmk,bkn->bmn", x, w),
        "bmm_bias_gelu_nn": lambda x, w, b: gelu(np.einsum("bmk,bkn->bmn", x, w) + b),
        "gated": gated,
        "pairs": lambda x, w, y, v: x @ w.T + y @ v.T,
        "qkv": lambda x, u, v: (x @ u.T, x @ v.T),
    }
    found = known[row.op](x, *rest)
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_reference_is_the_expression_on_both_sets_of_data(row):
    held = gpu.Operands(row, "cpu")
    for gentle, data in ((False, held.timed), (True, held.gentle)):
        found = held.exact(gentle=gentle)
        found = found if isinstance(found, tuple) else (found,)
        assert [y.dtype for y in found] == [torch.float64] * len(row.results)
        for y, wanted in zip(found, by_numpy(row, data), strict=True):
            np.testing.assert_allclose(y.numpy(), wanted, 1e-9, 1e-9)
    changed = [name for name in held.timed if held.gentle[name] is not held.timed[name]]
    assert changed == [name for name in row.operation.names if name in "wuv"]
    assert all(held.gentle[n].stride() == held.timed[n].stride() for n in held.timed)
    assert [tuple(y.shape) for y in held.outs] == [*row.results]


@pytest.mark.parametrize("kind", [Separate, Eager, EagerJoined])
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_contenders_compute_the_expression(row, kind):
    work = SimpleNamespace(row=row, operands=gpu.Operands(row, "cpu"))
    work.operands.poison()
    if kind is EagerJoined and row.op not in ("gated", "qkv"):
        with pytest.raises(BenchError, match=r"no weights to join|no operand in common"):
            kind().make(work)
        return
    call = kind().make(work)
    for _ in range(2):  # in place, and right again
        frobenius, largest = gpu.errors(call(), work.operands.exact(gentle=False))
        assert frobenius < 1e-2 and largest < 2e-2


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_pytorch_s_compiler_has_one_graph_of_the_whole(row):
    held = gpu.Operands(row, "cpu")
    functions = [(torch_function(row.operation), [held.timed[n] for n in row.operation.names])]
    if row.op in ("gated", "qkv"):
        functions.append(function_of(SimpleNamespace(row=row, operands=held)))
    for function, operands in functions:
        graphs = []

        def keep(graph, _, graphs=graphs):
            graphs.append([str(node.target) for node in graph.graph.nodes])
            return graph.forward

        torch._dynamo.reset()
        compiled = torch.compile(function, backend=keep, fullgraph=True, dynamic=False)
        assert gpu.errors(compiled(*operands), held.exact(gentle=False))[0] < 1e-2
        (nodes,) = graphs
        products = sum("matmul" in node for node in nodes)
        assert products == (1 if function.__name__ == "function" else len(row.products))


def test_errors_of_attention_are_parts_of_what_it_sums_up():
    held = gpu.Operands(Row("attention_causal", 8, 8, 16, batch=2), "cpu")
    exact, terms = held.exact(gentle=False), held.exact(gentle=False, sizes=True)
    assert (terms >= exact.abs()).all() and (terms > exact.abs()).any()
    torch.testing.assert_close(terms[:, 0], held.timed["v"][:, 0].double().abs())
    off = exact.clone()
    off[1, 3, 5] += terms[1, 3, 5] / 4
    assert gpu.errors(off, exact, terms)[1] == pytest.approx(0.25)
    others = [one for one in operations().values() if not one.inner]
    assert others and not any(one.summed for one in others)


def test_errors_of_several_results_are_the_larger_and_nan_is_seen():
    exact = (torch.ones(2, 3, 4, dtype=torch.float64), torch.full((2, 2), 2.0).double())
    right = tuple(y.float() for y in exact)
    assert gpu.errors(right, exact) == (0.0, 0.0)
    off = (right[0], right[1].clone())
    off[1][1, 1] = 3
    assert gpu.errors(off, exact) == pytest.approx((0.25, 0.25))
    batch = (right[0].clone(), right[1])
    batch[0][1, 2, 3] = float("nan")
    assert all(value != value for value in gpu.errors(batch, exact))
    assert gpu.errors(batch[0], exact[0])[0] != gpu.errors(batch[0], exact[0])[0]
    with pytest.raises(ValueError, match="argument 2 is longer"):
        gpu.errors(right[:1], exact)


@pytest.mark.parametrize(
    ("op", "message"),
    [("bmm_nn", "PyTorch's functions reach no batches"), ("gated", "has 2 products")],
)
def test_without_nvmath_cublaslt_has_one_product_of_matrices(op, message):
    row = Row(op, 24, 40, 32, batch=5)
    with pytest.raises(BenchError, match=message):
        through_torch(SimpleNamespace(row=row, operands=gpu.Operands(row, "cpu")))


def test_batches_of_narrow_types_have_no_function():
    with pytest.raises(BenchError, match="no function multiplies batches of s8"):
        product("s8", batched=True)


@pytest.mark.parametrize(
    "name", ["attention", "attention_causal", "attention_soft_cap", "attention_alibi"]
)
def test_attention_in_pytorch_is_what_polygen_computes(name):
    from polygen.bench.peers.attention import Flash, factor
    from polygen.frontend.evaluate import reference
    from polygen.frontend.parse import parse_expression

    row = Row(name, 40, 40, 32, batch=3)
    made = gpu.Operands(row, "cpu")
    assert made.scratches == () and [tuple(one.shape) for one in made.outs] == list(row.results)
    held = [made.timed[name].double().numpy() for name in row.operation.names]
    wanted = reference(parse_expression(row.operation.expression, row.operation.names), held)
    assert np.abs(made.exact(gentle=False).numpy() - wanted).max() < 1e-6
    assert Eager().make(SimpleNamespace(row=row, operands=made))().shape == (3, 40, 32)
    inner = row.operation.inner
    if not inner.attention:
        with pytest.raises(BenchError, match="whole or causal"):
            Flash().make(SimpleNamespace(row=row, operands=made))
        return
    found = torch.nn.functional.scaled_dot_product_attention(
        *(made.timed[name].unsqueeze(0) for name in row.operation.names),
        is_causal=inner.attention == "causal", scale=factor(row.operation),
    )[0]  # fmt: skip
    assert np.abs(found.double().numpy() - wanted).max() < 0.05
