"""Wrong targets and wrong data entries are refused, with the property that fails and a witness."""

import copy

import numpy as np
import pytest

from polygen.errors import HardwareDataError, UnknownTarget, VerifyError
from polygen.hardware import atom as atoms
from polygen.hardware import data_file, fragment_load, swizzle
from polygen.hardware import device as targets

HALF = "m16n8k16_f32_f16"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("sm_88", "sm_87"), ("sm_61", "sm_70"), ("compute_999", "sm_120"), ("sm_8O", "sm_80")],
)
def test_unknown_target_names_the_nearest_and_all(name, nearest):
    with pytest.raises(UnknownTarget, match=f"{name}.*Nearest: {nearest}. Known: sm_70, sm_75"):
        targets.device(name)


def test_target_without_number():
    with pytest.raises(UnknownTarget, match=r"'hopper'. Known: sm_70"):
        targets.device("hopper")


def device_table():
    data = copy.deepcopy(data_file.read("devices.toml"))
    return data["sm_80"], data["common"]


def test_device_with_a_missing_fact():
    table, common = device_table()
    next(iter(table["facts"].values())).pop("shared_per_multiprocessor")
    with pytest.raises(HardwareDataError, match=r"missing facts.*shared_per_multiprocessor"):
        targets.build("sm_80", table, common)


def test_device_with_an_unknown_fact():
    table, common = device_table()
    next(iter(table["facts"].values()))["colour"] = 3
    with pytest.raises(HardwareDataError, match=r"unknown facts.*colour"):
        targets.build("sm_80", table, common)


def test_device_with_a_wrong_number():
    table, common = device_table()
    next(iter(table["facts"].values()))["shared_per_multiprocessor"] = "164 KiB"
    with pytest.raises(HardwareDataError, match="'164 KiB' is not a positive integer"):
        targets.build("sm_80", table, common)


def test_device_without_features():
    table, common = device_table()
    del table["features"]
    with pytest.raises(HardwareDataError, match="'features' is missing"):
        targets.build("sm_80", table, common)


def broken_atom(old, new, operand="a"):
    table = copy.deepcopy(data_file.read("atoms.toml")[HALF])
    assert old in table[operand]["map"]
    table[operand]["map"] = table[operand]["map"].replace(old, new)
    return table


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("i=floor(l/4)+8*(floor(e/2) mod 2)", "i=floor(l/4)", r"not injective: slots .* hold"),
        ("0<=e<8", "0<=e<7", r"does not cover the operand: no slot holds \(8, 9\)"),
        ("0<=e<8", "0<=e<9", "slot .* is outside 32 x 8"),
        ("i=floor(l/4)+8", "i=1+floor(l/4)+8", r"holds \(16, 0\), outside \(16, 16\)"),
        (
            "i=floor(l/4)+8*(floor(e/2) mod 2)",
            "0<=i<16",
            "not a function: slot .* holds both",
        ),
        ("0<=l<32", "0<=l", "unbounded"),
        ("0<=l<32", "0<=l<32 and and", "not an isl map"),
    ],
)
def test_wrong_fragment_map(old, new, message):
    with pytest.raises(HardwareDataError, match=message):
        atoms.build(HALF, broken_atom(old, new))


def test_wrong_register_count():
    table = copy.deepcopy(data_file.read("atoms.toml")[HALF])
    table["a"]["registers"] = 8
    with pytest.raises(HardwareDataError, match=r"do not fill 8 registers. registers = 4"):
        atoms.build(HALF, table)


def test_wrong_element_type():
    table = copy.deepcopy(data_file.read("atoms.toml")[HALF])
    table["a"]["dtype"] = "f12"
    with pytest.raises(HardwareDataError, match="f12"):
        atoms.build(HALF, table)


def test_unknown_atom_and_swizzle():
    with pytest.raises(HardwareDataError, match=r"unknown atom 'm1n1k1'. Known: m16n8k16"):
        atoms.atom("m1n1k1")
    with pytest.raises(HardwareDataError, match=r"unknown swizzle 'xor9'. Known: none"):
        swizzle.swizzle("xor9")


def test_load_whose_formula_contradicts_its_relation():
    table = dict(data_file.read("ldmatrix.toml")["loads"]["a_k"], row="lane % 8")
    with pytest.raises(HardwareDataError, match=r"lane 8 of instruction 0.*give \(8, 0\)"):
        fragment_load.build("a_k", table, atoms.atom(HALF))


def test_load_whose_counts_disagree():
    table = dict(data_file.read("ldmatrix.toml")["loads"]["a_k"], count=2)
    with pytest.raises(HardwareDataError, match="do not fit together"):
        fragment_load.build("a_k", table, atoms.atom(HALF))


@pytest.mark.parametrize("formula", ["lane ** 2", "other + 1", "lane +", "lane if lane else 1"])
def test_formula_outside_the_small_language(formula):
    with pytest.raises(HardwareDataError, match="index formula"):
        data_file.evaluate(formula, {"lane": np.arange(4)}, "here")


def test_missing_data_file():
    with pytest.raises(HardwareDataError, match=r"nothing.toml: cannot be read"):
        data_file.read("nothing.toml")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask": 3}, "the domain is not 4 rows x 8 chunks"),
        ({"multiplier": 3}, "the formula keeps the row and gives chunk"),
        ({"map": "{ [r,c] -> [r,p] : 0<=r<8 and 0<=c<8 and p = 0 }"}, "not a bijection"),
        ({"map": "{ [r,c] -> [r,p] : 0<=r<8 and 0<=c<8 and p = c + 1 }"}, "the image is not"),
        ({"map": "{ [r,c] -> [q,c] : 0<=r<8 and 0<=c<8 and q = 7 - r }"}, "to row 7 chunk 0"),
        ({"map": "{ [r,c] -> [r,c] : 0<=r }"}, "not a finite isl map"),
    ],
)
def test_wrong_swizzle(change, message):
    table = data_file.read("swizzles.toml")["swizzles"]["xor8_shift0"] | change
    with pytest.raises(HardwareDataError, match=message):
        swizzle.build("xor8_shift0", table)


def test_wavefronts_refuse_odd_sizes_and_misaligned_addresses():
    with pytest.raises(VerifyError, match=r"3 bytes per lane.*1, 2, 4, 8 or 16"):
        swizzle.wavefronts(np.arange(32), 3)
    with pytest.raises(VerifyError, match="not a multiple of 4"):
        swizzle.wavefronts(np.arange(32), 4)
