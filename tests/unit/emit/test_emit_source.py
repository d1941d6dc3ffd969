"""The generated text: stands alone, holds what the plan says, and is the same every time."""

import re

import pytest
from matrix import CASES, case, small

from polygen.emit import ctext
from polygen.emit.names import c_name
from polygen.emit.primitives import PRIMITIVES
from polygen.frontend.expansion import expand
from polygen.frontend.functions import TABLE
from polygen.poly.ast import Binary, Block, Call, Const, For, If, Marked, Var

SAMPLE = [CASES[i] for i in range(0, len(CASES), 8)]


def text_of(**changes):
    kernel = case("text", "nt", "bf16", "bias_gelu", **{"schedule": small(), **changes}).kernel()
    return kernel.source, kernel.passes.plan


@pytest.fixture(scope="module", params=SAMPLE, ids=lambda c: c.name)
def built(request):
    return request.param.kernel()


def test_device_code_includes_nothing(built):
    outside = built.source.split("#ifndef __CUDACC_RTC__")
    assert "#include" not in outside[0]
    assert "__global__" in built.source
    assert 'extern "C"' in built.source


def test_nothing_of_the_templates_or_of_python_is_left(built):
    for leftover in ("{{ ", " }}", "{% ", " %}", "<built-in", "<function", " object at 0x"):
        assert leftover not in built.source, leftover
    assert "\t" not in built.source
    assert not re.search(r"[ ]+\n", built.source)
    assert "\n\n\n" not in built.source
    assert built.source.endswith("\n")


def test_the_first_comment_holds_expression_schedule_and_resources(built):
    plan = built.passes.plan
    head = built.source[:6000]
    for part in (plan.program.source, plan.device.name, plan.atom.name, plan.schedule.name):
        assert part in head, part
    for output in plan.program.outputs:
        assert str(output) in head
    for placed in plan.syncs:
        assert placed.name in head


def test_every_argument_is_a_parameter_in_order(built):
    start = built.source.index(f"{built.passes.source.entry}(")
    head = built.source[start : built.source.index("{", start)]
    # A name that the kernel needs itself gets an underscore.
    places = [re.search(rf"\b{a.name}_*\b", head) for a in built.passes.source.arguments]
    assert all(places)
    starts = [place.start() for place in places]
    assert starts == sorted(starts)


def test_braces_and_brackets_balance(built):
    code = re.sub(
        r'"(\\.|[^"\\])*"', '""', re.sub(r"//[^\n]*|/\*.*?\*/", "", built.source, flags=re.S)
    )
    for opening, closing in ("{}", "()", "[]"):
        assert code.count(opening) == code.count(closing)


def test_the_instruction_and_the_copies_are_inline_ptx():
    text, plan = text_of()
    assert plan.atom.ptx.split(" ")[0] in text
    assert "cp.async" in text
    assert "ldmatrix.sync.aligned" in text


def test_copies_through_registers_have_no_asynchronous_instruction():
    kernel = case("text", "nt", "bf16", "plain", 2, schedule=small()).kernel()
    code = re.sub(r"//[^\n]*|/\*.*?\*/", "", kernel.source, flags=re.S)
    assert "cp.async" not in code
    assert "commit_group" not in kernel.ptx


def test_barriers_of_the_plan_are_barriers_of_the_ptx():
    kernel = case("text", "nt", "bf16", "plain", schedule=small()).kernel()
    scopes = [placed.sync.scope for placed in kernel.passes.plan.syncs]
    assert ("bar.sync" in kernel.ptx or "barrier.sync" in kernel.ptx) == ("place" in scopes)
    assert ("bar.warp.sync" in kernel.ptx) == ("agent" in scopes)


def test_the_launch_bounds_are_those_of_the_plan():
    text, plan = text_of(schedule=small(min_blocks=2))
    flat = re.sub(r"\s+", " ", text)
    assert re.search(rf"__launch_bounds__\({plan.launch.threads}, 2\)", flat)


def test_the_source_knows_its_alignment_and_launch():
    kernel = case("text", "nt", "bf16", "bias", 8, schedule=small()).kernel()
    source = kernel.passes.source
    assert dict(source.alignment)["x"] == 8
    assert dict(source.alignment).keys() == {"x", "w", "b", "y0"}
    assert source.launch == kernel.passes.plan.launch
    assert str(source) == source.text


def test_the_program_name_names_the_entry():
    kernel = case("some_name", "nt", "bf16", "bias", schedule=small()).kernel()
    assert kernel.passes.source.entry == "pg_some_name"
    assert "pg_some_name(" in kernel.source


# --- expressions and loops in C ------------------------------------------------------------------
@pytest.mark.parametrize(
    ("node", "wanted"),
    [
        (Const(3), "3"),
        (Var("t"), "t"),
        (Binary("+", Var("t"), Const(1)), "t + 1"),
        (Binary("%", Var("t"), Const(3)), "t % 3"),
        (Binary("*", Binary("+", Var("t"), Const(1)), Const(2)), "(t + 1) * 2"),
    ],
)
def test_expressions_in_c(node, wanted):
    found = ctext.index(node)
    values = {"t": 7}
    assert eval(found.replace("/", "//"), {}, values) == eval(wanted.replace("/", "//"), {}, values)


def test_minimum_and_maximum_need_no_header():
    found = ctext.index(Binary("min", Var("t"), Const(2)))
    assert "std::" not in found
    assert "t" in found
    assert "2" in found


def test_loops_in_c_keep_their_order_and_nesting():
    body = Block((Call("load_a", (Var("t"), Const(0))), Call("mma", (Var("t"),))))
    loop = For("t", Const(0), Binary("<", Var("t"), Var("k_tiles")), 1, body, False)
    whole = Block(
        (Call("zero", ()), Marked("ktile", loop), If(Var("k_tiles"), Call("store", ()), None))
    )
    lines = "\n".join(ctext.loops(whole, {}, 1))
    places = [
        lines.index(part) for part in ("zero()", "for (", "load_a(", "mma(", "if (", "store(")
    ]
    assert places == sorted(places)


def test_every_function_of_the_front_end_expands_to_emitted_primitives():
    used = set()

    def primitive(name, *arguments):
        used.add(name)
        return f"{name}_of"

    for name, function in TABLE.items():
        if name != "cast":
            expand(name, [f"a{i}" for i in range(function.arity[0])], primitive)
    assert used
    assert used <= set(PRIMITIVES)


def test_different_names_stay_different():
    names = ("sum", "sum_", "sum__", "lane", "x", "x_", "NULL", "linux", "__CUDA_ARCH__", "_Bool")
    written = [c_name(name) for name in names]
    assert len(set(written)) == len(names)
    assert (c_name("sum"), c_name("sum_"), c_name("x"), c_name("x_")) == (
        "sum_",
        "sum__",
        "x",
        "x_",
    )
    assert c_name("NULL") == "NULL_" and c_name("__CUDA_ARCH__") == "__CUDA_ARCH___"
