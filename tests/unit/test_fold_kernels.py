"""What a kernel with folds says of itself, and what of it is saved."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from matrix import roles, small

import polygen as pg
from polygen.errors import VerifyError
from polygen.kernel import Kernel
from polygen.lower.result_work import Epilogue as Pairs
from polygen.lower.verify_folds import _check_order
from polygen.schedule.model import Epilogue

PAIRS = small(epilogue=Epilogue(through="registers"))
SIZES = {"M": 1000, "N": 500, "K": 64}


@pg.fuse
def statistics(x, w):
    v = x @ w.T
    return v, np.sum(v, axis=1), np.argmax(v, axis=0), np.max(v, keepdims=True)


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return statistics.compile("bf16[M,K]", "bf16[N,K]", arch="sm_80", schedule=PAIRS)


def test_the_workspace_has_a_number_for_every_component_of_every_part(kernel):
    """Tiles of 32 x 32 with four warps: parts for every 16 rows and columns, of whole tiles."""
    m, n = (-(-SIZES[d] // 32) * 2 for d in "MN")
    assert kernel.workspace(SIZES) == 4 * (n * 1000 + 2 * m * 500 + m * n)
    assert kernel.workspace({**SIZES, "M": 1}) == 4 * (n * 1 + 2 * 2 * 500 + 2 * n)


def test_the_workspace_is_that_of_the_kernel_that_runs():
    """A choice that spills is replaced when it is compiled, by one with other parts."""
    loss = pg.fuse(lambda x, w, y: ((x @ w.T - y) ** 2).mean(), name="loss")
    sizes = {"M": 4096, "N": 4096, "K": 512}
    made = loss.compile("bf16[M,K]", "bf16[N,K]", "bf16[M,N]", arch="sm_90a", sizes=sizes)
    asked = made.workspace(sizes)
    parts = made.compiled().passes.plan.following.parts
    assert asked == sum(4 * one.elements(sizes) for one in parts) > 0


def test_without_folds_there_is_none():
    plain = pg.fuse(lambda x, w: x @ w.T).compile("bf16[M,K]", "bf16[N,K]", arch="sm_80")
    assert plain.workspace(SIZES) == 0
    assert "workspace" not in plain.source and plain.sums.folds == ()


def test_the_order_of_terms_is_told(kernel):
    assert kernel.deterministic
    total, index, most = map(str, kernel.sums.folds)
    assert re.match(r"v2: sum, elements of a lane in their order, 2 by turns; lanes", total)
    assert "ceil(N / 32) * 2 part(s), every 16th in the order of their numbers" in total
    assert index == "v4: argmax, the same in any order"
    assert most == "v6: max, the same in any order"
    shown = kernel.show("plan")
    assert total in shown and "every term is in one part" in "\n".join(
        map(str, kernel.passes.plan.proofs)
    )


def test_results_that_share_a_launch_are_told_as_its_blocks_combine_them():
    """As many results of matrices as of rows: their blocks have a result each, of both."""
    both = pg.fuse(lambda x, w: (np.sum(x @ w, axis=(1, 2)), np.sum(x @ w, axis=(0, 2))))
    made = both.compile("bf16[64,64,K]", "bf16[64,K,N]", arch="sm_80")
    (group,) = made.passes.plan.following.groups
    assert group.lanes == 32 and len(group.folds) == 2
    shared = "every 512th in the order of their numbers, then lanes whose numbers differ by 1, 2, "
    assert all(shared in str(one) for one in made.sums.folds)


def test_sums_of_other_tiles_are_of_another_class(kernel):
    other = statistics.compile(
        "bf16[M,K]", "bf16[N,K]", arch="sm_90a", schedule=roles(through="registers")
    )
    assert other.sums.text != kernel.sums.text and "v2: sum" in kernel.sums.text
    assert "argmax" not in kernel.sums.text  # no bit depends on its order


def test_invariant_dims_with_folds_that_select():
    function = pg.fuse(lambda x, w: np.max(x @ w.T, axis=1))
    made = [
        function.compile("bf16[M,K]", "bf16[N,K]", arch="sm_80", invariant=("M",), sizes={"M": m})
        for m in (1, 4096)
    ]
    assert made[0].sums.text == made[1].sums.text


def test_a_saved_kernel_has_both_launches(kernel, tmp_path):
    loaded = Kernel.load(kernel.save(tmp_path))
    assert loaded._generated == kernel._generated
    assert loaded.workspace(SIZES) == kernel.workspace(SIZES) > 0
    header = (tmp_path / "pg_statistics.h").read_text()
    assert "pg_statistics_workspace_bytes(int M, int K, int N)" in header
    assert "enum { pg_statistics_folds_threads = 512 };" in header


def test_names_of_arguments_are_kept_apart():
    """Arrays may be called as the kernel's own things are."""
    function = pg.fuse(lambda workspace, fold: (np.sum(workspace @ fold.T, axis=1),), name="named")
    made = function.compile("bf16[M,K]", "bf16[unfold,K]", arch="sm_80", schedule=PAIRS)
    report = made.check({"M": 40, "unfold": 24, "K": 32})
    assert report.ok, str(report)


def test_folds_without_a_matrix_are_left_to_roles():
    """Nothing is stored: what stores of registers cost is not counted, what indices cost is."""
    nearest = pg.fuse(lambda x, c, norms: np.argmin(norms - 2 * (x @ c.T), axis=1))
    made = nearest.compile(
        "bf16[M,K]", "bf16[N,K]", "f32[N]", arch="sm_90a", sizes={"M": 16384, "N": 4096, "K": 128}
    )
    assert made.schedule.specialised


def test_what_is_at_once_is_told_and_comes_in_the_order_of_its_columns():
    function = pg.fuse(lambda x, w: (np.argmax(x @ w.T, axis=1), pg.logsumexp(x @ w.T, axis=1)))
    made = function.compile("bf16[M,K]", "bf16[N,K]", arch="sm_80", schedule=PAIRS)
    index, total = made.sums.folds
    assert index.order == ""
    assert "where tiles lie inside relative to their largest, 4 by turns, else 2 by" in total.order
    plan = made.passes.plan
    part = plan.epilogue.folds[0]
    assert plan.epilogue.at_once == plan.epilogue.folds
    swapped = replace(part, slots=(0, 1, 0, 0), turns=(0, 0, 1, 0))
    e = replace(plan.epilogue, folds=(swapped, *plan.epilogue.folds[1:]))
    leaves = tuple(
        replace(one, work=e) if isinstance(one.work, Pairs) else one for one in plan.leaves
    )
    with pytest.raises(VerifyError, match="an index behind 0 comes first"):
        _check_order(replace(plan, leaves=leaves), swapped)


def test_indices_that_come_out_of_order_are_refused():
    """Terms that enter a register out of their order: of equal ones the first would not win."""
    function = pg.fuse(lambda x, w: np.argmax(x @ w.T, axis=1))
    plan = function.compile("bf16[M,K]", "bf16[N,K]", arch="sm_80", schedule=PAIRS).passes.plan
    part = plan.epilogue.folds[0]
    _check_order(plan, part)
    with pytest.raises(VerifyError, match="an index behind 0 comes first"):
        _check_order(plan, replace(part, slots=(0,) * 4, turns=(0,) * 4))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("columns", [20, 21])
def test_matrices_of_tf32_are_read_as_f32(arch, columns):
    """At the end of a row too, where it ends inside of what is read at a time."""

    def function(x, u, w):
        s = x @ u
        v = w - (w + s).mean(1, keepdims=True)
        return v / np.sqrt((v * v + s).mean(1, keepdims=True) + 100.0)

    sizes = {"M": 17, "K": 24, "N": columns}
    kernel = pg.fuse(function, name="f").compile(
        "f16[M,K]", "f16[K,N]", "tf32[M,N]", arch=arch, sizes=sizes, out_dtype="f32"
    )
    generator = np.random.default_rng(0)
    shapes = ((17, 24), (24, columns), (17, columns))
    x, u, w = (generator.normal(size=shape) for shape in shapes)
    given = x.astype("f2"), u.astype("f2"), w.astype("f4")
    wanted = pg.fuse(function, name="f").reference(*given)
    np.testing.assert_allclose(kernel.emulate(*given), wanted, atol=1e-6)
