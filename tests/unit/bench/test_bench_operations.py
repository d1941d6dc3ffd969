"""Operations: one expression that polygen, PyTorch and fixed forms all come from."""

from __future__ import annotations

import pytest

from polygen.api import Fused
from polygen.bench import operations as operations_module
from polygen.bench.operations import (
    VALUE,
    Operation,
    Step,
    chain,
    operation,
    operations,
    read,
    torch_function,
)
from polygen.bench.peers.cublaslt import native
from polygen.bench.peers.triton_matmul import TILES, check_type, constants, form, grid, tiles_for
from polygen.bench.plots import passes
from polygen.bench.products import no_steps_in_place
from polygen.bench.rows import Row
from polygen.errors import BenchError
from polygen.frontend.parse import parse_expression


def made(expression, **operands):
    return Operation("o", expression, tuple((n, tuple(d.split(","))) for n, d in operands.items()))


@pytest.mark.parametrize("name", operations())
def test_polygen_traces_every_operation_and_every_library_has_its_form(name):
    op = operation(name)
    function = parse_expression(op.expression, op.names)
    row = Row(name, 256, 384, 128)
    fused = Fused(function, name, op.expression, False)
    program = fused.program(*row.signature, sizes=row.sizes)
    assert tuple(tensor.name for tensor in program.inputs) == op.names
    form(op)
    assert op.plain == (passes(name) == 0)


def test_a_chain_goes_outwards_from_the_product():
    found = chain(operation("bias_silu_mul"))
    assert found.left == ("x", False) and found.right == ("w", True)
    assert found.steps == (
        Step("add", (VALUE, "b")), Step("silu", (VALUE,)), Step("mul", (VALUE, "r")),
    )  # fmt: skip
    gelu = chain(operation("bias_gelu")).steps[-1]
    assert gelu == Step("gelu", (VALUE,), ("tanh",))
    turned = chain(made("2.0 * (x.T @ w)", x="K,M", w="K,N"))
    assert turned.left == ("x", True) and turned.steps == (Step("mul", (2.0, VALUE)),)


@pytest.mark.parametrize(
    "expression",
    ["(x @ w.T) * (x @ w.T)", "x + w", "relu(x @ w.T + (b + b))", "(x + x) @ w.T", "x @ w.T ** 2"],
)
def test_what_is_no_chain_is_refused(expression):
    with pytest.raises(BenchError, match="no chain"):
        chain(made(expression, x="M,K", w="N,K", b="N"))


def test_wrong_data_is_refused_with_its_place():
    with pytest.raises(BenchError, match=r"operations.toml, bad"):
        read({"bad": {"expression": "x @"} | {"operands": {"x": "M,K"}}})
    with pytest.raises(BenchError, match=r"operations.toml, bad"):
        read({"bad": {"operands": {"x": "M,K"}}})
    with pytest.raises(BenchError, match=r"no operation is called 'nothing'.*Known: mm"):
        operation("nothing")


@pytest.mark.parametrize(
    ("name", "epilogue", "added", "rest"),
    [
        ("mm", "DEFAULT", None, 0),
        ("bias", "BIAS", None, 0),
        ("bias_relu", "RELU_BIAS", None, 0),
        ("bias_gelu", "GELU_BIAS", None, 0),
        ("residual", "DEFAULT", "r", 0),
        ("bias_residual_relu", "RELU_BIAS", "r", 0),
        ("bias_silu_mul", "BIAS", None, 2),
        ("silu_mul", "DEFAULT", None, 2),
    ],
)
def test_cublaslt_takes_what_its_epilogue_has(name, epilogue, added, rest):
    op = operation(name)
    found = native(chain(op), {n: len(dims) for n, dims in op.operands})
    assert (found.epilogue, found.added, len(found.rest)) == (epilogue, added, rest)


def test_cublaslt_does_not_take_the_exact_gelu_nor_what_follows_an_activation():
    op = made("gelu(x @ w.T + b)", x="M,K", w="N,K", b="N")
    assert native(chain(op), {"x": 2, "w": 2, "b": 1}).epilogue == "BIAS"
    op = made("relu(x @ w.T) + r", x="M,K", w="N,K", r="M,N")
    found = native(chain(op), {"x": 2, "w": 2, "r": 2})
    assert found.activation == "relu" and found.added is None and len(found.rest) == 1


def test_triton_has_no_form_for_what_its_epilogue_lacks():
    with pytest.raises(BenchError, match="no epilogue"):
        form(made("relu(x @ w.T) + r", x="M,K", w="N,K", r="M,N"))
    with pytest.raises(BenchError, match="no epilogue"):
        form(made("exp(x @ w.T)", x="M,K", w="N,K"))


def test_a_function_may_stand_for_the_operator(monkeypatch):
    monkeypatch.setattr(operations_module, "_torch_names", lambda: {"relu": lambda z: max(z, 0)})
    op = made("relu(x @ w + b)", x="M,K", w="K,N", b="N")
    function = torch_function(op, lambda left, right: 10 * left + right)
    assert function(2, 3, 4) == 27 and function(-2, 3, 4) == 0


def test_peers_say_which_types_they_lack():
    integers = Row("bias_gelu", 256, 256, 128, "s8")
    with pytest.raises(BenchError, match="product of int8 is int32"):
        no_steps_in_place("s8", chain(integers.operation).steps)
    no_steps_in_place("s8", ())
    no_steps_in_place("e4m3", chain(integers.operation).steps)
    with pytest.raises(BenchError, match="sums are floats, those of s8"):
        check_type(integers)
    check_type(Row("mm", 256, 256, 128, "e4m3"))


def test_triton_tries_tiles_that_suit_the_rows():
    many, few = Row("mm", 4096, 4096, 100), Row("mm", 16, 4096, 4096)
    assert all(tile[0] >= 64 for tile in tiles_for(many))
    assert any(tile[0] == 16 for tile in tiles_for(few)) and len(tiles_for(few)) >= 4
    tile = TILES[0]
    assert grid(many, tile) == (32 * 16,)
    assert not constants(many, tile)["EVEN_K"] and constants(few, tile)["EVEN_K"]


@pytest.mark.parametrize(
    ("name", "count"),
    [("bias_relu", 4), ("residual", 3), ("bias_residual_relu", 7), ("silu_mul", 5)],
)
def test_passes_count_the_matrices_that_separate_kernels_move(name, count):
    assert passes(name) == count
