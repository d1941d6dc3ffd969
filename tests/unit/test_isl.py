"""The isl wrapper: budgets, options, callbacks, counting, boxes, witnesses, what is remembered."""

import pytest

from polygen import isl, remembered
from polygen.errors import VerifyError


def test_budget_refuses_an_exploding_proof_and_restores_the_limit():
    context = isl.DEFAULT_CONTEXT
    message = "the coverage needs more than 500 isl operations"
    with (
        pytest.raises(VerifyError, match=message),
        isl.operations_budget(500, "the coverage"),
    ):
        relation = isl.Map(
            "{ F[l,e] -> [i,k] : 0<=l<32 and 0<=e<8 and i=floor(l/4)+8*(floor(e/2) mod 2) "
            "and k=2*(l mod 4)+(e mod 2)+8*floor(e/4) }"
        )
        relation.range().is_equal(isl.Set("{ [i,k] : 0<=i<16 and 0<=k<16 }"))
    assert context.get_max_operations() == 0
    assert isl.Set("{ [i] : 0<=i<3 }").is_bounded()  # the context is usable again


def test_budget_passes_other_isl_errors_on():
    with pytest.raises(isl.Error), isl.operations_budget(10_000):
        isl.Set("{ [i] : nonsense")


def test_budgets_nest():
    with isl.operations_budget(10**9):
        with isl.operations_budget(10**6):
            assert isl.DEFAULT_CONTEXT.get_max_operations() == 10**6
        assert isl.DEFAULT_CONTEXT.get_max_operations() == 10**9


def test_scheduler_options_are_restored_even_after_an_error():
    context = isl.DEFAULT_CONTEXT
    before = (context.get_schedule_outer_coincidence(), context.get_tile_scale_tile_loops())
    changed = (1 - before[0], 1 - before[1])
    options = {"outer_coincidence": changed[0], "tile_scale_tile_loops": changed[1]}
    with pytest.raises(RuntimeError), isl.scheduler_options(**options):
        assert context.get_schedule_outer_coincidence() == changed[0]
        assert context.get_tile_scale_tile_loops() == changed[1]
        raise RuntimeError
    after = (context.get_schedule_outer_coincidence(), context.get_tile_scale_tile_loops())
    assert after == before


def test_scheduler_options_refuse_an_unknown_name():
    message = "no option 'no_such_option'"
    with pytest.raises(VerifyError, match=message), isl.scheduler_options(no_such_option=1):
        pass


def test_guard_gives_back_the_exception_of_a_callback():
    guard = isl.CallbackGuard()

    def fail(_point):
        raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        guard.run(lambda: isl.Set("{ [i] : 0<=i<3 }").foreach_point(guard.wrap(fail)))


def test_guard_keeps_ast_callbacks_alive():
    guard, seen = isl.CallbackGuard(), []

    def visit(node, _build):
        seen.append(node)
        return node

    build = isl.AstBuild.from_context(isl.Set("{ : }"))
    build = guard.add(build.set_at_each_domain(guard.wrap(visit)))
    tree = isl.Schedule('domain: "{ A[i] : 0 <= i < 4 }"')
    guard.run(lambda: build.node_from_schedule(tree))
    assert seen


def test_count_and_points():
    assert isl.count(isl.Set("{ [i,j] : 0<=i<4 and 0<=j<=i }")) == 10
    relation = isl.Map("{ [i] -> [j] : 0<=i<2 and j=i+1 }")
    assert isl.points(relation) == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("text", "message"),
    [("[N] -> { [i] : 0<=i<N }", "parameters N"), ("{ [i] : 0<=i }", "unbounded")],
)
def test_count_refuses_what_isl_counts_wrongly(text, message):
    with pytest.raises(VerifyError, match=message):
        isl.count(isl.Set(text))


def test_sample_pair_takes_the_smallest_sizes():
    relation = isl.UnionMap("[K] -> { mma[i,j,k] -> copy_a[k] : 0<=i,j,k<K and K>=33 }")
    found = isl.sample_pair(relation)
    assert found is not None
    assert (found.source, found.target) == ("mma[0,0,0]", "copy_a[0]")
    assert found.parameters == (("K", 33),)
    assert str(found) == "mma[0,0,0] -> copy_a[0] with K = 33"


def test_sample_pair_of_nothing():
    assert isl.sample_pair(isl.UnionMap("{ }")) is None
    assert isl.sample_pair(isl.UnionMap("{ A[i] -> B[i] : i > 0 and i < 0 }")) is None


def test_sample_pair_is_a_member():
    relation = isl.UnionMap("[N] -> { A[i] -> B[j] : i<j<N and N > 7; C[i] -> B[i] : i > N }")
    pair = isl.sample_pair(relation)
    assert pair is not None
    assert isl.UnionMap(
        f"[N] -> {{ {pair.source} -> {pair.target} : N = {pair.parameters[0][1]} }}"
    ).is_subset(relation)


def test_canonical_text_agrees_for_split_sets():
    split = isl.Set("{ [i] : i = 1 or i = 2 }")
    assert isl.canonical(split) == isl.canonical(isl.Set("{ [i] : 1 <= i <= 2 }"))


def test_pieces_are_sorted_texts():
    union = isl.UnionMap("[N] -> { C[i] -> A[i]; A[i] -> B[i] : 0 <= i < N }")
    assert isl.pieces(union) == ("A[i] -> B[i] : 0 <= i < N", "C[i] -> A[i]")


def test_what_is_kept_of_relations_tells_names_apart():
    """isl's hash leaves names out: relations of one shape fall together, and still differ."""
    first, other = (isl.Map(f"{{ {name}[i] -> B[i + 1] : 0 <= i < 4 }}") for name in "AX")
    after = isl.Map("{ B[j] -> C[2j] }")
    assert hash(first) == hash(other)
    found = [remembered.composed(one, after) for one in (first, other, first)]
    assert [one.get_tuple_name(isl.dim_type.in_) for one in found] == ["A", "X", "A"]
    assert found[0] is found[2], "the same question is answered once"
    same = isl.Map("{ A[i] -> B[j] : j = 1 + i and 0 <= i <= 3 }")
    assert remembered.composed(same, after) is found[0], "and so is one that reads differently"
    remembered.forget()
    assert remembered.composed(first, after) is not found[0]


def test_pairs_of_one_agent_in_the_order_of_their_times():
    times = isl.Map("{ A[a, i] -> [a, i] : 0 <= a < 2 and 0 <= i < 3 }")
    for equal, wanted in ((False, "i < j"), (True, "i <= j")):
        found = remembered.smaller(times, times, 1, equal)
        box = "0 <= a < 2 and 0 <= i < 3 and 0 <= j < 3"
        assert found.is_equal(isl.Map(f"{{ A[a, i] -> A[a, j] : {wanted} and {box} }}"))
    assert isl.points(remembered.smaller(times, times, 0, False)) != isl.points(found)


def test_inputs_are_replaced_by_what_they_are_led_to():
    need = isl.Map("{ A[i] -> B[i] : 0 <= i < 6 }")
    closes = isl.Map("{ A[i] -> G[j] : 2j <= i <= 2j + 1 and 0 <= j < 2 }")
    assert remembered.moved(need, closes).is_equal(
        isl.Map("{ G[j] -> B[i] : 2j <= i <= 2j + 1 and 0 <= j < 2 }")
    )
    assert remembered.unmoved(need, closes).is_equal(isl.Map("{ A[i] -> B[i] : 4 <= i < 6 }"))
    assert remembered.moved(need, closes) is remembered.moved(need, closes)


def test_what_is_left_of_relations_in_several_pieces():
    first = isl.Map("{ A[i] -> B[i] : 0 <= i < 3; A[i] -> B[i + 7] : 5 <= i < 9 }")
    second = isl.Map("{ B[i] -> C[i] : 0 <= i < 2; B[i] -> C[0] : 9 <= i < 20 }")
    found = remembered.composed(first, second)
    assert found.is_equal(first.apply_range(second))
    rest = remembered.without(found, isl.Map("{ A[i] -> C[j] : i >= 5 }"))
    assert rest.is_equal(isl.Map("{ A[i] -> C[i] : 0 <= i < 2 }"))
    assert remembered.without(rest, rest).is_empty()


def test_points_of_a_text_are_listed_once():
    text = "{ [i] -> [i * i] : -1 <= i <= 1 }"
    with pytest.raises(isl.Error):
        remembered.points_said(text)  # not affine
    text = "{ [i] -> [-i] : -1 <= i <= 1 }"
    assert (
        remembered.points_said(text)
        == ((-1, 1), (0, 0), (1, -1))
        == tuple(isl.points(isl.Map(text)))
    )
    assert remembered.points_said(text) is remembered.points_said(text)
