"""Every suggestion of an error that is code is tried: what it says must be accepted in turn."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from matrix import case, pipeline, roles, small, tiled

import polygen as pg
from polygen import knobs
from polygen.api import Fused
from polygen.cli import main
from polygen.errors import PolygenError, ScheduleFileError
from polygen.frontend.functions import PUBLIC, TABLE
from polygen.frontend.names import ALIASES, closest, known_names
from polygen.frontend.parse import parse_expression
from polygen.frontend.signature import parse_signature
from polygen.frontend.written import FOLDED, OF_VECTORS
from polygen.hardware.device import device
from polygen.schedule.load import dumps, loads
from polygen.schedule.model import Cluster, CtaTile, Epilogue, Loops, Roles, Tile, WarpTile

ARRAYS = {
    "x": "bf16[M,K]",
    "w": "bf16[N,K]",
    "a": "bf16[M,K]",
    "b": "f32[N]",
    "c": "f32[M]",
    "r": "bf16[M,N]",
    "s": "f32",
}


def compiled(expression, **changes):
    """The code of an expression over `ARRAYS`; its names decide its arguments."""
    options = {key: changes.pop(key) for key in ("out_dtype", "acc_dtype") if key in changes}
    arrays = ARRAYS | changes
    names = [name for name in arrays if re.search(rf"\b{name}\b", expression)]
    function = parse_expression(expression, names)
    fused = Fused(function, "f", expression, allow_tf32=False)
    return fused.compile(*(arrays[name] for name in names), arch="sm_90a", **options).source


def refusal(make, *arguments, **changes):
    with pytest.raises(PolygenError) as caught:
        make(*arguments, **changes)
    return caught.value


# --- expressions: the part in [[ ]] is replaced by what the message has in backticks --------------
@pytest.mark.parametrize(
    "text",
    [
        "where([[x @ w.T > 0 and r > 0]], 1.0, r)",
        "where([[x @ w.T > 0 or r > 0]], 1.0, r)",
        "where([[not x @ w.T > 0]], 1.0, r)",
        "where([[0 < x @ w.T < 1]], 1.0, r)",
        "[[x @ w.T if x @ w.T > 0 else r]] * 2",
        "[[x @ w.T // 2]] + 1",
        "[[lambda: x @ w.T]]",
        "([[(y := x @ w.T)]]) * 2",
        "[[(x @ w.T).clip(0, 1)]] + b",
        "[[(x @ w.T).tanh()]]",
        "[[(x @ w.T).maximum(b)]]",
        "[[x.dot(w.T)]]",
    ],
)
def test_code_in_expressions(text):
    wrong = text.replace("[[", "").replace("]]", "")
    code = re.findall("`(.*?)`", refusal(compiled, wrong).nearest)
    assert len(code) == 1
    assert compiled(re.sub(r"\[\[.*\]\]", lambda _: code[0], text))


@pytest.mark.parametrize(
    ("wrong", "suggestion", "right"),
    [
        ("gelo(x @ w.T)", "Did you mean gelu", "gelu(x @ w.T)"),
        ("sigmiod(x @ w.T)", "Did you mean sigmoid", "sigmoid(x @ w.T)"),
        ("max(x @ w.T, r)", "`maximum(a, b)`", "maximum(x @ w.T, r)"),
        ("np.min(x @ w.T, r)", "`minimum(a, b)`", "minimum(x @ w.T, r)"),
        ("fmax(x @ w.T, r)", "`maximum(a, b)`", "maximum(x @ w.T, r)"),
        ("fmin(x @ w.T, r)", "`minimum(a, b)`", "minimum(x @ w.T, r)"),
        ("tensordot(x, w)", "`x @ w` or `x @ w.T`", "x @ w.T"),
        ("arcsin(x @ w.T)", "`arctan2(a, sqrt(1 - a * a))`", "arctan2(r, sqrt(1 - r * (x @ w.T)))"),
        (
            "np.arccos(x @ w.T)",
            "`arctan2(sqrt(1 - a * a), a)`",
            "arctan2(sqrt(1 - r * r), x @ w.T)",
        ),
        ("np.arctan(x @ w.T)", "`arctan2(a, 1)`", "arctan2(x @ w.T, 1)"),
        ("sinh(x @ w.T)", "`(exp(a) - exp(-a)) / 2`", "(exp(x @ w.T) - exp(-(x @ w.T))) / 2"),
        ("arctanh(x @ w.T)", "(log1p(a) - log1p(-a)) / 2", "(log1p(x @ w.T) - log1p(-r)) / 2"),
        ("np.mod(x @ w.T, r)", "`a - floor(a / b) * b`", "x @ w.T - floor(x @ w.T / r) * r"),
        ("np.fmod(x @ w.T, 2)", "`a - trunc(a / b) * b`", "x @ w.T - trunc(x @ w.T / 2) * 2"),
        ("isposinf(x @ w.T)", "`a == np.inf`", "where(x @ w.T == np.inf, 0, 1)"),
        (
            "np.nanmax(x @ w.T, 1)",
            "`np.max(np.where(np.isnan(v), -np.inf, v), axis=1)`",
            "np.max(np.where(np.isnan(x @ w.T), -np.inf, x @ w.T), axis=1)",
        ),
        (
            "normalize(x @ w.T)",
            "`v / pg.norm(v, axis=-1, keepdims=True)`",
            "x @ w.T / pg.norm(x @ w.T, axis=-1, keepdims=True)",
        ),
        ("np.corrcoef(x @ w.T)", "`x @ x.T`", "x @ a.T"),
        ("softmx(x @ w.T)", "Did you mean softmax", "softmax(x @ w.T)"),
        ("logadexp(x @ w.T, r)", "Did you mean logaddexp", "logaddexp(x @ w.T, r)"),
        ("np.linalg.qr(x @ w.T)", "docs/reference.md", None),
        ("linalg_norm(x @ w.T)", "docs/reference.md, and by dir(polygen)", None),
        ("np.log2(x @ w.T)", "`log(a) * 1.4426950408889634`", "log(x @ w.T) * 1.4426950408889634"),
        ("log10(x @ w.T)", "`log(a) * 0.43429448190325176`", "log(x @ w.T) * 0.43429448190325176"),
        ("x @ w", "Or did you mean x @ w.T?", "x @ w.T"),
        ("x @ w.T + c", "Or did you mean c[:, None]?", "x @ w.T + c[:, None]"),
        ("einsum(x, w.T)", 'einsum("bmk,kn->bmn", x, w)', 'einsum("mk,nk->mn", x, w)'),
        ("c[M] * (x @ w.T)", "c[:, None] and c[None, :]", "c[:, None] * (x @ w.T)"),
        ("b[s] * (x @ w.T)", "c[:, None] and c[None, :]", "b[None, :] * (x @ w.T)"),
        ("(x @ w.T)[0] * s", "Slice the operands instead", "x[...] @ w.T * s"),
        ("exp(x @ w.T > 0)", '.astype("f32") first', 'exp((x @ w.T > 0).astype("f32"))'),
        ("(x @ w.T > 0) + (r > 0)", "logical_or", "where(logical_or(x @ w.T > 0, r > 0), 1, 0)"),
        ("(x @ w.T) & 1", "& | ~ combine", "where((x @ w.T > 1) & ~(r > 0) | (r < 3), 1, 0)"),
        ('(x @ w.T).astype("tf32")', 'Use .astype("f32")', '(x @ w.T).astype("f32")'),
        ("median(x @ w.T)", "return the matrix, and compute median outside", "x @ w.T"),
        ("x @ w.T @ r.T", "Give K as a number in the signature", "x @ w.T"),
        ("x @ w.T * np.tau", "Known: pi, e, inf", "(x @ w.T * np.pi + np.e) * np.inf"),
        ("x.shape", '.transpose(0, 2, 1), .astype("f16")', '(x @ w.T).astype("f16")'),
        ("x @ w.T * 2j", "a number", "x @ w.T * 2"),
        ("xx @ w.T * x", "Did you mean x?", "x @ w.T"),
        (
            "gelu(x @ w.T, approximate='fast')",
            '"none" or "tanh"',
            "gelu(x @ w.T, approximate='tanh')",
        ),
        ("x @ w.T * 1e300", "Use 3.4028235e+38", "x @ w.T * 3.4028235e+38"),
        ("x @ w.T * 1e400", "Use 3.4028235e+38, or np.inf", "x @ w.T * 3.4028235e+38"),
        ("x @ w.T * 1e999", "or np.inf", "minimum(x @ w.T, np.inf)"),
        (f"x @ w.T * {10**400}", "Use 3.4028235e+38", None),
        ("x @ w.T * 1e-300", "Use 1.1754944e-38", "x @ w.T * 1.1754944e-38"),
    ],
)
def test_words_about_expressions(wrong, suggestion, right):
    error = refusal(compiled, wrong)
    assert suggestion in str(error), str(error)
    if right is not None:
        assert compiled(right)


def test_a_transposed_operand_is_meant():
    """Also where an operand is transposed already: the text has to be read back."""
    for wrong in ("r.T @ a.T", "a.T @ r.T"):
        found = re.search(r"did you mean (.*)\?", str(refusal(compiled, wrong)))
        assert found is not None and compiled(found[1])


@pytest.mark.parametrize("name", ["quantile", "median", "cumsum", "tensordot", "roll"])
def test_what_numpy_has_is_said_to_be_lacking(name):
    """It is never taken for a misspelling of something else."""
    for text in (f"{name}(x @ w.T)", f"np.{name}(x @ w.T)"):
        message = str(refusal(compiled, text))
        assert f"polygen has no `{name}`" in message and "Did you mean" not in message
    with pytest.raises(PolygenError, match=f"polygen has no `(np)?.{name}`"):
        pg.fuse(lambda x, w: getattr(x @ w.T, name)(), name="f").program("bf16[M,K]", "bf16[N,K]")


def _torch(name, *arguments):
    """What a method of a value is refused with, and who else computes it as it says."""
    signature = ("bf16[64,128]", "bf16[64,128]")

    def program(function):
        return pg.fuse(function, name="f").compile(*signature, arch="sm_80").program

    message = refusal(program, lambda x, w: getattr(x @ w.T, name)(*arguments)).nearest
    return message, program


@pytest.mark.parametrize(
    ("name", "arguments", "code", "right"),
    [
        ("permute", (1, 0), ".transpose(1, 0)", lambda x, w: (x @ w.T).transpose(1, 0)),
        ("permute_dims", (0,), "np.permute_dims", lambda x, w: np.permute_dims(x @ w.T, (1, 0))),
        ("multiply", (2,), "np.multiply", lambda x, w: np.multiply(x @ w.T, 2)),
        ("relu", (), "pg.relu", lambda x, w: pg.relu(x @ w.T)),
        ("t", (), ".T", lambda x, w: (x @ w.T).T),
        ("float", (), '.astype("f32")', lambda x, w: (x @ w.T).astype("f32")),
        ("half", (), '.astype("f32")', lambda x, w: (x @ w.T).astype("f16")),
        ("view", (-1,), ".reshape(-1)", lambda x, w: (x @ w.T).reshape(32, 128)),
        ("unsqueeze", (0,), "[None, :]", lambda x, w: x @ w.T + w[:, 0][None, :]),
        ("mm", (1,), "x @ w.T", lambda x, w: x @ w.T),
    ],
)
def test_methods_of_pytorch_s_arrays(name, arguments, code, right):
    message, program = _torch(name, *arguments)
    assert code in message and program(right).outputs


def test_every_name_that_is_said_to_be_a_function_is_one_of_that_module():
    for name in sorted({*TABLE, *ALIASES}):
        found = re.fullmatch(r"It is a function: `(pg|np)\.(\w+)\(…\)`", closest(name, method=True))
        if found is not None:
            assert callable(getattr({"pg": pg, "np": np}[found[1]], found[2])), name


@pytest.mark.parametrize(
    ("number", "near"), [(10**400, 3.4028235e38), (-(10**4000), -3.4028235e38)]
)
def test_numbers_beyond_all_floats(number, near):
    signature = ("bf16[M,K]", "bf16[N,K]")
    error = refusal(pg.fuse(lambda x, w: (x @ w.T) * number, name="f").program, *signature)
    assert f"Use {near:.8g}" in str(error) and len(str(error)) < 300
    assert pg.fuse(lambda x, w: (x @ w.T) * near, name="f").program(*signature).outputs


def test_round_is_numpy_s():
    signature = ("bf16[M,K]", "bf16[N,K]")
    one, other = (
        pg.fuse(f, name="f").program(*signature).statements
        for f in (lambda x, w: round(x @ w.T), lambda x, w: np.round(x @ w.T))
    )
    assert one == other
    error = refusal(pg.fuse(lambda x, w: round(x @ w.T, 2), name="f").program, *signature)
    code = re.search(r"np\.round\(.*\) \* 0\.01", str(error))
    assert code is not None and compiled(code[0].replace("v", "(x @ w.T)"))


def test_a_chain_is_refused_for_its_target_before_its_sizes():
    with pytest.raises(PolygenError, match="a chain of products of f16 on sm_75"):
        pg.fuse(lambda x, w: x @ w.T @ w, name="f").compile(
            "f16[M,K]", "f16[N,K]", arch="sm_75", single=True
        )


def test_every_known_function_is_one():
    """What misspelled names are compared with, under which each is accepted."""
    listed = known_names()
    assert len(listed) > 40 and set(listed) >= {*PUBLIC, *FOLDED, *OF_VECTORS}
    arguments = {"where": "r > 0, x @ w.T, r", "clip": "x @ w.T, 0, 1", "transpose": "x @ w.T"}
    arguments |= {"permute_dims": "x @ w.T", "swapaxes": "x @ w.T, 0, 1"}
    arguments |= {"einsum": "'mk,nk', x, w", "outer": "c, b) + (x @ w.T"}
    arguments |= dict.fromkeys(("matmul", "dot"), "x, w.T") | {"inner": "x, w"}
    arguments |= dict.fromkeys(("vdot", "vecdot"), "x @ w.T, r")
    arguments |= {"matvec": "x @ w.T, b", "vecmat": "c, x @ w.T", "diagonal": "x @ a.T"}
    arguments |= {"argmax": "x @ w.T, 1", "argmin": "x @ w.T, 1"}
    arguments |= {"take_along_axis": "x @ w.T, t[:, None], 1"}
    arrays = ARRAYS | {"t": "s32[M]"}
    for name in listed:
        two = len(_parameters(name)) == 2
        given = arguments.get(name) or ("x @ w.T, 2" if two else "x @ w.T")
        logical = name.startswith("logical_")
        given = (
            given.replace("x @ w.T", "x @ w.T > 1").replace(", 2", ", r > 2") if logical else given
        )
        names = [n for n in arrays if re.search(rf"\b{n}\b", given)]
        function = parse_expression(f"{name}({given})", names)
        program = pg.fuse(function, name="f").program(*(arrays[n] for n in names), out_dtype="f32")
        assert program.statements, name


def _parameters(name):
    function = TABLE.get(ALIASES.get(name, name))
    return function.parameters if function else ("x",)


# --- functions ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("wrong", "suggestion", "right"),
    [
        (
            lambda x, w: x @ w.T if x @ w.T > 0 else 0,
            "pg.where(condition, a, b)",
            lambda x, w: pg.where(x @ w.T > 0, x @ w.T, 0),
        ),
        (lambda x, w: max(x @ w.T, 0), "np.maximum", lambda x, w: np.maximum(x @ w.T, 0)),
        (
            lambda x, w: pg.where(0 < x @ w.T < 1, 0, 1) + x @ w.T,
            "np.logical_and",
            lambda x, w: np.where(np.logical_and(x @ w.T > 0, x @ w.T < 1), 0, x @ w.T),
        ),
        (lambda x, w: (x @ w.T).tanh(), "`pg.tanh(…)`", lambda x, w: pg.tanh(x @ w.T)),
        (lambda x, w: (x @ w.T).absolute(), "`np.absolute(…)`", lambda x, w: np.absolute(x @ w.T)),
        (lambda x, w: (x @ w.T)[:, [0]], "c[:, None]", lambda x, w, c: x @ w.T + c[:, None]),
        (lambda x, w: x @ w.T // 2, "+ - * / ** @", lambda x, w: -(x @ w.T) / 2 * 3 - 1 + 2**3),
        (
            lambda x, w: (x * x.shape[1]) @ w.T,
            "Compute with it behind the product",
            lambda x, w: x @ w.T * x.shape[1],
        ),
        (lambda x, w: np.add.accumulate(x @ w.T), "`np.add` itself",
         lambda x, w: np.add(x @ w.T, 1)),
        (lambda x, w: np.exp(x @ w.T, where=True), "Leave it out", lambda x, w: np.exp(x @ w.T)),
        (lambda x, w: np.where(x @ w.T), "where(condition, x, y)",
         lambda x, w: np.where(x @ w.T > 0, x @ w.T, 1)),
        (lambda x, w: int(x @ w.T), '.astype("s8") to round',
         lambda x, w: (x @ w.T).astype("s8") * 1.0),
        (lambda x, w: np.zeros((2, 2)) + x @ w.T, "Pass it as an argument",
         lambda x, w, r: r + x @ w.T),
        (lambda x, w: pg.clip(x @ w.T), "clip(x, lo, hi)", lambda x, w: pg.clip(x @ w.T, 0, 1)),
    ],
)  # fmt: skip
def test_code_for_functions(wrong, suggestion, right):
    def make(function):
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        fused = pg.fuse(function, name="f")
        return fused.compile(*(ARRAYS[name] for name in names), arch="sm_90a").source

    error = refusal(make, wrong)
    assert suggestion in error.nearest, str(error)
    assert make(right)


def test_a_size_can_be_fixed():
    scaled = pg.fuse(lambda x, w: x @ w.T * (1 / float(x.shape[1])), name="f")
    signature = ("bf16[M,K]", "bf16[N,K]")
    assert 'static=("K",)' in refusal(scaled.compile, *signature, arch="sm_90a").nearest
    assert scaled.compile(*signature, arch="sm_90a", static=("K",), sizes={"K": 64}).source


# --- descriptions, types, sizes and targets -------------------------------------------------------
@pytest.mark.parametrize(
    ("wrong", "suggestions"),
    [
        ({"x": "bf17[M,K]"}, "Known"),
        ({"out_dtype": "f99"}, "Known"),
        ({"acc_dtype": "f99"}, "Known"),
        ({"acc_dtype": "f16"}, "Use"),
        ({"out_dtype": "tf32"}, "Use"),
    ],
)
def test_types(wrong, suggestions):
    error = refusal(compiled, "x @ w.T", **wrong)
    found = re.search(rf"{suggestions}:? ([a-z0-9, ]+)", error.nearest)
    types = found[1].split(", ")
    assert types
    (key,) = wrong
    for name in types:
        if key != "x":
            assert compiled("x @ w.T", **{key: name})
            continue
        signature = {"x": f"{name}[M,K]", "w": f"{name}[N,K]"}
        if name in ("s32", "bool"):  # described rightly; operands are computed from it
            error = refusal(compiled, "x @ w.T", **signature)
            assert error.nearest == 'Write x.astype("bf16")'
            assert compiled('x.astype("bf16") @ w.astype("bf16").T', **signature)
        elif name in ("i4", "u4"):
            signature = {"x": "bf16[M,64]", "w": f"{name}[N,64]"}
            assert compiled('x @ w.astype("bf16").T', **signature)
        else:
            assert compiled("x @ w.T", **signature)


@pytest.mark.parametrize("name", ["f16", "bf16", "f32"])
def test_types_of_a_cast(name):
    error = refusal(compiled, '(x @ w.T).astype("f99")')
    assert name in error.nearest.split("Known: ")[1].split(", ")
    assert "tf32" not in error.nearest
    assert compiled(f'(x @ w.T).astype("{name}")')


@pytest.mark.parametrize(
    ("wrong", "pattern", "right"),
    [
        ("x:bf16[i,K]", "Use '(.*)'", "x:bf16[{},K]"),
        ("x:bf16[M,K]@3", "Use (.*), …", "x:bf16[M,K]@{}"),
        ("x:bf16[M,K]@3", "…, (.*)", "x:bf16[M,K]@{}"),
        ("x:bf16[M,K]:diagonal", "A matrix is (row) or col", "x:bf16[M,K]:{}"),
        ("x:bf16[M,K]:diagonal", "A matrix is row or (col)", "x:bf16[M,K]:{}"),
        ("x", "as in (x:.*?), b", "{}"),
        ("", "as in x:.*?, (b:.*?),", "{}"),
        ("s:bf16", r"Use (f32\[\])", "s:{}"),
        ("x:bf16[0,K]", r"at least (\d+)", "x:bf16[{},K]"),
        (f"x:bf16[{10**20},K]", r"at most (\d+)", "x:bf16[{},K]"),
    ],
)
def test_descriptions(wrong, pattern, right):
    found = re.search(pattern, refusal(parse_signature, wrong).nearest)
    assert found, refusal(parse_signature, wrong)
    assert parse_signature(right.format(found[1]))


def product(*signature, arch="sm_90a", **options):
    return pg.fuse(lambda x, w: x @ w.T, name="f").compile(*signature, arch=arch, **options).source


def test_names_of_sizes():
    reserved = refusal(product, "bf16[mod,K]", "bf16[N,K]").nearest
    assert product(f"bf16[{reserved.removeprefix('Use ')},K]", "bf16[N,K]")
    taken = refusal(product, "bf16[M,w]", "bf16[N,w]").nearest
    name = taken.removeprefix("Call the dim ")
    assert product(f"bf16[M,{name}]", f"bf16[N,{name}]")
    clash = refusal(product, "bf16[M,x_stride0]", "bf16[N,x_stride0]").nearest
    name = clash.removeprefix("Use ")
    assert product(f"bf16[M,{name}]", f"bf16[N,{name}]")


@pytest.mark.parametrize("size", [0, -3, 10**30])
def test_sizes(size):
    nearest = refusal(product, "bf16[M,K]", "bf16[N,K]", sizes={"M": size}).nearest
    right = int(re.search(r"Use M = (\d+)", nearest)[1])
    assert product("bf16[M,K]", "bf16[N,K]", sizes={"M": right})


def test_static_sizes():
    error = refusal(product, "bf16[M,K]", "bf16[N,K]", static=("K",))
    assert 'sizes={"K": 1024}' in error.nearest and "--size K=1024" in error.nearest
    assert product("bf16[M,K]", "bf16[N,K]", static=("K",), sizes={"K": 1024})


@pytest.mark.parametrize("wrong", ["sm_81", "sm_91", "sm_88", "sm_9"])
def test_architectures(wrong):
    nearest = refusal(device, wrong).nearest
    names = re.findall(r"sm_\d+a?", nearest)
    assert names and all(device(name).name == name for name in names)


# --- schedules ------------------------------------------------------------------------------------
def with_tile(cta, warp, form="one", **changes):
    tile = Tile(CtaTile(*cta), WarpTile(*warp))
    return replace(roles(form, **changes), tile=tile)


def edited(schedule, edits):
    """The schedule with the values of `path = value` suggestions."""
    text = dumps(schedule)
    for path, value in edits:
        table, _, key = path.rpartition(".")
        head = f"[{table}]\n" if table else ""
        start = text.index(head) + len(head)
        pattern = re.compile(rf"^{key} = .*$", re.MULTILINE)
        text = text[:start] + pattern.sub(f"{key} = {value}", text[start:], count=1)
    return loads(text, "edited")


def build(schedule, arch="sm_90a", **changes):
    return case("tried", "nt", "bf16", "bias", schedule=schedule, arch=arch, **changes).kernel()


EDIT = re.compile(r'([a-z_]+(?:\.[a-z_]+)*) = ("?\w+"?)')


@pytest.mark.parametrize(
    "schedule",
    [
        with_tile((128, 128, 64), (64, 64)),
        with_tile((128, 64, 64), (64, 64), "pingpong"),
        with_tile((64, 128, 64), (64, 64), "pingpong"),
        with_tile((64, 512, 64), (64, 512), "pingpong"),
        with_tile((128, 512, 64), (64, 512)),
        replace(roles(), atom="m16n8k16_f32_bf16"),
        roles(n=72),
        roles(stages=2, in_flight=2),
        roles(stages=3, in_flight=5),
        replace(roles("two"), roles=Roles("cooperative", 40, 240)),
        roles(through="smem"),
    ],
)
def test_values_of_schedules_with_roles(schedule):
    error = refusal(build, schedule)
    text = error.nearest or error.problems[0]
    spread = re.sub(r"([a-z_.]+) = ([a-z_.]+) = (\d+)", r"\1 = \3, \2 = \3", error.nearest)
    alternatives = [EDIT.findall(part) for part in spread.split(" or ")]
    if not any(alternatives):
        found = re.search(r"Use a multiple of (\d+)", text)
        if found:
            step = int(found[1])
            n = schedule.tile.warp.n // step * step
            alternatives = [[("tile.cta.n", str(n)), ("tile.warp.n", str(n))]]
        else:
            path = re.search(r"([a-z_.]+) = ", text)[1]
            values = re.search(r"Nearest legal: (.*?)\.?$", text)[1].split(" or ")
            alternatives = [[(path, value)] for value in values]
    alternatives = [edits for edits in alternatives if edits]
    assert alternatives, text
    for edits in alternatives:
        assert build(edited(schedule, edits)), edits


@pytest.mark.parametrize(
    "schedule",
    [
        tiled((128, 128, 64), (48, 64)),
        tiled((128, 128, 64), (32, 256)),
        tiled((128, 128, 24), (64, 64)),
        tiled((32, 32, 32), (24, 16)),
        tiled((32, 32, 24), (16, 16)),
        small(pipeline=pipeline(0, 0)),
        small(pipeline=pipeline(3, 2, fragments=0, lookahead=0)),
        small(pipeline=pipeline(3, 2, copies="sprad")),
        small(epilogue=Epilogue("tma")),
        small(min_blocks=0),
        tiled((64, 64, 64), (32, 32), pipeline=pipeline(5, 3), min_blocks=3),
        roles(cluster=(4, 4)),
    ],
)
def test_values_of_schedules(schedule):
    arch = "sm_90a" if schedule.specialised else "sm_80"
    error = refusal(build, schedule, arch)
    texts = error.problems if isinstance(error, ScheduleFileError) else (error.nearest,)
    for text in texts:
        if "at most 8" in text:
            assert build(replace(schedule, cluster=Cluster(4, 2)), arch)
            continue
        found = re.match(r"([a-z_.]+)(?: = |: ).*Nearest legal: (.*?)(?:\.|$)", text)
        path, values = (found[1], found[2].split(", ")) if found else EDIT.findall(text)[0]
        for value in [values] if isinstance(values, str) else values:
            right = edited_record(schedule, path, value)
            assert build(right, arch), (path, value)


def edited_record(record, path, value):
    """As `edited`, of a record that no file could hold."""
    key, _, rest = path.partition(".")
    if rest:
        return replace(record, **{key: edited_record(getattr(record, key), rest, value)})
    plain = value.strip("'\"")
    return replace(record, **{key: int(plain) if plain.isdigit() else plain})


@pytest.mark.parametrize(
    "text",
    [
        "naem = 'x'",
        "[pipeline]\ndistanse = 2",
        "[pipeline]\nstages = 0",
        "[pipeline]\ndistance = -1",
        "[loops]\nk = 'forwards'",
        "[smem]\nswizzle = 'xor8'",
        "atom = 'm16n8k16'",
        "device = 'sm_88'",
        "device = '80'",
        "[roles]\nform = 'ping'",
        "[roles]\nproducers = 2",
        "[cluster]\nm = 0",
        "[epilogue]\nthrough = 'tmaa'",
        "tile = 3",
        "[loops]\nmma = ['k','m']",
        "[pipeline]\norder = ['mma','mma']",
    ],
)
def test_values_in_schedule_files(text):
    with pytest.raises(ScheduleFileError) as caught:
        loads(f"format = 1\n{text}\n", "some.toml")
    (problem,) = caught.value.problems
    table = re.match(r"\[\w+\]\n", text)
    head, line = (table[0], text[table.end() :]) if table else ("", text)
    key, _, value = line.partition(" = ")
    if "unknown key" in problem:
        key = re.search(r"Nearest legal: ([\w.]+)\.", problem)[1].rpartition(".")[2]
        value = {"name": "'x'", "distance": "2"}.get(key, "40")
    elif "permutation" in problem:
        names = problem.rpartition("permutation of ")[2].split(", ")
        value = str(names)
    elif "Write [" in problem:
        assert loads(f"format = 1\n{re.search(r'Write (.*)', problem)[1]}\n", "right.toml")
        return
    else:
        found = re.search(r"Nearest(?: legal)?: '?([\w-]+)|as '(\w+)'", problem)
        new = found[1] or found[2]
        value = new if re.fullmatch(r"-?\d+", new) else f"'{new}'"
    assert loads(f"format = 1\n{head}{key} = {value}\n", "right.toml")


def test_formats():
    with pytest.raises(ScheduleFileError) as caught:
        loads("name = 'x'", "some.toml")
    (problem,) = caught.value.problems
    assert loads(problem.rpartition("Write ")[2], "right.toml")


def test_phases_and_grids():
    problem = refusal(build, small(loops=Loops(grid=())), "sm_80").problems[0]
    assert "m, n, k" in problem
    assert build(small(loops=Loops(grid=("m", "n"))), "sm_80")
    nearest = refusal(build, small(loops=Loops(grid=("m",))), "sm_80").nearest
    assert 'Use ["m", "n"]' in nearest


# --- the command line -----------------------------------------------------------------------------
@pytest.fixture(autouse=True)
def _no_cache(tmp_path):
    with knobs.scope(cache_dir=tmp_path / "cache", arch=None, schedule=None, debug=False):
        yield


XW = ["x:bf16[M,K]", "w:bf16[N,K]"]


@pytest.mark.parametrize(
    ("wrong", "pattern", "right"),
    [
        (["x @ w.T", *XW, "--size", "M:4"], r"as in (M=4096)", ["--size", "{}"]),
        (["x @ w.T", *XW, "--static", "K"], r"--size (K=1024)", ["--static", "K", "--size", "{}"]),
        (["x @ w.T", *XW, "--name", "no name"], "(Letters)", ["--name", "{}"]),
    ],
)
def test_options(capsys, wrong, pattern, right):
    assert main(["generate", *wrong, "--arch", "sm_90a", "-o", "-"]) == 2
    found = re.search(pattern, capsys.readouterr().err)
    words = [word.format(found[1]) for word in right]
    assert main(["generate", "x @ w.T", *XW, "--arch", "sm_90a", "-o", "-", *words]) == 0


def test_a_target_on_a_machine_without_a_gpu(capsys, monkeypatch):
    monkeypatch.setattr("polygen.cli.load.current_arch", lambda: None)
    assert main(["generate", "x @ w.T", *XW, "-o", "-"]) == 2
    found = re.search(r"as in (--arch) (sm_\w+)", capsys.readouterr().err)
    assert main(["generate", "x @ w.T", *XW, "-o", "-", found[1], found[2]]) == 0


def test_an_operand_without_a_name(capsys):
    words = ["--arch", "sm_90a", "-o", "-"]
    assert main(["generate", "x @ w.T", "bf16[M,K]", XW[1], *words]) == 2
    found = re.search(r"(x:bf16\[M,K\])", capsys.readouterr().err)
    assert main(["generate", "x @ w.T", found[1], XW[1], *words]) == 0


def test_a_function_of_a_file(capsys, tmp_path):
    file = tmp_path / "model.py"
    file.write_text("def up(x, w):\n    return x @ w.T\n")
    words = [*XW, "--arch", "sm_90a", "-o", "-"]
    for wrong in (f"{file}:upp", str(file)):
        assert main(["generate", wrong, *words]) == 2
        message = capsys.readouterr().err
        found = re.search(r"Functions there: (\w+)|Write \S+:(FUNCTION)", message)
        name = found[1] or "up"
        assert main(["generate", f"{file}:{name}", *words]) == 0
        capsys.readouterr()
