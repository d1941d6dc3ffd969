"""Random products of ranks 1 to 4: the interpreted program equals the function run by NumPy."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from polygen.frontend import functions as pg
from polygen.frontend.build import build_program
from polygen.frontend.dtypes import BF16, F32
from polygen.frontend.evaluate import evaluate, reference
from polygen.frontend.program import Affine, Contraction, Tensor
from polygen.frontend.shapes import check_tensor

EXTENTS = {"A": 2, "B": 3, "M": 4, "N": 5, "K": 3, "L": 2}


@dataclass(frozen=True)
class Case:
    """Stored dims of each operand, and the array code over them."""

    dims: tuple[tuple[str | int, ...], ...]
    orders: tuple[tuple[int, ...], ...]
    function: object
    text: str

    def __repr__(self) -> str:
        return f"{self.text} of {self.dims}"


def named(draw):
    """The dims that a case leaves symbolic; the others are numbers, whose axes can be sliced."""
    return draw(st.sets(st.sampled_from(sorted(EXTENTS))))


def stored(draw, dims, symbols):
    """An operand of `dims`, kept under permuted, longer or missing axes; and how to get it back.

    Axes of known size may be stored longer, and sliced; axes of size 1 may be left out.
    """
    kept, key = [], []
    for dim in dims:
        extent = EXTENTS.get(dim, dim)
        if extent == 1 and draw(st.booleans()):
            key.append(None)
            continue
        symbolic = dim in symbols
        cuts = ["whole", "whole", "step", "first", "last", "backwards"]
        cut = "whole" if symbolic else draw(st.sampled_from(cuts))
        longer = {"step": 2 * extent, "first": extent + 2, "last": extent + 3}.get(cut, extent)
        bounds = {
            "step": slice(1, None, 2), "first": slice(extent), "last": slice(-extent, None),
            "backwards": slice(None, None, -1),
        }  # fmt: skip
        kept.append(dim if symbolic else longer)
        key.append(bounds.get(cut, slice(None)))
    order = draw(st.permutations(range(len(kept))))
    permuted = tuple(kept[axis] for axis in order)
    back = tuple(order.index(axis) for axis in range(len(kept)))

    def restore(array):
        return array.transpose(back)[tuple(key)]

    return permuted, restore, f"transpose{back}[{key}]"


def layout(draw, dims):
    return tuple(draw(st.permutations(range(len(dims)))))


@st.composite
def matmuls(draw):
    """Operands of a matmul whose batch dims broadcast, a bias that broadcasts to the result."""
    symbols = named(draw)
    batch = draw(st.lists(st.sampled_from(["A", "B", 1]), max_size=2))
    sum_dim, row, column = "K", "M", "N"

    def operand(last):
        leading = batch[draw(st.integers(0, len(batch))) :]
        leading = [1 if draw(st.integers(0, 3)) == 0 else dim for dim in leading]
        return (*leading, *last)

    vectors = draw(st.sampled_from([(False, False)] * 3 + [(True, False), (False, True)]))
    left = (sum_dim,) if vectors[0] else operand((row, sum_dim))
    right = (sum_dim,) if vectors[1] else operand((sum_dim, column))
    shape = [() if v else (d,) for v, d in zip(vectors, (row, column), strict=True)]
    result = [*_broadcast(left[:-2], right[:-2]), *shape[0], *shape[1]]
    bias = result[draw(st.integers(0, len(result))) :]
    bias = [1 if draw(st.integers(0, 2)) == 0 else dim for dim in bias]
    parts = [stored(draw, dims, symbols) for dims in (left, right, bias)]
    turn = draw(st.permutations(range(len(result))))

    def function(x, w, b):
        values = [restore(v) for v, (_, restore, _) in zip((x, w, b), parts, strict=True)]
        return pg.relu(values[0] @ values[1] + values[2]).transpose(turn)

    return _case(draw, parts, function, f"relu(x @ w + b).transpose{tuple(turn)}")


@st.composite
def einsums(draw):
    """Two operands over random letters; those of both and not of the output are summed."""
    letters = {"a": "A", "b": "B", "m": "M", "n": "N", "k": "K", "l": "L"}
    both = draw(st.lists(st.sampled_from("abkl"), unique=True, min_size=1, max_size=3))
    left = draw(st.permutations([*both, *draw(st.sampled_from(["m", ""]))]))
    right = draw(st.permutations([*both, *draw(st.sampled_from(["n", ""]))]))
    summed = draw(st.lists(st.sampled_from(both), unique=True, min_size=1))
    result = draw(st.permutations(sorted({*left, *right} - set(summed))))
    subscripts = f"{''.join(left)},{''.join(right)}->{''.join(result)}"
    symbols = named(draw)
    stretched = {letter for letter in both if letter in result and draw(st.integers(0, 4)) == 0}
    parts = [
        stored(draw, tuple(letters[letter] for letter in left), symbols),
        stored(draw, tuple(1 if c in stretched else letters[c] for c in right), symbols),
    ]
    scale = draw(st.booleans())

    def function(x, w):
        value = np.einsum(subscripts, parts[0][1](x), parts[1][1](w))
        return value * 2 - 1 if scale else value

    return _case(draw, parts, function, subscripts)


@st.composite
def chains(draw):
    """One to three products in a row, with pointwise code between them."""
    batch = draw(st.sampled_from([(), ("A",), ("A", "B")]))
    dims = [(*batch, "M", "K"), ("K", "L"), ("L", "N"), ("N", "K")]
    count = draw(st.integers(2, 4))
    between = draw(
        st.lists(st.sampled_from(["", "relu", "turn", "negate"]), min_size=3, max_size=3)
    )
    symbols = named(draw)
    parts = [stored(draw, given, symbols) for given in dims[:count]]

    def function(*arrays):
        values = [restore(v) for v, (_, restore, _) in zip(arrays, parts, strict=True)]
        value = values[0]
        for step, operand in zip(between, values[1:], strict=False):
            if step == "turn":
                value = (operand.T @ value.mT).mT
            else:
                value = {"relu": pg.relu, "negate": lambda v: -v}.get(step, lambda v: v)(value)
                value = value @ operand
        return value

    return _case(draw, parts, function, f"chain of {count} {between}")


def _broadcast(first, second):
    """Dims of the result; the operands' own are equal or 1, so that no name meets another."""
    longest = max(first, second, key=len)
    other = min(first, second, key=len)
    skip = len(longest) - len(other)
    return [
        dim if axis < skip or EXTENTS.get(other[axis - skip], other[axis - skip]) == 1
        else other[axis - skip]
        for axis, dim in enumerate(longest)
    ]  # fmt: skip


def _case(draw, parts, function, text):
    dims = tuple(given for given, _, _ in parts)
    # The trace knows no parameter names of *arrays; give each operand one.
    return Case(dims, tuple(layout(draw, d) for d in dims), function, text)


def program_of(case):
    names = "xwbd" if len(case.dims) == 4 else "xwb"
    tensors = [
        check_tensor(
            Tensor(name, BF16 if name != "b" or "chain" in case.text else F32, dims, order)
        )
        for name, dims, order in zip(names, case.dims, case.orders, strict=False)
    ]
    # A scalar bias is a run-time scalar, which is f32 already.
    return build_program(case.function, "k", case.text, tensors)


def check(case, seed):
    program = program_of(case)
    rng = np.random.default_rng(seed)
    shapes = [[EXTENTS.get(d, d) for d in t.dims] for t in program.inputs]
    arrays = [rng.integers(-1, 2, shape).astype(float) for shape in shapes]
    by_name = dict(zip((t.name for t in program.inputs), arrays, strict=True))
    (got,) = evaluate(program, by_name, round_outputs=False)
    expected = reference(case.function, arrays)
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got, expected)
    check_statements(program)


def check_statements(program):
    """Values are written once and before they are read; no access leaves its array."""
    shapes = {t.name: tuple(EXTENTS.get(d, d) for d in t.dims) for t in program.inputs}
    for statement in program.statements:
        ranges = {it: EXTENTS.get(extent, extent) for it, extent in statement.domain}
        assert len(ranges) == len(statement.domain)
        for access in statement.reads:
            assert len(access.index) == len(shapes[access.name])
            for index, size in zip(access.index, shapes[access.name], strict=True):
                if isinstance(index, int):
                    ends = (index,)
                elif isinstance(index, Affine):
                    ends = (index.offset, index.offset + index.scale * (ranges[index.iterator] - 1))
                else:
                    ends = (ranges[index] - 1,)
                assert all(0 <= end < size for end in ends), f"{statement}: {access}"
        assert statement.write.name not in shapes
        written = statement.write.index
        assert all(isinstance(index, str) for index in written)
        assert len(set(written)) == len(written)
        if not isinstance(statement, Contraction):
            assert set(written) == set(ranges)
        shapes[statement.write.name] = tuple(ranges[index] for index in written)
    for tensor in program.outputs:
        assert shapes[tensor.name] == tuple(EXTENTS.get(d, d) for d in tensor.dims)


seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=150, deadline=None)
@given(matmuls(), seeds)
def test_matmul_equals_numpy(case, seed):
    check(case, seed)


@settings(max_examples=150, deadline=None)
@given(einsums(), seeds)
def test_einsum_equals_numpy(case, seed):
    check(case, seed)


@settings(max_examples=80, deadline=None)
@given(chains(), seeds)
def test_chains_equal_numpy(case, seed):
    check(case, seed)


@settings(max_examples=60, deadline=None)
@given(st.one_of(matmuls(), einsums(), chains()))
def test_building_twice_gives_equal_programs(case):
    assert program_of(case) == program_of(case)
    assert str(program_of(case)) == str(program_of(case))
