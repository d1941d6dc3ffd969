"""Operations: one expression that polygen, PyTorch and fixed forms all come from."""

from __future__ import annotations

import pytest

from polygen.api import Fused
from polygen.bench import torch_code
from polygen.bench.operations import (
    VALUE,
    Operation,
    Step,
    chain,
    chains,
    fixed_forms,
    operation,
    operations,
    read,
    results,
    value,
)
from polygen.bench.peers.cublaslt import native, ranks_of
from polygen.bench.peers.cupy_cublas import together
from polygen.bench.peers.in_turn import Stage, in_turn
from polygen.bench.peers.joined import joined
from polygen.bench.peers.triton_matmul import TILES, check_type, constants, form, grid, tiles_for
from polygen.bench.plots import passes
from polygen.bench.products import no_steps_in_place
from polygen.bench.rows import Row
from polygen.bench.torch_code import torch_function
from polygen.errors import BenchError
from polygen.frontend.parse import parse_expression


def made(expression, **operands):
    return Operation("o", expression, tuple((n, tuple(d.split(","))) for n, d in operands.items()))


@pytest.mark.parametrize("name", operations())
def test_polygen_traces_every_operation_and_every_library_has_its_form(name):
    op = operation(name)
    function = parse_expression(op.expression, op.names)
    row = Row(name, 256, 384, 128, batch=4)
    fused = Fused(function, name, op.expression, False)
    program = fused.program(*row.signature, sizes=row.symbols)
    assert tuple(tensor.name for tensor in program.inputs) == op.names
    assert len(program.contractions) == len(row.products)
    assert len(program.outputs) == len(row.results)
    assert op.plain == (passes(name) == 0 and len(chains(op)) == 1)
    for found in chains(op):
        together(found.steps)
        native(found, ranks_of(row))


@pytest.mark.parametrize("name", operations())
def test_triton_has_the_form_of_one_product_of_matrices(name):
    if len(chains(operation(name))) == 1 and "B" not in operation(name).dims:
        form(operation(name))
    else:
        with pytest.raises(BenchError, match=r"no batches|2 products|none of its"):
            form(operation(name))


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


def test_several_products_are_chains_that_take_the_values_of_later_ones():
    gate, up = chains(operation("gated"))
    assert gate.left == up.left == ("x", False)
    assert (gate.right, up.right) == (("u", True), ("v", True))
    assert gate.steps == (Step("silu", (VALUE,)), Step("mul", (VALUE, value(1))))
    assert up.steps == () and results(operation("gated")) == (0,)
    one, two = chains(operation("pairs"))
    assert (one.left, two.left) == (("x", False), ("y", False))
    assert one.steps == (Step("add", (VALUE, value(1))),) and two.steps == ()
    assert results(operation("qkv")) == (0, 1)
    three = made("relu(x @ u + y @ v) * tanh(x @ v), y @ u", x="M,K", y="M,K", u="K,N", v="K,N")
    assert [len(c.steps) for c in chains(three)] == [3, 0, 1, 0] and results(three) == (0, 3)
    with pytest.raises(BenchError, match="has 2 products"):
        chain(operation("gated"))
    with pytest.raises(BenchError, match="no chain"):
        chains(made("(x @ w.T, x @ w.T)", x="M,K", w="N,K"))


def test_stages_run_from_the_last_to_the_first():
    told = []

    def stage(number):
        return Stage(lambda: told.append(number) or number, (lambda v: v * 10, lambda v: v + 1))

    assert in_turn(operation("gated"), [stage(1), stage(2)])() == 11 and told == [2, 1]
    assert in_turn(operation("qkv"), [stage(1), stage(2)])() == (11, 21)


def test_weights_of_products_with_one_left_operand_are_joined():
    found = joined(operation("gated"))
    assert (found.left, found.weights, found.turned) == ("x", ("u", "v"), True)
    assert found.rest == "silu(part0) * part1" and found.parts == ("part0", "part1")
    assert found.others == () and joined(operation("qkv")).rest == "(part0, part1)"
    held = joined(made("x @ u + b, r * (x @ v)", x="M,K", u="K,N", b="N", r="M,N", v="K,N"))
    assert held.others == ("b", "r") and not held.turned
    for name, message in (("pairs", "no operand in common"), ("mm", "no weights to join")):
        with pytest.raises(BenchError, match=message):
            joined(operation(name))
    with pytest.raises(BenchError, match="x is transposed"):
        joined(made("x.T @ u + x.T @ v", x="K,M", u="K,N", v="K,N"))


def test_cupy_s_steps_can_share_a_kernel():
    assert together(chains(operation("gated"))[0].steps) == (
        "z = z / (1.f + __expf(-z)); z = z * b0", [value(1)],
    )  # fmt: skip
    text, names = together(chain(operation("bias_residual_relu")).steps)
    assert text == "z = z + b0; z = z + b1; z = z > 0.f ? z : 0.f" and names == ["b", "r"]
    with pytest.raises(BenchError, match="no kernel does exp"):
        together(chain(made("exp(x @ w)", x="M,K", w="K,N")).steps)


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


def test_cublaslt_adds_the_value_of_another_product_and_biases_batches():
    pairs, gated = operation("pairs"), operation("gated")
    ranks = ranks_of(Row("pairs", 1, 2, 3))
    assert ranks == {"x": 2, "w": 2, "y": 2, "v": 2, value(0): 2, value(1): 2}
    found = native(chains(pairs)[0], ranks)
    assert (found.epilogue, found.added, found.rest) == ("DEFAULT", value(1), ())
    assert len(native(chains(gated)[0], ranks_of(Row("gated", 1, 2, 3))).rest) == 2
    batch = Row("bmm_bias_gelu_nn", 1, 2, 3, batch=4)
    found = native(chain(batch.operation), ranks_of(batch))
    assert (found.epilogue, found.added, found.rest) == ("GELU_BIAS", None, ())
    added = made("x @ w + r", x="B,M,K", w="B,K,N", r="B,M,N")
    assert native(chain(added), {"x": 3, "w": 3, "r": 3}).added == "r"
    assert native(chain(added), {"x": 3, "w": 3, "r": 2}).added is None, "not one for each product"


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
    monkeypatch.setattr(torch_code, "_torch_names", lambda: {"relu": lambda z: max(z, 0)})
    op = made("relu(x @ w + b)", x="M,K", w="K,N", b="N")
    function = torch_function(op, lambda left, right: 10 * left + right)
    assert function(2, 3, 4) == 27 and function(-2, 3, 4) == 0


def test_a_function_is_none_that_pytorch_s_compiler_skips(monkeypatch):
    """It takes code without builtins for the constructor of a named tuple."""
    monkeypatch.setattr(torch_code, "_torch_names", dict)
    assert torch_function(operation("pairs")).__builtins__["len"] is len


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
    [
        ("bias_relu", 4),
        ("residual", 3),
        ("bias_residual_relu", 7),
        ("silu_mul", 5),
        ("gated", 5),
        ("pairs", 3),
        ("qkv", 0),
        ("bmm_bias_gelu_nn", 4),
    ],
)
def test_passes_count_the_matrices_that_separate_kernels_move(name, count):
    assert passes(name) == count


def test_a_product_by_groups_is_a_product_that_libraries_of_fixed_forms_have_not():
    op = operation("grouped_gated")
    first, second = chains(op)
    assert (first.left, first.right, first.ends) == (("x", False), ("u", True), "ends")
    assert [step.function for step in first.steps] == ["silu", "mul"]
    assert (second.right, second.ends, second.steps) == (("v", True), "ends", ())
    assert op.ends == {"ends"} and operation("gated").ends == frozenset()
    for refused in (fixed_forms, chain):
        with pytest.raises(BenchError, match="products by groups of rows are none of its"):
            refused(operation("grouped"))


def test_pytorch_multiplies_group_by_group_where_it_has_no_product_of_its_own():
    torch = pytest.importorskip("torch")
    function = torch_function(operation("grouped"))
    x, w = torch.randn(7, 4, dtype=torch.float64), torch.randn(3, 5, 4, dtype=torch.float64)
    found = function(x, w, torch.tensor([2, 2, 7]))
    assert torch.equal(found[:2], x[:2] @ w[0].T)
    assert torch.equal(found[2:], x[2:] @ w[2].T)
