"""Atoms: their tables against the PTX ISA's formulas, written here a second time."""

import copy

import numpy as np
import pytest

from polygen.errors import HardwareDataError
from polygen.hardware.atom import FILE, atom, atom_names, atoms_for, build, scopes_for
from polygen.hardware.data_file import read
from polygen.hardware.device import device

LANE = np.arange(32)[:, None]
GROUP, THREAD = LANE // 4, LANE % 4


def expected_of_short(kind, operand):
    """m16n8k8 of 16-bit elements and m8n8k16 of 8-bit ones: 16 bytes along k."""
    per, wide = 32 // int(kind), 4 if kind == "16" else 2
    count = {"a": per * wide // 2, "b": per, "c": wide}[operand]
    e = np.arange(count)[None, :]
    match operand:
        case "a":
            return GROUP + 8 * (e // per), per * THREAD + e % per
        case "b":
            return per * THREAD + e, GROUP + 0 * e
    return GROUP + 8 * (e // 2), 2 * THREAD + e % 2


def expected(kind, operand):
    count = {("16", "a"): 8, ("16", "b"): 4, ("32", "a"): 4, ("32", "b"): 2}
    count |= {("8", "a"): 16, ("8", "b"): 8}
    e = np.arange(4 if operand == "c" else count[kind, operand])[None, :]
    zero = 0 * e
    match kind, operand:
        case _, "c":
            return GROUP + 8 * (e >= 2), 2 * THREAD + (e & 1)
        case "16", "a":
            low = (e == 0) | (e == 1) | (e == 4) | (e == 5)
            return np.where(low, GROUP, GROUP + 8), 2 * THREAD + (e & 1) + 8 * (e >= 4)
        case "16", "b":
            return 2 * THREAD + (e & 1) + 8 * (e >= 2), GROUP + zero
        case "32", "a":
            return GROUP + 8 * (e & 1), THREAD + 4 * (e >= 2)
        case "32", "b":
            return THREAD + 4 * e, GROUP + zero
        case "8", "a":
            low = (e < 4) | ((e >= 8) & (e < 12))
            return np.where(low, GROUP, GROUP + 8), 4 * THREAD + (e & 3) + 16 * (e >= 8)
        case "8", "b":
            return 4 * THREAD + (e & 3) + 16 * (e >= 4), GROUP + zero


def expected_of_doubles(rows, operand):
    """An element of 64 bits in two registers: of a, b and c."""
    e = np.arange(64)[None, :]
    halves = rows // 8
    match operand:
        case "a":
            return GROUP + 8 * (e % halves), THREAD + 4 * (e // halves)
        case "b":
            return THREAD + 4 * e, GROUP + 0 * e
    return GROUP + 8 * (e // 2), 2 * THREAD + e % 2


QUADS = [name for name in atom_names() if atom(name).parts]
WARP = [name for name in atom_names() if atom(name).scope == "warp" and name not in QUADS]
WARPGROUP = [name for name in atom_names() if atom(name).scope == "warpgroup"]
ZEROS = [name for name in atom_names() if atom(name).scope == "elements" and "f32" in name]


@pytest.mark.parametrize("name", WARP)
@pytest.mark.parametrize("operand", ["a", "b", "c"])
def test_table_equals_the_published_formula(name, operand):
    found = atom(name)
    short = found.k * found.a.dtype.bits == 128
    table = found.fragment(operand).table
    if found.a.dtype.bits == 64:
        rows, columns = expected_of_doubles(found.m, operand)
        rows, columns = rows[:, : table.shape[1]], columns[:, : table.shape[1]]
    else:
        rows, columns = (expected_of_short if short else expected)(str(found.a.dtype.bits), operand)
    assert np.array_equal(table[..., 0], np.broadcast_to(rows, table.shape[:2]))
    assert np.array_equal(table[..., 1], np.broadcast_to(columns, table.shape[:2]))


def published_wgmma(bits, operand):
    """The figures of wgmma.mma_async, element by element: {(lane, element): (row, column)}.

    Warp i of the four holds rows 16 i to 16 i + 15. In each 8 x 8 core of them (of `a`, 8 rows of
    16 bytes) lane l has row l / 4, and 32 bits (of `c`: two f32) of column l % 4. Cores are counted
    down the rows first.
    """
    per_lane = 2 if operand == "c" else 32 // bits
    cores = 2 if operand == "c" else 4
    found = {}
    for warp in range(4):
        for core in range(cores):
            down, right = core % 2, core // 2
            for row in range(8):
                for four in range(4):
                    for i in range(per_lane):
                        lane, element = 32 * warp + 4 * row + four, per_lane * core + i
                        at = 16 * warp + 8 * down + row, (4 * right + four) * per_lane + i
                        found[lane, element] = at
    return found


@pytest.mark.parametrize("name", WARPGROUP)
@pytest.mark.parametrize("operand", ["a", "c"])
def test_a_warpgroups_table_equals_the_published_figure(name, operand):
    of = atom(name)
    table = of.fragment(operand).table
    published = published_wgmma(of.a.dtype.bits, operand)
    assert table.shape[0] == of.lanes == 128
    assert len(published) == table.shape[0] * table.shape[1]
    for (lane, element), at in published.items():
        assert tuple(table[lane, element]) == at


@pytest.mark.parametrize("name", WARPGROUP)
def test_a_warpgroup_reads_its_right_operand_from_shared_memory(name):
    b = atom(name).b
    assert (b.registers, b.elements, b.map, b.table.size) == (0, 0, "", 0)
    assert b.shape == (atom(name).k, atom(name).n)


def types_in_a_name(of):
    both = (of.a.dtype,) if of.a.dtype == of.b.dtype else (of.a.dtype, of.b.dtype)
    return "_".join(map(str, (of.c.dtype, *both)))


@pytest.mark.parametrize("name", WARPGROUP)
def test_a_warpgroups_record_fits_its_name(name):
    found = atom(name)
    assert found.name == f"wgmma_m{found.m}k{found.k}_{types_in_a_name(found)}"
    assert found.ptx.endswith(f".{found.c.dtype}.{found.a.dtype}.{found.b.dtype}")
    steps = np.diff(found.widths)
    assert set(steps) == ({8, 16} if found.c.dtype.name == "s32" else {8})
    assert f"m64n{{n}}k{found.k}." in found.ptx  # the columns are the schedule's
    assert (found.m, found.n, found.n_most) == (64, 8, 256)
    assert found.k * found.a.dtype.bits == 256
    assert found.requires == ("wgmma", "tma")
    # Only 16-bit elements can be multiplied with m or n innermost.
    assert found.majors == (("k", "mn") if found.a.dtype.bits == 16 else ("k",))


@pytest.mark.parametrize("name", WARP)
def test_record_fits_its_name(name):
    found = atom(name)
    assert (found.lanes, found.majors, found.n_most) == (32, (), found.n)
    assert found.name == f"m{found.m}n{found.n}k{found.k}_{types_in_a_name(found)}"
    taken = ["tf32" if found.split else one.dtype for one in (found.a, found.b)]
    assert f".{taken[0]}.{taken[1]}." in found.ptx
    assert f"m{found.m}n{found.n}k{found.k}" in found.ptx
    assert found.a.shape == (found.m, found.k) and found.b.shape == (found.k, found.n)
    assert found.a.elements_per_register == 32 // found.a.dtype.bits
    assert not found.a.table.flags.writeable
    assert atom(name) is found


@pytest.mark.parametrize("name", QUADS)
def test_quad_pairs_multiply_as_numpy_does(name):
    """Every instruction by the PTX ISA's formulas, on registers that the fragments fill."""
    of = atom(name)
    a, b = (np.random.default_rng(3).integers(-4, 5, one.shape) for one in (of.a, of.b))
    held = [x[one.table[..., 0], one.table[..., 1]] for x, one in ((a, of.a), (b, of.b))]
    sums = np.zeros((32, of.c.elements), int)
    _, left, right, kind = of.ptx.removeprefix("mma.sync.aligned.").split(".")[:4]
    lane, e = np.arange(32)[:, None], np.arange(4)[None, :]
    q, u, h = lane // 4 % 4, lane % 4, lane // 16
    eight = np.arange(8)[None, :]
    place = (u + 4 * h, eight)
    if kind == "f32":
        place = (
            lane % 2 + eight // 2 % 2 * 2 + 4 * h,
            eight // 4 * 4 + lane // 2 % 2 * 2 + eight % 2,
        )
    for first_c, first_a, first_b in of.parts:
        own_a, own_b = (
            x[:, 2 * r : 2 * r + 4] for x, r in zip(held, (first_a, first_b), strict=True)
        )
        each_a, each_b = np.zeros((4, 8, 4), int), np.zeros((4, 4, 8), int)
        each_a[(q, u + 4 * h, e) if left == "row" else (q, e + 4 * h, u)] = own_a
        each_b[(q, u, e + 4 * h) if right == "row" else (q, e, u + 4 * h)] = own_b
        first = first_c * (1 if kind == "f32" else 2)
        sums[:, first : first + 8] += (each_a @ each_b)[q, *place]
    assert np.array_equal(sums, (a @ b)[of.c.table[..., 0], of.c.table[..., 1]])
    assert (of.a.copies, of.b.copies, of.c.copies) == (2, 2, 1)
    assert of.name == f"quads_m{of.m}n{of.n}k{of.k}_{of.c.dtype}_f16"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parts": [[0, 0, 0]]}, r"nothing adds a\[0,4\]"),
        ({"parts": [[0, 0, 0], [0, 2, 2], [0, 0, 0]]}, "is added twice"),
        ({"parts": [[0, 0, 0], [0, 2, 0]]}, r"adds a\[0,4\] \* b\[0,0\] to c\[0,0\]"),
        ({"parts": [[0, 0, 0], [0, 4, 2]]}, "register 4 of a is outside of 4"),
        ({"parts": [[4, 0, 0], [0, 2, 2]]}, "outside of 8"),
        ({"ptx": "mma.sync.aligned.m8n8k4.col.col.f32.f16.f16.f32"}, r"adds a\[1,0\] \* b\[1,0\]"),
        (
            {"ptx": "mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f16"},
            r"a\[0,0\] \* b\[0,2\] to c\[2,0\]",
        ),
        ({"ptx": "mma.sync.aligned.m16n8k4.row.col.f32.f16.f16.f32"}, "nothing is known of the pa"),
    ],
)
def test_parts_that_make_no_product_are_refused(change, message):
    table = copy.deepcopy(read(FILE)["quads_m16n16k8_f32_f16"])
    with pytest.raises(HardwareDataError, match=message):
        build("changed", table | change)


def test_an_accumulator_that_lies_otherwise_is_refused():
    table = copy.deepcopy(read(FILE)["quads_m32n32k4_f32_f16"])
    text = table["c"]["map"]
    table["c"]["map"] = text.replace("4*floor(e/16)", "4*(floor(e/8) mod 2)").replace(
        "4*(floor(e/8) mod 2)+8*(floor(l/4) mod 2)", "4*floor(e/16)+8*(floor(l/4) mod 2)"
    )
    assert table["c"]["map"] != text
    with pytest.raises(HardwareDataError, match=r"adds a\[0,0\] \* b\[0,4\] to c\[4,0\]"):
        build("changed", table)


def test_copies_are_counted():
    table = copy.deepcopy(read(FILE)["quads_m16n16k8_f32_f16"])
    table["a"]["map"] = table["a"]["map"].replace("floor(l/8) mod 2", "0 mod 2")
    with pytest.raises(HardwareDataError, match="and 1 more hold"):
        build("changed", table)


@pytest.mark.parametrize("name", [n for n in atom_names() if atom(n).scope == "lanes"])
def test_lanes_have_whole_chunks_and_a_part_of_every_sum(name):
    found, chunk = atom(name), 16
    assert (found.lanes, found.majors) == (32, ())
    each = chunk * 8 // found.a.dtype.bits
    assert found.name == f"dot_k{32 * each}_{found.c.dtype}_{found.a.dtype}"
    k = each * LANE + np.arange(each)[None, :]
    for fragment, axis in ((found.a, 1), (found.b, 0)):
        assert fragment.registers * 4 == chunk
        assert np.array_equal(fragment.table[..., axis], k)
        assert not fragment.table[..., 1 - axis].any()
    assert found.c.table.shape == (32, 1, 2) and not found.c.table.any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("j=0 and i=0", None),
        ("j=0 and i=1", "outside"),
        ("j=0 and i=0 and l < 31", "does not cover"),
        ("j=0 and 0 <= i <= 1", "not a function"),
    ],
)
def test_parts_of_lanes_are_of_all_elements(change, message):
    table = copy.deepcopy(read(FILE)["dot_k256_f32_bf16"])
    table["c"]["map"] = f"{{ F[l,e] -> C[i,j] : 0<=l<32 and e=0 and {change} }}"
    if message is None:
        assert build("changed", table).c.registers == 1
        return
    with pytest.raises(HardwareDataError, match=message):
        build("changed", table)


def test_parts_of_lanes_are_of_the_same_elements():
    table = copy.deepcopy(read(FILE)["dot_k256_f32_bf16"])
    table["shape"]["n"] = 2
    for name, place in (("b", "0<=j<2 and e = 8*j + k - 8*l and 0 <= k - 8*l < 8"),):
        table[name] |= {
            "registers": 8,
            "map": f"{{ F[l,e] -> B[k,j] : 0<=l<32 and 0<=e<16 and {place} }}",
        }
    swapped = "((l < 16 and j = e) or (l >= 16 and j = 1 - e))"
    table["c"] |= {
        "registers": 2,
        "map": f"{{ F[l,e] -> C[i,j] : 0<=l<32 and 0<=e<2 and i=0 and {swapped} }}",
    }
    with pytest.raises(HardwareDataError, match="parts of different elements"):
        build("changed", table)


def test_choice_by_dtype_and_feature():
    ampere, ada = device("sm_80"), device("sm_89")
    assert [a.name for a in atoms_for(ampere, "f16", "f16")] == [
        "m16n8k16_f32_f16",
        "m16n8k16_f16_f16",
        "m16n8k8_f32_f16",
        "m16n8k8_f16_f16",
        *QUADS,
        "dot_k256_f32_f16",
        *ZEROS,
    ]
    assert [a.name for a in atoms_for(ampere, "f16", "f16", "f16")] == [
        "m16n8k16_f16_f16",
        "m16n8k8_f16_f16",
        *(name for name in QUADS if "_f16_f16" in name),
    ]
    volta = atoms_for(device("sm_70"), "f16", "f16")
    assert [a.name for a in volta] == [*QUADS, "dot_k256_f32_f16", *ZEROS] and len(QUADS) == 8
    turing = device("sm_75")
    assert atoms_for(turing, "f16", "f16", "f32")[0].name == "m16n8k8_f32_f16"
    assert [a.name for a in atoms_for(turing, "s8", "s8")] == ["m8n8k16_s32_s8"]
    assert [a.scope for a in atoms_for(turing, "bf16", "bf16")] == ["lanes"]
    assert atoms_for(ampere, "e4m3", "e4m3") == ()
    assert [a.name for a in atoms_for(ada, "e4m3", "e4m3")] == ["m16n8k32_f32_e4m3"]
    assert [a.scope for a in atoms_for(device("sm_90"), "bf16", "bf16")] == ["warp", "lanes"]
    assert [a.scope for a in atoms_for(device("sm_90a"), "bf16", "bf16")] == [
        "warp",
        "warpgroup",
        "lanes",
    ]
    assert atoms_for(ampere, "f16", "bf16") == ()
    hopper = device("sm_90a")
    named = [(one.name, one.scope) for one in atoms_for(hopper, "bf16", "bf16", "f32")]
    assert list(scopes_for(hopper, "bf16", "bf16", "f32")) == named
    assert atom("m16n8k32_f32_e4m3").runs_on(ada)
    assert not atom("m16n8k32_f32_e4m3").runs_on(ampere)


def test_an_entry_takes_from_another_what_it_does_not_say():
    own, base = atom("wgmma_m64k32_s32_s8_u8"), atom("wgmma_m64k32_s32_s8")
    assert (own.a.dtype.name, own.b.dtype.name, own.c.dtype.name) == ("s8", "u8", "s32")
    assert (own.a.map, own.c.map, own.widths) == (base.a.map, base.c.map, base.widths)


@pytest.mark.parametrize("widths", [[8, 12], [8, 16]])
def test_widths_that_are_not_the_instructions(widths):
    table = copy.deepcopy(read(FILE)["wgmma_m64k32_s32_s8"])
    with pytest.raises(HardwareDataError, match="no multiples of 8 up to 256"):
        build("changed", table | {"widths": widths})
