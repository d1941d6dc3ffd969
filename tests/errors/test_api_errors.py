"""Wrong use of the Python surface: one clear error each, with the nearest thing that works."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import polygen as pg
from polygen import knobs
from polygen.errors import (
    ArgumentError,
    DTypeError,
    PolygenError,
    ScheduleError,
    ScheduleFileError,
    ShapeError,
    SignatureError,
    ToolchainMissing,
    UnknownTarget,
)
from polygen.runtime.environment import current_arch

BF16 = ml_dtypes.bfloat16


@pg.fuse
def up(x, w, b):
    return pg.gelu(x @ w.T + b)


SIGNATURE = ("bf16[M,K]", "bf16[N,K]", "bf16[N]")


def refuses(error, *fragments, signature=SIGNATURE, **keywords):
    with pytest.raises(error) as caught:
        up.compile(*signature, **{"arch": "sm_80", **keywords})
    for fragment in fragments:
        assert fragment in str(caught.value), str(caught.value)


def test_unknown_architecture():
    refuses(UnknownTarget, "sm_81", "Nearest: sm_80", "sm_120", arch="sm_81")


def test_an_architecture_that_is_no_text():
    refuses(UnknownTarget, "'[]'", "Known: sm_70", arch=[])


@pytest.mark.skipif(current_arch() is not None, reason="there is a GPU to compile for")
def test_no_architecture_and_no_gpu():
    with knobs.scope(arch=None):
        refuses(ToolchainMissing, 'arch="sm_80"', arch=None)


def test_wrong_number_of_descriptions():
    refuses(
        SignatureError, "2 argument descriptions for up(x, w, b)", "Give 3", signature=SIGNATURE[:2]
    )


def test_a_description_of_another_parameter():
    wrong = ("w:bf16[M,K]", *SIGNATURE[1:])
    refuses(SignatureError, "describes w, but parameter 1 is x", signature=wrong)


def test_descriptions_that_are_no_text():
    refuses(SignatureError, "1", "name:dtype[dims]", signature=(1, 2, 3))


@pytest.mark.parametrize(
    ("text", "error", "fragment"),
    [
        ("bf16[M,K", SignatureError, "not an argument description"),
        ("bf17[M,K]", SignatureError, "bf17"),
        ("bf16[0,K]", ShapeError, "at least 1"),
        ("bf16[M,2147483647]", ShapeError, "at most 2147418112"),
        ("bf16[M,K]:diagonal", SignatureError, "row or col"),
        ("bf16[M,K]@3", SignatureError, "3"),
        ("bf16[M,K,L]", ShapeError, "x has inner dim L, w.T has inner dim K"),
        ("bf16", DTypeError, "f32"),
    ],
)
def test_descriptions_that_cannot_be(text, error, fragment):
    refuses(error, fragment, signature=(text, *SIGNATURE[1:]))


def test_inner_dims_that_differ():
    other = ("bf16[M,K]", "bf16[N,J]", "bf16[N]")
    refuses(ShapeError, "inner dim K", "inner dim J", "one name", signature=other)


# --- sizes ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("sizes", "fragments"),
    [
        ({"M": 0}, ("M = 0", "at least 1")),
        ({"M": -5}, ("M = -5", "at least 1")),
        ({"M": 2.5}, ("M = 2.5", "whole numbers")),
        ({"Q": 3}, ("no dim is called 'Q'", "M, K, N")),
        ({"m": 64}, ("no dim is called 'm'", "M, K, N")),
        ({"z.pitch": 64}, ("no array with rows has the pitch 'z.pitch'", "x.pitch, w.pitch")),
        ({"b.pitch": 64}, ("no array with rows has the pitch 'b.pitch'", "x.pitch, w.pitch")),
        ({"x.pitch": 0}, ("x.pitch = 0", "at least 1")),
        ({"x.pitch": 64.5}, ("x.pitch = 64.5", "whole numbers")),
        ({"K": 65, "x.pitch": 64}, ("x.pitch = 64", "65 elements", "overlap", "Use x.pitch = 65")),
    ],
)
def test_sizes_that_cannot_be(sizes, fragments):
    refuses(PolygenError, *fragments, sizes=sizes)


def test_static_without_a_size():
    refuses(SignatureError, "static dims without a size: K", 'sizes={"K": 1024}', static=("K",))
    refuses(SignatureError, "without a size: N", static=("N", "K"), sizes={"K": 64})


def test_static_that_is_no_dim():
    refuses(SignatureError, "no dim is called Z", static=("Z",), sizes={"Z": 64})


def test_static_of_size_zero():
    refuses(ShapeError, "at least 1", static=("K",), sizes={"K": 0})


# --- types ---------------------------------------------------------------------------------------
def test_types_that_cannot_be():
    refuses(DTypeError, "unknown dtype 'f98'", acc_dtype="f98")
    refuses(DTypeError, "acc_dtype f16 with bf16 operands", "f32", acc_dtype="f16")
    refuses(DTypeError, "unknown dtype 'f99'", out_dtype="f99")
    refuses(PolygenError, "out", out_dtype=("bf16", "f32"))


# --- schedules -----------------------------------------------------------------------------------
@pytest.mark.parametrize("path", ["nowhere.toml", Path("nowhere.toml")])
def test_a_schedule_file_that_is_not_there(path):
    refuses(ScheduleFileError, "nowhere.toml", "cannot be read", "Shipped schedules", schedule=path)


@pytest.mark.parametrize("thing", [42, None, {"stages": 3}])
def test_a_schedule_that_is_none(thing):
    refuses(ScheduleError, "is no schedule", '"auto"', schedule=thing)


def test_a_malformed_schedule_lists_all_its_mistakes(tmp_path):
    file = tmp_path / "bad.toml"
    file.write_text(
        "format = 1\n[pipeline]\nstages = 0\nstagez = 3\n[tile.cta]\nm = 'wide'\n"
        "[loops]\nk = 'sideways'\n"
    )
    refuses(
        ScheduleFileError, str(file), "4 problem(s)", "pipeline.stages: 0", "pipeline.stagez",
        "pipeline.stages", "tile.cta.m: 'wide' is not an integer", "loops.k: 'sideways'",
        schedule=file,
    )  # fmt: skip


def test_a_schedule_file_that_is_not_toml(tmp_path):
    file = tmp_path / "bad.toml"
    file.write_text("format = = 1")
    refuses(ScheduleFileError, "not TOML", "line 1", schedule=str(file))


def test_a_schedule_file_that_breaks_a_dependence(tmp_path):
    file = tmp_path / "illegal.toml"
    file.write_text(
        "format = 1\nname = 'illegal'\n[pipeline]\nstages = 2\ndistance = 2\n"
        "order = ['copy', 'mma']\n"
    )
    refuses(ScheduleError, "breaks a dependence", "load_a[", "copy_a[", schedule=file)


def test_the_knob_forces_a_schedule_file_and_its_mistakes():
    with knobs.scope(schedule=Path("forced.toml")):
        refuses(ScheduleFileError, "forced.toml", "cannot be read")


# --- arrays --------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def kernel():
    return up.compile(*SIGNATURE, arch="sm_80", sizes={"M": 16, "N": 16, "K": 32})


def ones(*shape, dtype=BF16):
    return np.ones(shape, dtype)


@pytest.mark.parametrize(
    ("operands", "fragments"),
    [
        ((ones(16, 32), ones(16, 32)), ("2 operands, expected 3", "x, w, b")),
        ((ones(16, 32, dtype=np.float32), ones(16, 32), ones(16)), ("x holds float32", "bf16")),
        ((ones(16, 24), ones(16, 32), ones(16)), ("x.shape[1] = 24", "w.shape[1] = 32", "dim K")),
        ((ones(32), ones(16, 32), ones(16)), ("x", "1 axes", "2 axes")),
        ((ones(16, 64)[:, ::2], ones(16, 32), ones(16)), ("x", "stride 2")),
        ((ones(0, 32), ones(16, 32), ones(16)), ("x.shape[0]", "0")),
        ((ones(16, 32), ones(16, 32), ones(17)), ("N", "17", "16")),
        (("text", ones(16, 32), ones(16)), ("x holds", "bf16")),
    ],
)
def test_arrays_that_do_not_fit(kernel, operands, fragments):
    with pytest.raises(ArgumentError) as caught:
        kernel.emulate(*operands)
    for fragment in fragments:
        assert fragment in str(caught.value), str(caught.value)


def test_an_unknown_stage(kernel):
    with pytest.raises(PolygenError, match=r"unknown stage 'nothing'.*tree"):
        kernel.show("nothing")


def test_sizes_of_a_check_that_cannot_be(kernel):
    with pytest.raises(PolygenError, match="no dim is called 'Z'"):
        kernel.check({"Z": 3})
    with pytest.raises(PolygenError, match="at least 1"):
        kernel.check({"M": 0})


def test_host_arrays_are_not_launched():
    with pytest.raises((ArgumentError, ToolchainMissing)):
        up(ones(16, 32), ones(16, 32), ones(16))


def test_a_call_with_too_few_operands():
    with pytest.raises(ArgumentError, match=r"up takes 3 operands, got 2.*x, w, b"):
        up(ones(16, 32), ones(16, 32))


def test_every_message_ends_a_sentence():
    with pytest.raises(PolygenError) as caught:
        up.compile(*SIGNATURE, arch="sm_80", sizes={"Q": 1})
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "error", "fragments"),
    [
        (lambda x, w, b: (x, w), ArgumentError, ("up takes 3 operands, got 2", "x, w, b")),
        (lambda x, w, b: (x, w, b, b), ArgumentError, ("up takes 3 operands, got 4",)),
        (lambda x, w, b: (x, w[:, 1:], b), ShapeError, ("x has inner dim 8, w.T has inner dim 7",)),
        (lambda x, w, b: (x, w, b[1:]), ShapeError, ("has 6 where b has 5", "b is [5]")),
        (lambda x, w, b: (3.0, w, b), ShapeError, ("x has 0 axes", "Use *")),
        (lambda x, w, b: (x * 1j, w, b), ArgumentError, ("x: the array holds complex", "x.real")),
        (
            lambda x, w, b: (x.astype(str), w, b),
            ArgumentError,
            ("x: the array holds <U", "float32"),
        ),
        (lambda x, w, b: (x, None, b), ArgumentError, ("w: a NoneType is neither an array",)),
        (lambda x, w, b: ([[1.0, 2.0], [3.0]], w, b), ArgumentError, ("x: a list is no array",)),
        (lambda x, w, b: (x.view("V8"), w, b), ArgumentError, ("x: the array holds |V8",)),
    ],
)
def test_the_reference_refuses_what_a_call_refuses(change, error, fragments):
    x, w, b = np.ones((4, 8)), np.ones((6, 8), BF16), np.ones(6, np.float32)
    with pytest.raises(error) as caught:
        up.reference(*change(x, w, b))
    for fragment in fragments:
        assert fragment in str(caught.value), str(caught.value)


def test_what_fails_on_numbers_alone_is_named_in_a_reference():
    rows = pg.fuse(lambda x, r, w: x[r] @ w.T, name="rows")
    x, w = np.ones((4, 8)), np.ones((6, 8))
    assert rows.reference(x, np.array([3, 0]), w).shape == (2, 6)
    with pytest.raises(PolygenError, match=r"rows: the function raises IndexError: index 9"):
        rows.reference(x, np.array([9]), w)
