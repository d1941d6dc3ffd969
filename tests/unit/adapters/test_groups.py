"""Groups of a graph's nodes, by the rules, and what becomes of them; no other library is needed."""

from __future__ import annotations

import operator

import pytest

import polygen as pg
from polygen.adapters import rules
from polygen.adapters.gain import bare, pointwise_time, predicted
from polygen.adapters.graphs import Graph, Node, placed
from polygen.adapters.groups import groups, program_of
from polygen.adapters.legality import refusal
from polygen.errors import UnsupportedProgram
from polygen.frontend.dtypes import BF16, BOOL, F32, S8
from polygen.hardware.device import device

M, N, K = 64, 128, 32


class Making:
    """A graph, node by node; each method gives the name of what it adds."""

    def __init__(self):
        self.nodes = {}

    def add(self, kind, reads, shape, dtype=BF16, compute=None, **rest):
        name = f"n{len(self.nodes)}"
        self.nodes[name] = Node(name, kind, tuple(reads), shape, dtype, compute, **rest)
        return name

    def given(self, *shape, dtype=BF16):
        return self.add("other", (), shape, dtype)

    def product(self, x, w, shape=(M, N)):
        return self.add("product", (x, w), shape, compute=operator.matmul, text="mm")

    def map(self, function, *reads, numbers=(), dtype=BF16, shape=None, text=""):
        shape = shape or self.nodes[reads[0]].shape
        return self.add("pointwise", reads, shape, dtype, function, text=text, numbers=numbers)

    def cast(self, x, dtype):
        shape = self.nodes[x].shape
        return self.add("pointwise", (x,), shape, dtype, lambda v: v, cast=True)

    def view(self, x, *shape):
        return self.add("view", (x,), shape, self.nodes[x].dtype, lambda v: v)

    def opaque(self, x, *shape, dtype=BF16):
        return self.add("other", (x,), shape or self.nodes[x].shape, dtype)

    def graph(self, *results):
        return Graph(dict(self.nodes), frozenset(results))


@pytest.fixture
def made():
    return Making()


def layer(made, depth=K):
    x, w, b = made.given(M, depth), made.given(depth, N), made.given(N)
    z = made.product(x, w)
    return x, w, b, z


def found(graph, **options):
    return [set(group.members) for group in groups(graph, **options)]


def test_a_bare_product_is_no_group(made):
    *_, z = layer(made)
    assert found(made.graph(z)) == []
    assert found(made.graph(made.cast(z, F32))) == []


def test_a_product_of_what_another_makes_joins_their_sum(made):
    x, w, _, z = layer(made)
    a, c = made.given(K, 8), made.given(8, N)
    t = made.product(x, a, (M, 8))
    u = made.product(made.view(made.view(t, 2, M // 2, 8), M, 8), c)
    s = made.map(operator.add, z, made.map(operator.mul, u, u))
    (group,) = groups(made.graph(s))
    assert {z, t, u, s} <= set(group.members) and group.domain == (M, N)
    assert [name for name, _ in group.operands] == [x, w, a, c]
    assert all(t not in one.members for one in groups(made.graph(s, t)))  # which is read besides


def test_a_product_of_what_other_rows_make_reads_it(made):
    *_, z = layer(made)
    t = made.product(made.given(M, K), made.given(K, 8), (M, 8))
    s = made.map(operator.add, z, made.product(t, made.given(8, N)))
    (group,) = groups(made.graph(s))
    assert t not in group.members and t in dict(group.operands)


def test_pointwise_work_follows_a_product(made):
    x, w, b, z = layer(made)
    s = made.map(operator.add, z, b)
    y = made.map(pg.relu, s)
    graph = made.graph(y)
    (group,) = groups(graph)
    assert group.members == (z, s, y) and group.outputs == (y,)
    assert group.operands == ((x, (M, K)), (w, (K, N)), (b, (N,)))
    program, sizes = program_of(graph, group, "layer")
    assert [str(tensor) for tensor in (*program.inputs, *program.outputs)] == [
        "a0: bf16[D0, D1]", "a1: bf16[D1, D3]", "a2: bf16[D3]", "y0: bf16[D0, D3]"
    ]  # fmt: skip
    assert sizes == {"D0": M, "D1": K, "D3": N} and refusal(program) is None


def test_what_is_read_outside_is_a_result(made):
    *_, z = layer(made)
    y = made.map(pg.gelu, z)
    (group,) = groups(made.graph(y, z))
    assert group.outputs == (z, y)


def test_products_that_meet_are_one_group(made):
    x, _, b, z = layer(made)
    v = made.given(K, N)
    t = made.product(x, v)
    s = made.map(operator.add, t, b)  # on the way to where they meet
    y = made.map(operator.mul, made.map(pg.silu, z), s)
    graph = made.graph(y)
    (group,) = groups(graph)
    assert {z, t, s, y} <= set(group.members)
    program, _ = program_of(graph, group, "gated")
    assert len(program.contractions) == 2 and refusal(program) is None


def test_products_over_other_domains_do_not_meet(made):
    _, _, _, z = layer(made)
    other = made.product(made.given(M, K), made.given(K, 1), (M, 1))
    y = made.map(operator.add, z, other)
    assert found(made.graph(y)) == [{z, y}]


def heads(made, *columns):
    """Products of one value with several weights, over outputs of so many columns."""
    x = made.given(M, K)
    return x, [made.product(x, made.given(K, n), (M, n)) for n in columns]


def test_products_of_one_operand_may_share_a_kernel(made):
    x, (q, k, v) = heads(made, N, 2 * N, 2 * N)
    y = made.map(pg.gelu, v)
    graph = made.graph(q, k, y)
    (group,) = groups(graph)
    assert group.members == (q, k, v, y) and group.outputs == (q, k, y)
    assert [part.members for part in group.parts] == [(q,), (k,), (v, y)]
    assert [operand for operand, _ in group.operands].count(x) == 1
    made_of, _ = program_of(graph, group, "heads")
    assert len(made_of.contractions) == 3 and refusal(made_of) is None
    assert [set(one.members) for one in groups(made.graph(q, k, y), beside=())] == [{v, y}]


def test_products_that_wait_for_each_other_share_no_kernel(made):
    x, (q, k) = heads(made, N, 2 * N)
    later = made.product(x, made.opaque(q, K, 64), (M, 64))  # its weight comes of the first
    (group,) = groups(made.graph(k, later))
    assert set(group.members) == {q, k}
    alone = Making()
    x, (q,) = heads(alone, K)
    after = alone.product(x, q, (M, K))
    assert found(alone.graph(after)) == []


def test_products_of_other_operands_share_no_kernel(made):
    _, (q,) = heads(made, N)
    _, (k,) = heads(made, 2 * N)
    assert found(made.graph(q, k)) == []


def test_a_pair_and_a_product_share_no_kernel(made):
    _, (gate, up, q) = heads(made, N, N, 2 * N)
    y = made.map(operator.mul, made.map(pg.silu, gate), up)
    (group,) = groups(made.graph(y, q))
    assert q not in group.members and not group.parts


def test_views_that_split_rows_are_seen_through(made):
    _, _, b, z = layer(made)
    split = made.view(z, 2, M // 2, N)
    r = made.given(2, M // 2, N)
    y = made.map(operator.add, made.map(operator.add, split, b), r)
    graph = made.graph(y)
    (group,) = groups(graph)
    assert group.members[:2] == (z, split) and group.outputs == (y,)
    assert dict(group.operands)[r] == (M, N)
    assert program_of(graph, group, "rows")[0].outputs[0].dims == ("D0", "D3")


def test_views_that_split_columns_end_a_group(made):
    *_, z = layer(made)
    y = made.map(pg.relu, z)
    heads = made.add("other", (y,), (M, 4, N // 4), BF16)
    assert found(made.graph(made.map(pg.exp, heads))) == [{z, y}]


def test_views_and_wider_casts_at_the_end_stay_outside(made):
    *_, z = layer(made)
    y = made.map(pg.relu, z)
    wide = made.cast(made.view(y, 2, M // 2, N), F32)
    mean = made.opaque(wide, 2, M // 2, 1, dtype=F32)
    (group,) = groups(made.graph(mean, wide))
    assert group.members == (z, y) and group.outputs == (y,)


def test_narrow_casts_at_the_end_are_results(made):
    *_, z = layer(made)
    y = made.cast(made.map(pg.exp, made.cast(z, F32), dtype=F32), BF16)
    (group,) = groups(made.graph(y))
    assert group.outputs == (y,)


def test_nothing_outside_stands_between_two_members(made):
    *_, z = layer(made)
    a = made.map(pg.relu, z)
    total = made.opaque(a, M, 1)
    y = made.map(operator.mul, a, total)
    (group,) = groups(made.graph(y))
    assert group.members == (z, a), "the sum needs all of a row, so that y comes after it"


def test_groups_do_not_wait_for_each_other(made):
    _, w, _, z = layer(made)
    t = made.product(made.given(M, K), w)
    first = made.map(pg.relu, z)  # z's group gives this to t's
    second = made.map(pg.relu, t)  # and t's gives this to z's
    in_first = made.map(operator.mul, first, made.opaque(second))
    in_second = made.map(operator.mul, second, made.opaque(first))
    graph = made.graph(in_first, in_second)
    one, other = found(graph)
    assert {z, first, in_first} == one
    assert {t, second} == other, "with the last one each would need the other's result first"


def test_functions_of_what_is_kept_are_computed_inside(made):
    """The backward pass of an activation: g @ w.T times a function of a kept matrix."""
    *_, d = layer(made)
    kept = made.given(M, N)
    s = made.map(pg.sigmoid, kept)
    slope = made.map(operator.mul, s, made.map(lambda v: 1.0 - v, s))
    y = made.map(operator.mul, d, slope)
    graph = made.graph(y)
    (group,) = groups(graph)
    assert [name for name, _ in group.operands][-1] == kept
    assert {s, slope, y} <= set(group.members)
    shared = made.graph(y, s)  # also read elsewhere: then it is there already
    (group,) = groups(shared)
    assert s in dict(group.operands) and slope in group.members


def test_masks_are_computed_and_not_read(made):
    *_, z = layer(made)
    mask = made.given(M, N, dtype=BOOL)
    y = made.map(lambda m, v: pg.where(m, v, 0.0), mask, z, shape=(M, N))
    assert found(made.graph(y)) == []
    positive = made.map(lambda v: v > 0.0, z, dtype=BOOL)
    y = made.map(lambda m, v: pg.where(m, v, 0.0), positive, z)
    assert found(made.graph(y)) == [{z, positive, y}]


def test_masks_of_what_is_read_come_along(made):
    *_, z = layer(made)
    r = made.given(M, N)
    below = made.map(lambda v: v < 0.0, r, dtype=BOOL)
    both = made.map(pg.logical_and, made.map(lambda v: v > 0.0, z, dtype=BOOL), below, dtype=BOOL)
    y = made.map(lambda m, v: pg.where(m, v, 0.0), both, z)
    (group,) = groups(made.graph(y))
    assert below in group.members and group.operands[-1] == (r, (M, N))
    assert all(both not in group.members for group in groups(made.graph(y, below)))


def test_a_mask_cannot_be_a_result(made):
    *_, z = layer(made)
    positive = made.map(lambda v: v > 0.0, z, dtype=BOOL)
    y = made.map(lambda m, v: pg.where(m, v, 0.0), positive, z)
    graph = made.graph(y, positive)
    (group,) = groups(graph)
    with pytest.raises(UnsupportedProgram, match=f"the result {positive} is no float"):
        program_of(graph, group, "masked")


def test_operands_of_other_types_are_refused(made):
    x, w = made.given(M, K, dtype=None), made.given(K, N, dtype=None)
    y = made.map(pg.relu, made.product(x, w))
    graph = made.graph(y)
    (group,) = groups(graph)
    with pytest.raises(UnsupportedProgram, match="elements that kernels do not read"):
        program_of(graph, group, "wide")
    narrow = Making()
    y = narrow.map(pg.relu, narrow.product(narrow.given(M, K, dtype=S8), narrow.given(K, N)))
    graph = narrow.graph(y)
    (group,) = groups(graph)
    with pytest.raises(pg.PolygenError, match="a0 is s8, a1 is bf16"):
        program_of(graph, group, "mixed")


@pytest.mark.parametrize(
    ("argument", "own", "domain", "wanted"),
    [
        ((N,), (M, N), (M, N), (N,)),
        ((M, 1), (M, N), (M, N), (M, 1)),
        ((1, N), (M, N), (M, N), (1, N)),
        ((K,), (M, N), (M, N), None),
        ((2, 3, N), (2, 3, N), (6, N), (6, N)),
        ((2, 3, 1), (2, 3, N), (6, N), (6, 1)),
        ((N,), (2, 3, N), (6, N), (N,)),
        ((1, 1, N), (2, 3, N), (6, N), (N,)),
        ((2, 1, N), (2, 3, N), (6, N), None),
        ((3, N), (2, 3, N), (6, N), None),
        (("b", "s", N), ("b", "s", N), ("b*s", N), ("b*s", N)),
    ],
)
def test_where_arguments_are_read(argument, own, domain, wanted):
    assert placed(argument, own, domain) == wanted


# --- patterns
def test_a_gelu_that_was_taken_apart_is_one_again(made):
    *_, z = layer(made)
    half = made.map(lambda v: 0.5 * v, z, numbers=(0.5,), text="mul")
    inner = made.map(lambda v: v * 0.7071, z, numbers=(0.7071067811865476,), text="mul")
    plus = made.map(
        lambda v: v + 1.0, made.map(pg.erf, inner, text="erf"), numbers=(1.0,), text="add"
    )
    y = made.map(operator.mul, half, plus, text="mul")
    graph = made.graph(y).with_patterns(rules.PATTERNS)
    (group,) = groups(graph)
    assert group.members == (z, y)
    program, _ = program_of(graph, group, "layer")
    assert [statement.function for statement in program.pointwise] == ["gelu", "cast"]


def test_another_constant_is_no_gelu(made):
    *_, z = layer(made)
    half = made.map(lambda v: 0.5 * v, z, numbers=(0.5,), text="mul")
    inner = made.map(lambda v: v * 0.8, z, numbers=(0.8,), text="mul")
    plus = made.map(
        lambda v: v + 1.0, made.map(pg.erf, inner, text="erf"), numbers=(1.0,), text="add"
    )
    y = made.map(operator.mul, half, plus, text="mul")
    assert len(found(made.graph(y).with_patterns(rules.PATTERNS))[0]) == 6


def test_a_silu_that_was_taken_apart_is_one_again(made):
    *_, z = layer(made)
    e = made.map(pg.exp, made.map(operator.neg, z, text="neg"), text="exp")
    y = made.map(operator.truediv, z, made.map(lambda v: v + 1.0, e, numbers=(1.0,), text="add"),
                 text="div")  # fmt: skip
    graph = made.graph(y, e).with_patterns(rules.PATTERNS)
    (group,) = groups(graph)
    program, _ = program_of(graph, group, "layer")
    assert "silu" in [statement.function for statement in program.pointwise]
    assert e in group.members, "what is read elsewhere stays"


# --- rules of one's own
def test_a_rule_can_be_added_and_has_the_last_word(made):
    *_, z = layer(made)
    y = made.map(pg.relu, z)
    only_views = [rules.views_are_seen_through]
    assert found(made.graph(y), rules=only_views) == []

    @rules.rule
    def sums_too(graph, group, node):
        return frozenset({node.name}) if node.text == "mine" else rules.NOTHING

    try:
        mine = made.add("other", (y,), (M, N), BF16, pg.exp, text="mine")
        assert found(made.graph(mine)) == [{z, y, mine}]
    finally:
        rules.RULES.remove(sums_too)
    assert found(made.graph(mine)) == [{z, y}]


# --- the gain
def program(function, *signature):
    return pg.fuse(function, name="sample").program(*signature)


LAYER = ("bf16[M,K]", "bf16[N,K]", "bf16[N]")
HOPPER = device("sm_90a")


def test_a_library_s_bias_gains_nothing():
    bias = program(lambda x, w, b: x @ w.T + b, *LAYER)
    sizes = {"M": 4096, "N": 4096, "K": 1024}
    assert pointwise_time(bias, HOPPER, sizes) == 0.0
    assert predicted(bias, HOPPER, sizes).ratio < 1.02


def test_what_autograd_keeps_is_written_by_the_library_too():
    sizes = {"M": 8192, "N": 8192, "K": 1024}
    plain = program(lambda x, w, b: pg.gelu(x @ w.T + b), *LAYER)
    kept = program(lambda x, w, b: (pg.gelu(x @ w.T + b), x @ w.T + b), *LAYER)
    assert pointwise_time(kept, HOPPER, sizes) == pointwise_time(plain, HOPPER, sizes) > 0
    products = program(lambda x, u, v: (x @ u.T, x @ v.T), "bf16[M,K]", "bf16[N,K]", "bf16[N,K]")
    assert pointwise_time(products, HOPPER, sizes) == 0
    scaled = program(lambda x, w: 2.0 * (x @ w.T), *LAYER[:2])
    assert pointwise_time(scaled, HOPPER, sizes) > 0


def test_the_gain_is_larger_the_shorter_the_sums():
    gelu = program(lambda x, w, b: pg.gelu(x @ w.T + b), *LAYER)
    short, long = (
        predicted(gelu, HOPPER, {"M": 8192, "N": 8192, "K": k}).ratio for k in (256, 8192)
    )
    assert short > 1.2 > long


def test_matrices_that_are_read_and_written_count():
    sizes = {"M": 8192, "N": 8192, "K": 1024}
    plain = program(lambda x, w: pg.gelu(x @ w.T), *LAYER[:2])
    residual = program(lambda x, w, r: pg.gelu(x @ w.T) + r, *LAYER[:2], "bf16[M,N]")
    more = pointwise_time(residual, HOPPER, sizes) - pointwise_time(plain, HOPPER, sizes)
    assert more == pytest.approx(2 * 8192 * 8192 / (0.8451 * 4800 * 1e3), rel=1e-3)


def test_a_product_alone_is_a_program_of_its_own():
    gated = program(
        lambda x, u, v: pg.silu(x @ u.T) * (x @ v.T), "bf16[M,K]", "bf16[N,K]", "bf16[N,K]"
    )
    alone = [bare(gated, product) for product in gated.contractions]
    assert [[t.name for t in one.inputs] for one in alone] == [["x", "u"], ["x", "v"]]
    assert all(refusal(one) is None and len(one.statements) == 2 for one in alone)
