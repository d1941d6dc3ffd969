"""Derivatives of programs: evaluated in float64, against central differences of the program."""

from __future__ import annotations

import numpy as np
import pytest

import polygen as pg
from polygen.adapters.backward_cuts import Total
from polygen.adapters.backward_kept import keep, keep_if_possible, of_some
from polygen.adapters.backward_products import Piece
from polygen.adapters.gradients import derive
from polygen.adapters.legality import refusal, refusal_in_order
from polygen.errors import GradientError
from polygen.frontend.evaluate import evaluate

CASES = {
    "bare": (lambda x, w: x @ w.T, ["tf32[M,K]", "tf32[N,K]"]),
    "bias": (lambda x, w, b: x @ w.T + b, ["tf32[M,K]", "tf32[N,K]", "f32[N]"]),
    "relu": (lambda x, w, b: pg.relu(x @ w + b), ["tf32[M,K]", "tf32[K,N]", "f32[N]"]),
    "gelu": (lambda x, w, b: pg.gelu(x @ w.T + b), ["tf32[M,K]", "tf32[N,K]", "f32[N]"]),
    "residual": (
        lambda x, w, r: pg.silu(x @ w.T) * 0.5 + r,
        ["tf32[M,K]", "tf32[N,K]", "f32[M,N]"],
    ),
    "rows and columns": (
        lambda x, w, s, c: pg.tanh(x @ w.T * s) * c,
        ["tf32[M,K]", "tf32[N,K]", "f32[M,1]", "f32[N]"],
    ),
    "gated": (
        lambda x, u, v: pg.silu(x @ u.T) * (x @ v.T),
        ["tf32[M,K]", "tf32[N,K]", "tf32[N,K]"],
    ),
    "two results": (
        lambda x, u, v, b: (pg.sigmoid(x @ u.T + b), x @ v.T * b),
        ["tf32[M,K]", "tf32[N,K]", "tf32[N,K]", "f32[N]"],
    ),
    "both sides": (lambda x: pg.tanh(x @ x.T), ["tf32[M,K]"]),
    "rows of a batch": (
        lambda x, w, b: pg.gelu(x @ w.T + b),
        ["tf32[B,M,K]", "tf32[N,K]", "f32[N]"],
    ),
    "two batches": (lambda q, k: pg.exp(0.1 * (q @ k.mT)), ["tf32[B,H,S,D]", "tf32[B,H,T,D]"]),
    "stretched": (lambda q, k: q @ k.mT, ["tf32[B,H,S,D]", "tf32[B,1,T,D]"]),
    "heads": (
        lambda q, k: pg.einsum("bshd,bthd->bhst", q, k),
        ["tf32[B,S,H,D]", "tf32[B,T,H,D]"],
    ),
    "vector": (lambda w, x, b: pg.softplus(w @ x + b), ["tf32[M,K]", "tf32[K]", "f32[M]"]),
    "transposed": (lambda x, w, r: pg.tanh((x @ w).T) + r, ["tf32[M,K]", "tf32[K,N]", "f32[N,M]"]),
    "operand again": (lambda x, w: x @ w + pg.sin(x), ["tf32[M,K]", "tf32[K,K]"]),
    "scalar": (lambda x, w, a: pg.elu(a * (x @ w)), ["tf32[M,K]", "tf32[K,N]", "f32"]),
    "selected": (
        lambda x, w, r: pg.where(x @ w > r, pg.mish(x @ w), pg.leaky_relu(r)),
        ["tf32[M,K]", "tf32[K,N]", "f32[M,N]"],
    ),
    "perceptron": (
        lambda x, u, b, w: pg.gelu(x @ u + b) @ w + x,
        ["tf32[M,K]", "tf32[K,N]", "f32[N]", "tf32[N,K]"],
    ),
    "gates in front": (
        lambda x, u, v, w: (pg.silu(x @ u) * (x @ v)) @ w,
        ["tf32[M,K]", "tf32[K,N]", "tf32[K,N]", "tf32[N,D]"],
    ),
    "layers, returned and read again": (
        lambda x, u, v, a: ((h := pg.tanh(a * (x @ u))) @ v * h, h),
        ["tf32[M,K]", "tf32[K,K]", "tf32[K,K]", "f32"],
    ),
    "three layers": (
        lambda x, u, v, w: pg.tanh(pg.tanh(pg.sin(x @ u) @ v) @ w) + x @ u,
        ["tf32[M,K]", "tf32[K,K]", "tf32[K,K]", "tf32[K,K]"],
    ),
    "power": (lambda x: x @ x @ x, ["tf32[K,K]"]),
    "linear attention": (
        lambda q, k, v: q @ (k.mT @ v),
        ["tf32[B,S,D]", "tf32[B,S,D]", "tf32[B,S,K]"],
    ),
    "graph": (lambda a, x, w: pg.tanh(a @ (x @ w)), ["tf32[M,M]", "tf32[M,K]", "tf32[K,N]"]),
    "turned by a vector": (
        lambda x, w, y: x.T @ (pg.sigmoid(x @ w) - y),
        ["tf32[M,K]", "tf32[K]", "f32[M]"],
    ),
    "several rows": (
        lambda x, y, u, v, w: (pg.tanh(x @ u) + pg.tanh(y @ v)) @ w,
        ["tf32[M,K]", "tf32[M,D]", "tf32[K,N]", "tf32[D,N]", "tf32[N,K]"],
    ),
    "operands of two products": (
        lambda x, u, v, w: (x @ u) @ ((x @ v).mT @ (x @ w)),
        ["tf32[M,K]", "tf32[K,D]", "tf32[K,D]", "tf32[K,N]"],
    ),
    "scaled layer": (lambda x, w, a: pg.relu(x @ w) * a, ["tf32[M,K]", "tf32[K,N]", "f32"]),
    "scaled layers": (
        lambda x, w, a: pg.gelu(pg.tanh(x @ w) @ w.T) * a,
        ["tf32[M,K]", "tf32[K,N]", "f32"],
    ),
    "turned between": (
        lambda x, u, v: pg.tanh((x @ u).T) @ v,
        ["tf32[M,K]", "tf32[K,N]", "tf32[M,D]"],
    ),
    "sizes": (
        lambda x, w: pg.tanh(x @ w / np.sqrt(x.shape[1])) * (1 - x.shape[0]) / (w.shape[1] ** 2),
        ["tf32[M,K]", "tf32[K,N]"],
    ),
    "widths of their own": (
        lambda x, u, v, b: (x @ u.T, pg.tanh(x @ v.T + b)),
        ["tf32[M,K]", "tf32[N,K]", "tf32[D,K]", "f32[D]"],
    ),
    "three widths": (
        lambda x, u, v, w: (pg.sin(x @ u), x @ v, pg.silu(x @ w) * (x @ w)),
        ["tf32[M,K]", "tf32[K,N]", "tf32[K,D]", "tf32[K,T]"],
    ),
    "widths behind layers": (
        lambda x, u, v, w: ((h := pg.tanh(x @ u)) @ v, h @ w),
        ["tf32[M,K]", "tf32[K,N]", "tf32[N,D]", "tf32[N,T]"],
    ),
    "named": (lambda d, g0, r1: pg.tanh(d @ g0.T + r1), ["tf32[M,K]", "tf32[N,K]", "f32[N]"]),
}
SIZES = {"M": 4, "N": 5, "K": 3, "B": 2, "H": 3, "S": 4, "T": 5, "D": 2}


def program_of(name):
    function, signature = CASES[name]
    return pg.fuse(function, name="sample").program(*signature)


def arrays_of(program, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {t.name: [SIZES[d] if isinstance(d, str) else d for d in t.dims] for t in
              (*program.inputs, *program.outputs)}  # fmt: skip
    return {name: rng.uniform(-1.5, 1.5, shape) for name, shape in shapes.items()}


def grouped(array, groups):
    shape = [int(np.prod([array.shape[axis] for axis in axes])) for axes in groups]
    return array.reshape(shape)


def computed(program, gradient, arrays, cotangents):
    """The gradients, by the reference evaluator and NumPy."""
    known = dict(arrays) | dict(zip(gradient.cotangents, cotangents, strict=True))
    for piece in gradient.pieces:
        if isinstance(piece, Total):
            known[piece.name] = total(
                known, piece.terms, piece.extents(lambda name: np.shape(arrays[name]))
            )
            continue
        given = {
            tensor.name: grouped(known[name], groups) if tensor.dims else known[name]
            for tensor, name, groups in zip(
                piece.program.inputs, piece.operands, piece.groups, strict=True
            )
        }
        results = evaluate(piece.program, given, round_outputs=False)
        known |= zip(piece.results, results, strict=True)
    return {name: total(known, terms, np.shape(arrays[name])) for name, terms in gradient.terms}


def total(known, terms, shape):
    """The parts of a gradient, added up."""
    found = np.zeros(shape)
    for term in terms:
        part = known[term.source].sum(term.summed) if term.summed else known[term.source]
        part = part.transpose(term.order) if term.order else part
        found = found + part.reshape(shape)
    return found


def differences(program, arrays, cotangents, name, step=1e-5):
    """Central differences of the outputs, weighted with the cotangents."""

    def value(changed):
        given = {t.name: (arrays | {name: changed})[t.name] for t in program.inputs}
        outputs = evaluate(program, given, round_outputs=False)
        return sum((g * y).sum() for g, y in zip(cotangents, outputs, strict=True))

    found = np.zeros(arrays[name].shape)
    for place in np.ndindex(found.shape):
        high, low = arrays[name].copy(), arrays[name].copy()
        high[place] += step
        low[place] -= step
        found[place] = (value(high) - value(low)) / (2 * step)
    return found


def asked(name):
    """A program, its arrays, gradients of its results, and whose gradients are wanted."""
    program = program_of(name)
    arrays = arrays_of(program)
    arrays |= {t.name: 0.75 for t in program.inputs if not t.dims}
    cotangents = [arrays[tensor.name] for tensor in program.outputs]
    return program, arrays, cotangents, frozenset(t.name for t in program.inputs if t.dims)


@pytest.mark.parametrize("name", CASES)
def test_it_is_what_central_differences_give(name):
    program, arrays, cotangents, wanted = asked(name)
    gradient = derive(program, wanted)
    found = computed(program, gradient, arrays, cotangents)
    assert set(found) == wanted
    for argument in wanted:
        differ = differences(program, arrays, cotangents, argument)
        np.testing.assert_allclose(found[argument], differ, rtol=1e-7, atol=1e-7)
    read = {name for p in gradient.pieces if not isinstance(p, Total) for name in p.operands}
    assert set(gradient.saved) == read & set(program.tensors)


# What arrives has other axes than what is kept, all is linear, or more would be kept than summed.
NOTHING_KEPT = (
    "bare", "bias", "stretched", "heads", "turned by a vector", "two results", "rows and columns",
    "operand again", "selected", "widths behind layers",
)  # fmt: skip


def arrays_kept(kept, program, arrays):
    """What a forward pass stores beside its results, as pieces call it."""
    given = {tensor.name: arrays[tensor.name] for tensor in program.inputs}
    results = evaluate(kept.forward, given, round_outputs=False)
    return dict(zip(kept.names, results[len(program.outputs) :], strict=True))


@pytest.mark.parametrize("name", NOTHING_KEPT)
def test_there_is_not_always_something_to_keep(name):
    program = program_of(name)
    assert keep(program, frozenset(tensor.name for tensor in program.inputs)) is None


@pytest.mark.parametrize("name", [n for n in CASES if n not in NOTHING_KEPT])
def test_of_what_is_kept_the_gradients_are_the_same(name):
    program, arrays, cotangents, wanted = asked(name)
    kept = keep(program, wanted)
    assert kept is not None and refusal_in_order(kept.forward) is None
    known = arrays | arrays_kept(kept, program, arrays)
    found = computed(program, kept.gradient, known, cotangents)
    again = computed(program, derive(program, wanted), arrays, cotangents)
    assert set(found) == set(again) == wanted
    for argument in wanted:
        np.testing.assert_allclose(found[argument], again[argument], rtol=1e-12, atol=1e-12)
        alone = computed(program, of_some(kept, frozenset({argument})).gradient, known, cotangents)
        np.testing.assert_array_equal(alone[argument], found[argument])


@pytest.mark.parametrize(
    "name, products, without",
    [
        ("perceptron", 4, 5),
        ("gates in front", 6, 8),
        ("linear attention", 4, 5),
        ("three layers", 7, 11),
    ],
)
def test_products_between_layers_are_not_computed_again(name, products, without):
    program = program_of(name)
    wanted = frozenset(tensor.name for tensor in program.inputs)

    def count(gradient):
        pieces = [piece for piece in gradient.pieces if isinstance(piece, Piece)]
        return sum(len(piece.program.contractions) for piece in pieces)

    kept = keep(program, wanted)
    assert (count(kept.gradient), count(derive(program, wanted))) == (products, without)
    for piece in kept.gradient.pieces:
        if isinstance(piece, Piece) and not piece.factors:
            assert refusal(piece.program) is None


def test_sums_are_kept_in_the_type_that_is_multiplied():
    program = pg.fuse(lambda x, u, b, d: pg.gelu(x @ u + b) @ d).program(
        "bf16[B,S,64]", "bf16[64,128]", "f32[128]", "bf16[128,64]"
    )
    kept = keep_if_possible(program)
    (tensor,) = kept.forward.outputs[1:]
    assert (tensor.dtype.name, tensor.dims) == ("bf16", ("B", "S", 128))
    first = kept.gradient.pieces[0]
    assert first.results == ("d0 of the first part", "m0"), "the derivative, and what it was of"
    assert kept.names[0] in first.operands and len(first.program.contractions) == 1


def test_what_is_multiplied_is_made_of_the_products_that_are_kept():
    program = pg.fuse(lambda x, u, v, w: pg.relu(pg.relu(x @ u) @ v) @ w).program(
        "bf16[M,64]", "bf16[64,128]", "bf16[128,256]", "bf16[256,64]"
    )
    kept = keep_if_possible(program)
    assert sorted(kept.names) == ["v0 is kept", "v3 is kept"]
    made = [set(one.results) for one in kept.gradient.pieces]
    assert any(any(name.startswith("m0") for name in names) for names in made)
    only_first = of_some(kept, frozenset("u")).gradient
    assert len(only_first.pieces) == 3 and only_first.saved == ("x", "v", "w")


@pytest.mark.parametrize("kind, stored", [("s8", "s32"), ("f16", "f32"), ("bf16", "bf16")])
def test_sums_that_a_type_may_not_have_are_kept_as_they_are(kind, stored):
    """Whole numbers wrap in 8 bits, and f16 ends at 65504."""
    function = pg.fuse(lambda x, w, s, d: pg.gelu((x @ w.T) * s) @ d)
    wide = "bf16" if kind == "s8" else kind
    program = function.program(f"{kind}[M,K]", f"{kind}[N,K]", "f32[N]", f"{wide}[N,P]")
    kept = keep(program, frozenset("sd"))
    assert [str(one.dtype) for one in kept.forward.outputs[1:]] == [stored]


def test_a_factor_is_read_where_the_derivative_reads_it():
    program = pg.fuse(lambda x, u, b: pg.gelu(x @ u) * b.T).program(
        "bf16[64,64]", "bf16[64,64]", "s8[64,64]"
    )
    kept = keep_if_possible(program)
    reads = {a.index for s in kept.forward.statements for a in s.reads if a.name == "b"}
    assert reads == {("j", "i")}
    numbers = np.random.default_rng(5)
    arrays = {t.name: numbers.uniform(-1.5, 1.5, t.dims) for t in program.inputs}
    arrays["b"] = numbers.integers(-3, 4, (64, 64))
    arrives = [numbers.uniform(-1, 1, (64, 64))]
    wanted = frozenset("xu")
    again = computed(program, derive(program, wanted), arrays, arrives)
    found = computed(program, kept.gradient, arrays | arrays_kept(kept, program, arrays), arrives)
    for name in wanted:
        np.testing.assert_allclose(found[name], again[name], rtol=1e-9, atol=1e-9)


def test_of_one_layer_the_derivative_is_kept():
    program = pg.fuse(lambda x, w, b: pg.relu(x @ w + b)).program(
        "bf16[M,K]", "bf16[K,N]", "f32[N]"
    )
    kept = keep_if_possible(program)
    assert [str(one) for one in kept.forward.outputs] == ["y0: bf16[M, N]", "p0: bf16[M, N]"]
    first, *others = kept.gradient.pieces
    assert first.factors == (("g0", kept.names[0]),) and not first.program.contractions
    assert [len(one.program.contractions) for one in others] == [1, 1]
    assert kept.gradient.saved == ("x", "w")


def test_nothing_is_kept_where_there_is_no_derivative():
    sliced = pg.fuse(lambda x, u, d: pg.relu(x[:, ::2] @ u) @ d).program(
        "bf16[M,64]", "bf16[32,N]", "bf16[N,K]"
    )
    assert keep_if_possible(sliced) is None
    with pytest.raises(GradientError, match="Slice x outside"):
        keep(sliced, frozenset("x"))


def kinds(name, *wanted):
    program = program_of(name)
    return [piece.program.name for piece in derive(program, frozenset(wanted)).pieces]


def test_a_linear_epilogue_needs_no_product_again():
    program = program_of("bias")
    gradient = derive(program, frozenset("xwb"))
    assert [piece.program.name for piece in gradient.pieces] == ["sample_d_w", "sample_d_x"]
    assert gradient.saved == ("x", "w")
    bias = dict(gradient.terms)["b"]
    assert [(term.source, term.summed) for term in bias] == [("g0", (0,))]


def test_only_what_is_asked_for_is_computed_and_kept():
    assert kinds("gelu", "b") == ["sample_local"]
    assert kinds("gelu", "x") == ["sample_local", "sample_d_x"]
    assert derive(program_of("bare"), frozenset("x")).saved == ("w",)
    assert derive(program_of("residual"), frozenset("r")).pieces == ()


def test_what_does_not_need_the_products_is_apart():
    program = program_of("two results")
    local, plain, *_ = derive(program, frozenset("uvb")).pieces
    assert (local.program.name, plain.program.name) == ("sample_local", "sample_plain")
    assert local.program.contractions and not plain.program.contractions


def test_products_with_one_operand_are_summed_in_one_program():
    (piece,) = [
        p for p in derive(program_of("gated"), frozenset("x")).pieces if "d_x" in p.program.name
    ]
    assert len(piece.program.contractions) == 2 and refusal(piece.program) is None


def test_a_batch_of_rows_and_the_rows_are_rows():
    for piece in derive(program_of("rows of a batch"), frozenset("xw")).pieces[1:]:
        (product,) = piece.program.contractions
        assert len(product.domain) == 3 and refusal(piece.program) is None


def test_what_lies_between_is_made_again_and_reached_once():
    pieces = derive(program_of("perceptron"), frozenset("xubw")).pieces
    names = [p.name if isinstance(p, Total) else p.program.name for p in pieces]
    assert names == [
        "sample_d_m0", "m0 arrives", "sample_local", "sample_d_w", "sample_d_u", "sample_d_x",
    ]  # fmt: skip
    assert pieces[1].shape == (("x", 0), ("u", 1))
    assert "m0" in pieces[2].results and len(pieces[2].program.contractions) == 1
    assert derive(program_of("perceptron"), frozenset("w")).saved == ("x", "u", "b")


def test_what_is_read_of_what_lies_between_comes_first():
    """An activation that the second part multiplies by is made before what arrives at it."""
    pieces = derive(program_of("layers, returned and read again"), frozenset("xuv")).pieces
    made = [set(p.results) if isinstance(p, Piece) else {p.name} for p in pieces]
    again = next(at for at, names in enumerate(made) if any(n.startswith("m") for n in names))
    total = next(at for at, piece in enumerate(pieces) if isinstance(piece, Total))
    assert again < total


@pytest.mark.parametrize("name", ["bias", "relu", "gelu", "residual", "gated", "rows of a batch"])
def test_kernels_are_generated_of_what_has_products(name):
    program = program_of(name)
    wanted = frozenset(tensor.name for tensor in program.inputs)
    for piece in derive(program, wanted).pieces:
        assert refusal(piece.program) is None


def test_types_are_those_of_the_arguments():
    program = pg.fuse(lambda x, w, r: pg.relu(x @ w) + r).program(
        "bf16[M,K]", "bf16[K,N]", "f32[M,N]", out_dtype="f32"
    )
    gradient = derive(program, frozenset("xwr"))
    local, *products = gradient.pieces
    assert [str(t.dtype) for t in local.program.outputs] == ["bf16"]
    assert {str(t.dtype) for p in products for t in p.program.outputs} == {"bf16"}
    assert [term.source for term in dict(gradient.terms)["r"]] == ["g0"]


# --- refusals
def refused(function, *signature, wanted):
    with pytest.raises(GradientError) as raised:
        derive(pg.fuse(function, name="sample").program(*signature), frozenset(wanted))
    return str(raised.value)


def test_slices_have_no_gradient():
    text = refused(lambda x, w: x[:, ::2] @ w, "bf16[M,64]", "bf16[32,N]", wanted="x")
    assert "the gradient of x, of which x[i,2*k] is read" in text and "Slice x outside" in text
    slices = pg.fuse(lambda x, w: x[:, ::2] @ w).program("bf16[M,64]", "bf16[32,N]")
    assert derive(slices, frozenset("w")).pieces, "the other operand has one"


def test_8_bit_operands_have_no_gradient():
    text = refused(lambda x, w: x @ w.T, "e4m3[M,K]", "e4m3[N,K]", wanted="x")
    assert "x is e4m3" in text and "x.detach()" in text
    bias = pg.fuse(lambda x, w, b: x @ w.T + b).program("s8[M,K]", "s8[N,K]", "f32[N]")
    assert derive(bias, frozenset("b")).pieces == ()


def test_computed_operands_have_no_gradient():
    text = refused(lambda x, w: pg.silu(x) @ w, "bf16[M,K]", "bf16[K,N]", wanted="w")
    assert "S2 multiplies v1, which is computed" in text and "outside the function" in text


def test_results_over_other_axes_have_no_gradient():
    text = refused(lambda x, w: (x @ w, pg.relu((x @ w).T)), "bf16[M,K]", "bf16[K,N]", wanted="x")
    assert "results over different axes" in text and "transpose outside" in text


def test_products_read_in_two_ways_have_no_gradient():
    text = refused(lambda x: x @ x.T + (x @ x.T).T, "bf16[M,K]", wanted="x")
    assert "is read in two ways" in text


def test_products_that_are_stretched_have_no_gradient():
    text = refused(lambda x, w, b: x @ w + b, "bf16[M,K]", "bf16[K,1]", "bf16[N]", wanted="x")
    assert "the output has other axes than the product" in text
