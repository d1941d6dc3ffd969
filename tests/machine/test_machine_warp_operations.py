# ruff: noqa: E501 - CUDA text
"""What the lanes of a warp do together, with random values and members, against Python."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from machine.conftest import to_ptx

from polygen.machine import Launch, run

LANES, WARPS = 32, 8
COUNT = LANES * WARPS
MASKS = [0xFFFFFFFF, 0x0000FFFF, 0xFFFF0000, 0x55555555, 0x80000001, 0x00000100, 0x0FF00FF0, 0xFFFFFFFE]  # fmt: skip

KERNEL = """
extern "C" __global__ void k(const unsigned* in, const unsigned* other, const unsigned* members, unsigned* out, unsigned* also) {
  const int t = threadIdx.x; const unsigned mask = members[t / 32];
  unsigned found = 0xABCD, second = 7; const unsigned x = in[t], y = other[t];
  if (mask >> (t % 32) & 1) { BODY }
  out[t] = found; also[t] = second;
}"""


def executed(body: str, small: bool = False, arch: str = "sm_80", keep=None):
    """The inputs by warps, their members, and both results."""
    random = np.random.default_rng(0)
    x, y = random.integers(0, 5 if small else 2**32, (2, COUNT), np.uint32)
    if keep is not None:
        y = y & np.uint32(31) | keep(y).astype(np.uint32) << np.uint32(31)
    members = np.array(MASKS, np.uint32)
    given = (x, y, members, np.zeros(COUNT, np.uint32), np.zeros(COUNT, np.uint32))
    source = KERNEL.replace("BODY", body)
    report = run(to_ptx(source, arch), Launch((1, 1, 1), (COUNT, 1, 1), 0, given))
    assert report.ok, str(report)
    rows = [one.reshape(WARPS, LANES).tolist() for one in (x, y, *report.arrays[3:])]
    return rows, [[mask >> lane & 1 for lane in range(LANES)] for mask in MASKS]


def compare(rows, members, rule):
    """`rule(values, others, lane, lanes)`: what a lane gets, once or as a pair."""
    x, y, found, second = rows
    for warp in range(WARPS):
        lanes = [lane for lane in range(LANES) if members[warp][lane]]
        for lane in range(LANES):
            if lane not in lanes:
                assert (found[warp][lane], second[warp][lane]) == (0xABCD, 7)
                continue
            wanted = rule(x[warp], y[warp], lane, lanes)
            got = found[warp][lane], second[warp][lane]
            assert got == wanted if isinstance(wanted, tuple) else got[0] == wanted, (warp, lane)


def signed(word):
    return word - (1 << 32) if word >> 31 else word


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("control", [0, 0x1F, 0x181F, 0x1800, 0x1C03, 0x100F, 0x070B])
def test_shuffles(mode, control):
    """The manual's pseudo-code; what a lane gets of one that is not a member is not looked at."""
    steps = "(y & 31)" if mode == "idx" else "((unsigned)t / 32 * 5 % 32)"
    body = f"""asm volatile("{{ .reg .pred p; shfl.sync.{mode}.b32 %0|p, %2, %3, {control}, %4; selp.u32 %1, 1, 0, p; }}"
      : "=r"(found), "=r"(second) : "r"(x), "r"({steps}), "r"(mask)); found = y >> 31 ? found : 0;"""
    clamp, segment = control & 31, control >> 8 & 31

    def source(lane, b):
        most, least = (lane & segment) | (clamp & ~segment), lane & segment
        at, inside = {
            "up": (lane - b, lane - b >= most),
            "down": (lane + b, lane + b <= most),
            "bfly": (lane ^ b, lane ^ b <= most),
            "idx": (least | (b & ~segment), (least | (b & ~segment)) <= most),
        }[mode]
        return (at if inside else lane), inside

    def step(y, thread):
        return int(y) & 31 if mode == "idx" else thread // 32 * 5 % 32

    def keep(y):
        sources = [source(t % 32, step(y[t], t))[0] for t in range(COUNT)]
        return np.array([MASKS[t // 32] >> sources[t] & 1 for t in range(COUNT)])

    (x, y, found, second), members = executed(body, keep=keep)
    for thread in range(COUNT):
        warp, lane = divmod(thread, LANES)
        if members[warp][lane]:
            at, inside = source(lane, step(y[warp][lane], thread))
            kept = members[warp][at]
            wanted = (x[warp][at] if kept else 0, inside)
            assert (found[warp][lane], second[warp][lane]) == wanted, (warp, lane)


@pytest.mark.parametrize("mode", ["all", "any", "uni", "ballot"])
def test_votes(mode):
    result = ("b32 %0, p, %3;", "") if mode == "ballot" else ("pred p, p, %3;", "selp.u32 %0, 1, 0, p;")  # fmt: skip
    body = f"""asm volatile("{{ .reg .pred p; setp.lt.u32 p, %1, %2; vote.sync.{mode}.{result[0]} {result[1]} }}"
      : "=r"(found) : "r"(x), "r"(y), "r"(mask));"""

    def rule(x, y, lane, lanes):
        votes = {one: x[one] < y[one] for one in lanes}
        if mode == "ballot":
            return sum(vote << one for one, vote in votes.items())
        held = set(votes.values())
        return int({"all": held == {True}, "any": True in held, "uni": len(held) == 1}[mode])

    compare(*executed(body, small=True), rule)


@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize("mode", ["any", "all"])
def test_matches(mode, width):
    value = "%2" if width == 32 else "d"
    target = "%0|p" if mode == "all" else "%0"
    second = "selp.u32 %1, 1, 0, p;" if mode == "all" else "mov.u32 %1, 9;"
    body = f"""asm volatile("{{ .reg .pred p; .reg .b64 d; mov.b64 d, {{%3, %2}}; match.{mode}.sync.b{width} {target}, {value}, %4; {second} }}"
      : "=r"(found), "=r"(second) : "r"(t / 32 % 2 ? x : 6), "r"(t / 64 % 2 ? x : y), "r"(mask));"""
    rows, members = executed(body, small=True)

    def rule(at):
        x, y = (np.array(row).reshape(-1) for row in rows[:2])
        first, second = x[at] if at // 32 % 2 else 6, x[at] if at // 64 % 2 else y[at]
        return (first,) if width == 32 else (first, second)

    for warp in range(WARPS):
        lanes = [lane for lane in range(LANES) if members[warp][lane]]
        whole = sum(1 << lane for lane in lanes)
        for lane in lanes:
            here = rule(warp * 32 + lane)
            same = sum(1 << one for one in lanes if rule(warp * 32 + one) == here)
            wanted = (same, 9) if mode == "any" else (whole, 1) if same == whole else (0, 0)
            assert (rows[2][warp][lane], rows[3][warp][lane]) == wanted


REDUCTIONS = {
    "add.u32": lambda v: sum(v), "add.s32": lambda v: sum(v), "min.u32": min, "max.u32": max,
    "min.s32": lambda v: min(map(signed, v)), "max.s32": lambda v: max(map(signed, v)),
    "and.b32": lambda v: int(np.bitwise_and.reduce(v)), "or.b32": lambda v: int(np.bitwise_or.reduce(v)),
    "xor.b32": lambda v: int(np.bitwise_xor.reduce(v)),
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name):
    body = f'asm volatile("redux.sync.{name} %0, %1, %2;" : "=r"(found) : "r"(x), "r"(mask));'
    rule = REDUCTIONS[name]
    compare(*executed(body), lambda x, y, lane, lanes: rule([x[one] for one in lanes]) & 0xFFFFFFFF)


def test_one_lane_is_elected():
    body = """asm volatile("{ .reg .pred p; elect.sync %0|p, %2; selp.u32 %1, 1, 0, p; }" : "=r"(found), "=r"(second) : "r"(mask));"""
    rows, members = executed(body, arch="sm_90")
    for warp in range(WARPS):
        lanes = [lane for lane in range(LANES) if members[warp][lane]]
        chosen = [lane for lane in lanes if rows[3][warp][lane]]
        assert len(chosen) == 1 and all(rows[2][warp][lane] == chosen[0] for lane in lanes)


def test_who_is_active():
    body = """asm volatile("activemask.b32 %0;" : "=r"(found)); asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(second));"""
    compare(*executed(body), lambda x, y, lane, lanes: (sum(1 << one for one in lanes), (1 << lane) - 1))  # fmt: skip


@pytest.mark.parametrize("mode", ["popc.u32", "and.pred", "or.pred"])
@pytest.mark.parametrize("opcode", ["bar", "barrier"])
def test_barriers_that_reduce(mode, opcode):
    predicate = mode.endswith("pred")
    target, after = ("q", "selp.u32 %0, 1, 0, q;") if predicate else ("%0", "")
    asm = f"""asm volatile("{{ .reg .pred p, q; setp.lt.u32 p, %1, %2; {opcode}.red.{mode} {target}, 1, 128, p; {after} }}"
      : "=r"(found) : "r"(x), "r"(t >= 128 ? 5u : y));"""
    text = KERNEL.replace("BODY", "found = 1;").replace("out[t] =", f"if (t < 256) {{ if (t >= 128) {{ {asm} }} }} out[t] =")  # fmt: skip
    random = np.random.default_rng(0)
    x, y = random.integers(0, 5 if mode != "and.pred" else 6, (2, COUNT), np.uint32)
    members = np.full(WARPS, 0xFFFFFFFF, np.uint32)
    given = (x, y, members, np.zeros(COUNT, np.uint32), np.zeros(COUNT, np.uint32))
    report = run(to_ptx(text), Launch((1, 1, 1), (COUNT, 1, 1), 0, given))
    assert report.ok, str(report)
    votes = x[128:] < 5
    wanted = {"popc.u32": votes.sum(), "and.pred": votes.all(), "or.pred": votes.any()}[mode]
    np.testing.assert_array_equal(report.arrays[3], np.r_[np.ones(128), np.full(128, wanted)])


# --- atomics -------------------------------------------------------------------------------------
ATOMICS = {
    "u32": ("add", "min", "max", "inc", "dec"), "s32": ("add", "min", "max"),
    "b32": ("and", "or", "xor", "exch"), "u64": ("add", "min", "max"), "s64": ("min", "max"),
    "b64": ("and", "or", "xor", "exch"),
}  # fmt: skip


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("kind, name", [(kind, name) for kind, names in ATOMICS.items() for name in names])  # fmt: skip
def test_atomics_of_one_lane_each(kind, name, space):
    """What was there before, and what is there after: every thread has a place of its own."""
    wide = kind.endswith("64")
    dtype = np.uint64 if wide else np.uint32
    word, letter, shown = ("unsigned long long", "l", "b64") if wide else ("unsigned", "r", "b32")
    source = f"""extern "C" __global__ void k({word}* place, const {word}* value, {word}* before) {{
      __shared__ {word} s[128]; const int t = threadIdx.x; s[t] = place[t]; {word} found; size_t at = (size_t)(place + t);
      if (SHARED) asm("cvta.to.shared.u64 %0, %1;" : "=l"(at) : "l"(s + t));
      asm volatile("atom.{space}.{name}.{kind} %0, [%1], %2;" : "={letter}"(found) : "l"(at), "{letter}"(value[t]) : "memory");
      before[t] = found; if (SHARED) place[t] = s[t]; }}""".replace("SHARED", str(int(space == "shared")))  # fmt: skip
    random = np.random.default_rng(len(name))
    bits = 64 if wide else 32
    place, value = random.integers(0, 2**bits, (2, 128), dtype)
    place[:16], value[:16] = np.arange(16) % 4, np.arange(16) // 4
    report = run(
        to_ptx(source), Launch((1, 1, 1), (128, 1, 1), 0, (place, value, np.zeros(128, dtype)))
    )
    assert report.ok, str(report)
    np.testing.assert_array_equal(report.arrays[2], place)

    def less(a, b):
        flip = (1 << bits - 1) if kind[0] == "s" else 0
        return (a ^ flip) < (b ^ flip)

    rules = {
        "add": lambda a, b: a + b, "exch": lambda a, b: b, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b, "min": lambda a, b: a if less(a, b) else b, "max": lambda a, b: b if less(a, b) else a,
        "inc": lambda a, b: 0 if a >= b else a + 1, "dec": lambda a, b: b if a == 0 or a > b else a - 1,
    }  # fmt: skip
    wanted = [rules[name](a, b) & (1 << bits) - 1 for a, b in zip(place.tolist(), value.tolist(), strict=True)]  # fmt: skip
    assert report.arrays[0].tolist() == wanted, shown


FLOATS = {
    "add.f32": ("f4", 1), "add.f64": ("f8", 1), "add.noftz.f16": ("f2", 1), "add.noftz.bf16": ("bf", 1),
    "add.noftz.f16x2": ("f2", 2), "add.noftz.bf16x2": ("bf", 2), "exch.b32": ("f4", 1),
}  # fmt: skip
VECTORS = {f"v2.f16.{name}.noftz": ("f2", 2) for name in ("add", "min", "max")} | {
    f"v2.bf16x2.{name}.noftz": ("bf", 4) for name in ("add", "min", "max")
}
SOME = [0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 1.5e-39, 3e38, np.inf, -np.inf, np.nan, 65504, 6e-8, -6e-8, 1 / 3, 1e-38]  # fmt: skip


def narrow(values, kind):
    with np.errstate(over="ignore"):
        return values.astype(ml_dtypes.bfloat16 if kind == "bf" else kind)


PLACES = [("global", name) for name in (*FLOATS, *VECTORS)] + [("shared", name) for name in FLOATS]


@pytest.mark.parametrize("space, name", PLACES)  # vectors are of global memory alone
def test_atomics_of_floats(space, name):
    """One place per thread. Sums in float32 flush what is below normal in global memory, and there alone."""
    kind, count = (FLOATS | VECTORS)[name]
    random = np.random.default_rng(1)
    a = narrow(np.r_[np.repeat(SOME, 16), random.standard_normal(256)], kind)
    b = narrow(np.r_[np.tile(SOME, 16), random.standard_normal(256)], kind)
    size = a.itemsize * count
    words = {2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}[min(size, 8)]
    letter = {2: "h", 4: "r", 8: "l"}[min(size, 8)]
    threads = 512 // count
    if name in VECTORS:
        inner = "{ .reg .b16 a, b; mov.b32 {a, b}, %1; " if size == 4 else "{ .reg .b32 a, b; mov.b64 {a, b}, %1; "  # fmt: skip
        asm = f'asm volatile("{inner} red.global.{name} [%0], {{a, b}}; }}" :: "l"(at), "{letter}"(value[t]) : "memory");'
    else:
        scratch = {"f": "f32", "d": "f64"}.get({"add.f32": "f", "add.f64": "d"}.get(name, ""), f"b{8 * size}")  # fmt: skip
        asm = f'asm volatile("{{ .reg .{scratch} o, n; mov.b{8 * size} n, %2; atom.{space}.{name} o, [%1], n; mov.b{8 * size} %0, o; }}" : "={letter}"(found) : "l"(at), "{letter}"(value[t]) : "memory");'
    source = f"""extern "C" __global__ void k({words}* place, const {words}* value, {words}* before) {{
      __shared__ {words} s[512]; const int t = threadIdx.x; s[t] = place[t]; {words} found = 0; size_t at = (size_t)(place + t);
      if (SHARED) asm("cvta.to.shared.u64 %0, %1;" : "=l"(at) : "l"(s + t));
      {asm} before[t] = found; if (SHARED) place[t] = s[t]; }}""".replace("SHARED", str(int(space == "shared")))  # fmt: skip
    raw = [one.view(f"u{size}") for one in (a, b)]
    given = (*raw, np.zeros_like(raw[0]))
    report = run(to_ptx(source, "sm_90"), Launch((1, 1, 1), (threads, 1, 1), 0, given))
    assert report.ok, str(report)
    if name not in VECTORS:
        np.testing.assert_array_equal(report.arrays[2], raw[0])
    x, y = a.astype("f8"), b.astype("f8")
    with np.errstate(all="ignore"):
        if name == "add.f32" and space == "global":
            x, y = (np.where(abs(one) < 2.0**-126, np.copysign(0, one), one) for one in (x, y))
        wanted = x + y if "add" in name else y if "exch" in name else np.fmin(x, y) if "min" in name else np.fmax(x, y)  # fmt: skip
        wanted = narrow(wanted, kind)
        if name == "add.f32" and space == "global":
            wanted = np.where(abs(wanted) < np.float32(2.0**-126), np.copysign(np.float32(0), wanted), wanted)  # fmt: skip
    found = report.arrays[0].view(a.dtype)
    np.testing.assert_array_equal(found.astype("f8"), wanted.astype("f8"))


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("bits", [16, 32, 64])
def test_compare_and_swap(bits, space):
    dtype = f"u{bits // 8}"
    word = {16: "unsigned short", 32: "unsigned", 64: "unsigned long long"}[bits]
    letter = {16: "h", 32: "r", 64: "l"}[bits]
    source = f"""extern "C" __global__ void k({word}* place, const {word}* like, const {word}* value, {word}* before) {{
      __shared__ {word} s[128]; const int t = threadIdx.x; s[t] = place[t]; {word} found; size_t at = (size_t)(place + t);
      if (SHARED) asm("cvta.to.shared.u64 %0, %1;" : "=l"(at) : "l"(s + t));
      asm volatile("atom.{space}.cas.b{bits} %0, [%1], %2, %3;" : "={letter}"(found) : "l"(at), "{letter}"(like[t]), "{letter}"(value[t]) : "memory");
      before[t] = found; if (SHARED) place[t] = s[t]; }}""".replace("SHARED", str(int(space == "shared")))  # fmt: skip
    place, like, value = np.random.default_rng(bits).integers(0, 2**bits, (3, 128), dtype)
    like[::2] = place[::2]
    report = run(
        to_ptx(source), Launch((1, 1, 1), (128, 1, 1), 0, (place, like, value, np.zeros_like(like)))
    )
    assert report.ok, str(report)
    np.testing.assert_array_equal(report.arrays[3], place)
    np.testing.assert_array_equal(report.arrays[0], np.where(place == like, value, place))


# --- addresses -----------------------------------------------------------------------------------
def test_which_space_an_address_is_of():
    source = """extern "C" __global__ void k(unsigned* out, int n) {
      __shared__ unsigned s[64]; unsigned local[8]; const int t = threadIdx.x;
      for (int i = 0; i < 8; i++) local[i] = n * i; s[t] = t; __syncthreads();
      const unsigned* at = t % 3 == 0 ? s + t : t % 3 == 1 ? local + (t & 7) : out + t; unsigned found = 0;
      asm volatile("{ .reg .pred p; isspacep.shared p, %1; @p or.b32 %0, %0, 1; isspacep.local p, %1; @p or.b32 %0, %0, 2; isspacep.global p, %1; @p or.b32 %0, %0, 4; }"
        : "+r"(found) : "l"(at));
      out[t] = found + 16 * (t % 3 == 2 ? 0 : *at); }"""
    report = run(to_ptx(source), Launch((1, 1, 1), (64, 1, 1), 0, (np.zeros(64, np.uint32), np.int32(3))))  # fmt: skip
    assert report.ok, str(report)
    at = np.arange(64)
    wanted = np.choose(at % 3, [1 + 16 * at, 2 + 16 * 3 * (at & 7), 4])
    np.testing.assert_array_equal(report.arrays[0], wanted)


# --- parts of a warp, each with a mask of its own --------------------------------------------------
PARTED = {
    "found = __reduce_add_sync(mask, x)": lambda x, lane, lanes: sum(x[i] for i in lanes) & 0xFFFFFFFF,
    "found = __reduce_min_sync(mask, x)": lambda x, lane, lanes: min(x[i] for i in lanes),
    "found = __any_sync(mask, x % 9 == 0)": lambda x, lane, lanes: any(x[i] % 9 == 0 for i in lanes),
    "found = __all_sync(mask, x % 9)": lambda x, lane, lanes: all(x[i] % 9 for i in lanes),
    "found = __ballot_sync(mask, x & 1)": lambda x, lane, lanes: sum((x[i] & 1) << i for i in lanes),
    "found = __match_any_sync(mask, x & 3)": lambda x, lane, lanes: sum(1 << i for i in lanes if (x[i] ^ x[lane]) & 3 == 0),
    "int same; found = __match_all_sync(mask, x / 0x80000000, &same)": lambda x, lane, lanes: sum(1 << i for i in lanes) * (len({x[i] >> 31 for i in lanes}) == 1),
    'asm volatile("{.reg .pred p; elect.sync %0|p, %1;}" : "=r"(found) : "r"(mask))': lambda x, lane, lanes: min(lanes),
}  # fmt: skip


@pytest.mark.parametrize("parts", [4, 8, 16, -2])
@pytest.mark.parametrize("text", PARTED)
def test_parts_of_a_warp_with_masks_of_their_own(text, parts):
    """One instruction, executed by all lanes: `parts` lanes beside each other, or every second."""
    source = """extern "C" __global__ void k(const unsigned* in, unsigned* out) {
      const int t = threadIdx.x % 32; const unsigned x = in[threadIdx.x]; unsigned found;
      const unsigned mask = MASK;
      TEXT; out[threadIdx.x] = found; }"""
    mask = f"((1u << {parts}) - 1) << (t / {parts} * {parts})" if parts > 0 else "t & 1 ? 0xAAAAAAAAu : 0x55555555u"  # fmt: skip
    x = np.random.default_rng(1).integers(0, 2**32, COUNT, np.uint32)
    ptx = to_ptx(source.replace("MASK", mask).replace("TEXT", text), "sm_90a")
    report = run(ptx, Launch((1, 1, 1), (COUNT, 1, 1), 0, (x, np.zeros_like(x))))
    assert report.ok, str(report)
    for warp, (values, found) in enumerate(zip(x.reshape(-1, 32).tolist(), report.arrays[1].reshape(-1, 32), strict=True)):  # fmt: skip
        for lane in range(32):
            group = lane // parts if parts > 0 else lane % 2
            lanes = [i for i in range(32) if (i // parts if parts > 0 else i % 2) == group]
            assert found[lane] == PARTED[text](values, lane, lanes), (warp, lane)


@pytest.mark.parametrize("text", ["__reduce_add_sync(M, x)", "__shfl_sync(M, x, 0)", "__any_sync(M, x)", "__match_any_sync(M, x)"])  # fmt: skip
def test_a_lane_that_does_not_name_itself_is_found(text):
    source = 'extern "C" __global__ void k(unsigned* out) { unsigned x = out[threadIdx.x]; out[threadIdx.x] = TEXT; }'
    for mask, found in (("0xffffffff", []), ("0x7fffffff", ["divergent-warp-operation"])):
        ptx = to_ptx(source.replace("TEXT", text.replace("M", mask)), "sm_80")
        report = run(ptx, Launch((1, 1, 1), (32, 1, 1), 0, (np.ones(32, np.uint32),)))
        assert [one.code for one in report.findings] == found, str(report)
