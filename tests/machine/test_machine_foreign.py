# ruff: noqa: E501 - CUDA and PTX text
"""What other compilers and authors write: calls, tables, special registers, maps behind pointers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from polygen.errors import LaunchError, PtxError
from polygen.machine import Launch, TensorMap, run

HEAD = ".version 8.3\n.target sm_90a\n.address_size 64\n"
BODY = """.visible .entry k(.param .u64 p) {
  .reg .b64 %rd<8>; .reg .b32 %r<8>; .reg .b16 %h<4>; .reg .f32 %f<8>; .reg .f64 %d<4>; .reg .pred %p<3>;
  ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x;
"""


def entry(text: str, front: str = "") -> str:
    return f"{HEAD}{front}{BODY}{text}\n}}\n"


def once(ptx: str, *arrays, threads: int = 32, **options):
    grid = options.pop("grid", 1)
    launch = Launch(
        (grid, 1, 1), (threads, 1, 1), options.pop("shared", 0), arrays, options.pop("name", None)
    )
    return run(ptx, launch, **options)


def words(count: int) -> np.ndarray:
    return np.zeros(count, np.uint32)


# --- functions -----------------------------------------------------------------------------------
CALLS = """
__device__ __noinline__ int early(int x) { if (x < 3) return 7; if (x & 1) return x * 2; return x + 1; }
__device__ __noinline__ void both(int x, int* a, int* b) { *a = early(x); *b = early(x + 1); }
struct Pair { int a, b; };
__device__ __noinline__ Pair turned(Pair p) { __shared__ int side[32]; side[threadIdx.x] = p.a; __syncthreads(); return {p.b, side[31 - threadIdx.x]}; }
extern "C" __global__ void k(int* o) {
  int a, b; both(threadIdx.x, &a, &b);
  Pair p = turned({a, b});
  o[2 * threadIdx.x] = p.a; o[2 * threadIdx.x + 1] = p.b;
}
"""


def test_device_functions_are_run(compile_ptx):
    ptx = compile_ptx(CALLS)
    assert ptx.count("call") >= 3
    report = once(ptx, np.zeros((32, 2), np.int32))
    assert report.ok, str(report)
    value = np.array([7 if x < 3 else 2 * x if x & 1 else x + 1 for x in range(33)])
    wanted = np.stack([value[1:], value[:32][::-1]], 1)
    np.testing.assert_array_equal(report.arrays[0], wanted)


def test_functions_with_registers_for_parameters():
    front = """.func (.reg .u32 %out) twice(.reg .u32 %in) { .reg .pred %q; setp.gt.u32 %q, %in, 5; mov.u32 %out, 1; @%q ret; add.u32 %out, %in, %in; ret; }\n"""
    text = "call (%r2), twice, (%r1); mul.wide.u32 %rd2, %r1, 4; add.u64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r2; ret;"
    report = once(entry(text, front), words(32))
    assert report.ok, str(report)
    np.testing.assert_array_equal(report.arrays[0], [2 * x if x < 6 else 1 for x in range(32)])


def test_predicated_calls_and_waits():
    front = ".func mark(.reg .u64 %at) { .reg .u32 %one; mov.u32 %one, 1; st.global.u32 [%at], %one; ret; }\n"
    text = """mul.wide.u32 %rd2, %r1, 4; add.u64 %rd1, %rd1, %rd2; setp.lt.u32 %p1, %r1, 32; setp.lt.u32 %p2, %r1, 5;
    @%p1 bar.sync 1, 32; @%p2 call mark, (%rd1); ret;"""
    report = once(entry(text, front), words(64), threads=64)
    assert report.ok, str(report)
    np.testing.assert_array_equal(report.arrays[0], np.arange(64) < 5)


@pytest.mark.parametrize(
    "front, text, words_",
    [
        (".func f() { call f; ret; }\n", "call f; ret;", "`f` calls itself"),
        (".extern .func g(.param .b32 a);\n", "call g, (%r1); ret;", "`g`, which has no body here"),
        ("", "call (%r2), %rd1, (%r1); ret;", "through the register %rd1"),
        (".func h(.reg .b32 %a) { ret; }\n", "call h; ret;", "the call does not fit `h`"),
    ],
)
def test_calls_that_cannot_be_inlined_are_refused_in_one_line(front, text, words_):
    with pytest.raises(PtxError) as caught:
        once(entry(text, front), words(1))
    assert words_ in str(caught.value) and "\n" not in str(caught.value)


def test_printf_prints_nothing_and_assert_traps(compile_ptx):
    source = """extern "C" __global__ void k(int* o) { printf("%d", o[0]); assert(o[threadIdx.x] >= 0); o[threadIdx.x] = 5; }"""
    good = once(compile_ptx(source), np.zeros(32, np.int32))
    assert good.ok and (good.arrays[0] == 5).all()
    bad = once(compile_ptx(source), np.arange(32, dtype=np.int32) - 3)
    assert [one.code for one in bad.findings] == ["trap"]


def test_jump_tables(compile_ptx):
    text = """{ T: .branchtargets A, B, C; min.u32 %r2, %r1, 2; brx.idx %r2, T;
    A: mov.u32 %r3, 5; bra D; B: mov.u32 %r3, 6; bra D; C: mov.u32 %r3, 7; D: mul.wide.u32 %rd2, %r1, 4; add.u64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r3; } ret;"""
    report = once(entry(text), words(32))
    assert report.ok, str(report)
    np.testing.assert_array_equal(report.arrays[0], [5, 6, *[7] * 30])
    with pytest.raises(PtxError, match="no label `Z`"):
        once(entry(text.replace("A, B, C", "A, B, Z")), words(32))


# --- special registers, shared memory, parameters ------------------------------------------------
def test_clocks_grow():
    text = """mov.u64 %rd2, %globaltimer; mov.u64 %rd3, %clock64; mov.u32 %r2, %clock; mov.u32 %r3, %globaltimer_hi;
    L: mov.u64 %rd4, %globaltimer; sub.u64 %rd5, %rd4, %rd2; setp.lt.u64 %p1, %rd5, 1000; @%p1 bra L;
    mov.u64 %rd6, %clock64; sub.u64 %rd6, %rd6, %rd3; st.global.u64 [%rd1], %rd6; ret;"""
    report = once(entry(text), np.zeros(1, np.int64), threads=1)
    assert report.ok and report.arrays[0][0] > 0


@pytest.mark.parametrize("name", ["%pm0", "%tid", "%nonsense", "somewhere"])
def test_names_that_do_not_exist_are_refused(name):
    kind = "special register" if name[0] == "%" else "name"
    with pytest.raises(PtxError, match=f"no {kind} `{name}` "):
        once(entry(f"mov.u32 %r2, {name}; st.global.u32 [%rd1], %r2; ret;"), words(1))


def test_the_address_of_a_parameter():
    text = f"""{HEAD}.visible .entry k(.param .u64 p, .param .align 8 .b8 s[24]) {{
    .reg .b64 %rd<8>; .reg .b32 %r<8>;
    mov.b64 %rd1, s; ld.param.u32 %r1, [%rd1+4]; ld.param.u64 %rd2, [p]; st.global.u32 [%rd2], %r1;
    cvta.param.u64 %rd3, %rd1; ld.u32 %r2, [%rd3+8]; add.u64 %rd4, %rd3, 12; ld.v2.u32 {{%r3, %r4}}, [%rd4+4];
    st.global.u32 [%rd2+4], %r2; st.global.u32 [%rd2+8], %r3; st.global.u32 [%rd2+12], %r4; ret; }}"""
    report = once(text, words(4), np.arange(10, 16, dtype=np.uint32).tobytes(), threads=1)
    assert report.ok, str(report)
    assert report.arrays[0].tolist() == [11, 12, 14, 15]


def test_the_address_of_a_parameter_in_a_word():
    """As Triton takes it of tensor maps: the word is an address in the parameter space."""
    text = f"""{HEAD}.visible .entry k(.param .u64 p, .param .align 8 .b8 s[24]) {{
    .reg .b64 %rd<8>; .reg .b32 %r<8>;
    mov.b32 %r1, s; cvt.u64.u32 %rd1, %r1; cvta.param.u64 %rd2, %rd1; ld.param.u64 %rd3, [p];
    ld.u32 %r2, [%rd2+8]; st.global.u32 [%rd3], %r2; ld.param.u32 %r3, [%r1+4]; st.global.u32 [%rd3+4], %r3;
    cvta.to.param.u64 %rd4, %rd2; ld.param.u32 %r4, [%rd4+16]; st.global.u32 [%rd3+8], %r4;
    mov.b32 %r5, s+20; ld.param.u32 %r6, [%r5]; st.global.u32 [%rd3+12], %r6; ret; }}"""
    report = once(text, words(4), np.arange(10, 16, dtype=np.uint32).tobytes(), threads=1)
    assert report.ok, str(report)
    assert report.arrays[0].tolist() == [12, 11, 14, 15]


def test_a_kernel_has_the_shared_memory_that_it_names():
    front = ".shared .align 4 .b8 mine[100000];\n.shared .align 4 .b8 others[100000];\n"
    text = (
        "st.shared.u32 [mine+4], %r1; ld.shared.u32 %r2, [mine+4]; st.global.u32 [%rd1], %r2; ret;"
    )
    report = once(entry(text, front), words(1), threads=1, shared=80000)
    assert report.ok, str(report)
    both = text.replace("ret;", "st.shared.u32 [others], %r1; ret;")
    with pytest.raises(LaunchError, match="200000 of static"):
        once(entry(both, front), words(1), threads=1, shared=80000)


def test_a_table_of_addresses():
    front = ".global .align 4 .u32 one[2] = {4, 5};\n.global .align 8 .u64 table[2] = {generic(one), 7};\n"
    text = "ld.global.u64 %rd2, [table]; ld.u32 %r2, [%rd2+4]; st.global.u32 [%rd1], %r2; ret;"
    assert once(entry(text, front), words(1), threads=1).arrays[0][0] == 5


@pytest.mark.parametrize("op, why", [("tex.1d.v4.f32.s32 {%f1,%f2,%f3,%f4}, [t, {%r1}]", "only handles in registers"), ("tcgen05.fence", "tensor memory"), ("tensormap.replace.tile.swizzle_mode.global.b1024.b32 [%rd1], 4", "not modelled")])  # fmt: skip
def test_what_is_not_modelled_is_refused_in_one_line(op, why):
    with pytest.raises(PtxError) as caught:
        once(entry(f"{op}; ret;", ".global .texref t;\n"), words(1))
    assert why in str(caught.value) and "line 8" in str(caught.value)


# --- dynamic shared memory -----------------------------------------------------------------------
DYNAMIC = """
extern "C" __global__ void k(unsigned* o) {
  extern __shared__ __align__(16) unsigned char memory[];
  o[threadIdx.x] = (unsigned)__cvta_generic_to_shared(memory) % 1024;
}
"""


@pytest.mark.parametrize("front, rest", [("", 0), ("__shared__ int x[5]; x[threadIdx.x % 5] = threadIdx.x / 32; o[32] = x[o[40]];", 32)])  # fmt: skip
def test_dynamic_shared_memory_lies_where_drivers_put_it(compile_ptx, front, rest):
    source = DYNAMIC.replace("memory[];", "memory[];" + front)
    report = once(compile_ptx(source), words(64), shared=64)
    assert (report.arrays[0][:32] == rest).all()


NEEDS = """
extern "C" __global__ void k(const __grid_constant__ Map map, unsigned* o) {
  extern __shared__ __align__(ALIGN) unsigned char memory[]; __shared__ __align__(8) unsigned long long b[1];
  word at = shared_address(memory); FIX const word full = shared_address(b);
  if (threadIdx.x == 0) { init(full, 1); FENCE_INIT; expect(full, 2048);
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" :: "r"(at), "l"(&map), "r"(full), "r"(0), "r"(0) : "memory"); }
  __syncthreads(); wait(full, 0);
  unsigned v; asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at + 4 * threadIdx.x)); o[threadIdx.x] = v;
}
"""


@pytest.mark.parametrize(
    "align, fix, said",
    [
        (16, "", "needs 1024"),
        (1024, "", ""),
        (16, "at = (at + 1023) & ~1023u;", ""),
        (16, "at = (at + 127) & ~127u;", "needs 1024"),
    ],
)
def test_who_relies_on_more_alignment_is_told(compile_ptx, align, fix, said):
    from test_machine_tma import COMMON

    text = COMMON + NEEDS.replace("ALIGN", str(align)).replace("FIX", fix)
    array = np.arange(512, dtype=np.uint32).reshape(16, 32)
    static_first = text.replace("__shared__ __align__(8) unsigned long long b[1];", "")
    text = static_first.replace(
        "const word full = shared_address(b);", "const word full = at + 4096;"
    )
    report = once(
        compile_ptx(text, "sm_90a"), TensorMap(array, (16, 32), 128), words(32), shared=8192
    )
    assert report.ok, str(report)
    assert len(report.notes) == bool(said) and all(said in note for note in report.notes)
    assert not said or f"alignment of {align} bytes" in str(report)


# --- tensor maps behind pointers, stores ---------------------------------------------------------
POINTED = NEEDS.replace("const __grid_constant__ Map map", "const Map* maps").replace(
    "&map", "maps + 1"
)


def test_tensor_maps_behind_a_pointer(compile_ptx):
    from test_machine_tma import COMMON

    text = COMMON + POINTED.replace("ALIGN", "1024").replace("FIX", "")
    arrays = [np.arange(512, dtype=np.uint32).reshape(16, 32) + 1000 * i for i in range(2)]
    maps = tuple(TensorMap(array, (16, 32)) for array in arrays)
    ptx = compile_ptx(text, "sm_90a")
    report = once(ptx, maps, words(32), shared=4096)
    assert report.ok, str(report)
    np.testing.assert_array_equal(report.arrays[2], arrays[1][0])
    wrong = once(ptx, maps[:1], words(32), shared=4096)
    assert [one.code for one in wrong.findings] == ["bad-descriptor"]
    with pytest.raises(LaunchError, match="a tuple of tensor maps and others"):
        once(ptx, (maps[0], 5), words(32))


STORED = """
extern "C" __global__ void k(const __grid_constant__ Map map, int c0, int c1) {
  extern __shared__ __align__(1024) unsigned char memory[];
  if (threadIdx.x < WRITTEN) ((unsigned*)memory)[threadIdx.x] = threadIdx.x + 1;
  FENCE_ASYNC; __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%1, {%2, %3}], [%0];" :: "r"(shared_address(memory)), "l"(&map), "r"(c0), "r"(c1) : "memory");
    asm volatile("cp.async.bulk.commit_group;"); asm volatile("cp.async.bulk.wait_group 0;");
  }
}
"""


def stored(compile_ptx, one: TensorMap, corner, written=32):
    from test_machine_tma import COMMON

    text = COMMON + STORED.replace("WRITTEN", str(written))
    return once(compile_ptx(text, "sm_90a"), one, *corner, shared=128)


@pytest.mark.parametrize("corner, rows, found", [((0, 2), 2, set()), ((0, 1), 2, {"uninitialised-shared-read"}), ((4, 0), 4, set())])  # fmt: skip
def test_what_a_store_clips_is_not_read(compile_ptx, corner, rows, found):
    """A box of 4 rows of 8 words, of which the first `rows` are written (all, where columns are clipped)."""
    array = np.zeros((4, 8), np.uint32)
    report = stored(compile_ptx, TensorMap(array, (4, 8)), corner, 8 * rows)
    assert {one.code for one in report.findings} == found
    if not found:
        wanted = array.copy()
        box = np.arange(1, 33).reshape(4, 8)
        wanted[corner[1] :, corner[0] :] = box[: 4 - corner[1], : 8 - corner[0]]
        np.testing.assert_array_equal(report.arrays[0], wanted)


def test_columns_that_a_store_clips_need_no_values(compile_ptx):
    """Rows of 5 words: the box has 8, and what is written are whole chunks of 4."""
    whole = np.zeros((2, 8), np.uint32)
    report = stored(compile_ptx, TensorMap(whole[:, :5], (2, 8), whole=whole), (0, 0))
    assert report.ok, str(report)
    np.testing.assert_array_equal(report.arrays[0], np.arange(1, 17).reshape(2, 8))


def test_a_store_past_the_rows_of_an_array_is_found(compile_ptx):
    padded = np.lib.stride_tricks.as_strided(np.zeros(64, np.uint32), (2, 5), (32, 4))
    report = stored(compile_ptx, TensorMap(padded, (2, 8)), (0, 0))
    assert [one.code for one in report.findings] == ["out-of-bounds-global"]
    assert "rows of 20 bytes are no multiple of 16" in report.findings[0].sentence
    assert stored(compile_ptx, TensorMap(padded, (2, 4)), (0, 0), 8).ok


# --- atomics -------------------------------------------------------------------------------------
def bits16(value: float, dtype) -> int:
    return int(np.array(value, dtype).view(np.uint16))


HALF, BRAIN = (bits16(1.5, dtype) for dtype in (np.float16, ml_dtypes.bfloat16))


@pytest.mark.parametrize(
    "text, dtype, wanted",
    [
        (f"mov.b16 %h1, {HALF}; red.global.add.noftz.f16 [%rd1], %h1;", np.float16, [48]),
        (f"mov.b16 %h1, {BRAIN}; red.global.add.noftz.bf16 [%rd1], %h1;", ml_dtypes.bfloat16, [48]),
        (f"mov.b32 %r2, {HALF << 16 | HALF}; red.global.add.noftz.f16x2 [%rd1], %r2;", np.float16, [48, 48]),
        (f"mov.b32 %r2, {BRAIN << 16}; red.global.add.noftz.bf16x2 [%rd1], %r2;", ml_dtypes.bfloat16, [0, 48]),
        ("mov.f32 %f1, 0f3f800000; red.global.add.f32 [%rd1], %f1;", np.float32, [32]),
        ("mov.f64 %d1, 0d3ff0000000000000; red.global.add.f64 [%rd1], %d1;", np.float64, [32]),
        ("mov.f32 %f1, 0f3f800000; add.f32 %f2, %f1, %f1; red.global.add.v2.f32 [%rd1], {%f1, %f2};", np.float32, [32, 64]),
        ("mov.f32 %f1, 0f3f800000; red.global.v4.f32.add [%rd1], {%f1, %f1, %f1, %f1};", np.float32, [32] * 4),
        (f"mov.b16 %h1, {HALF}; red.global.v4.f16.max.noftz [%rd1], {{%h1, %h1, %h1, %h1}};", np.float16, [1.5] * 4),
        (f"mov.b32 %r2, {BRAIN << 16 | BRAIN}; red.global.v2.bf16x2.add.noftz [%rd1], {{%r2, %r2}};", ml_dtypes.bfloat16, [48] * 4),
        ("cvt.u64.u32 %rd2, %r1; red.global.max.u64 [%rd1], %rd2;", np.uint64, [31]),
        ("cvt.u64.u32 %rd2, %r1; neg.s64 %rd2, %rd2; red.global.min.s64 [%rd1], %rd2;", np.int64, [-31]),
        ("mov.b64 %rd2, 1; cvt.u64.u32 %rd3, %r1; shl.b64 %rd2, %rd2, %r1; red.global.or.b64 [%rd1], %rd2;", np.uint64, [2**32 - 1]),
        ("mov.b16 %h1, 0; mov.b16 %h2, 7; atom.global.cas.b16 %h3, [%rd1], %h1, %h2;", np.uint16, [7]),
    ],
)  # fmt: skip
def test_atomics_of_every_width(text, dtype, wanted):
    out = np.zeros(len(wanted), dtype)
    report = once(entry(text + " ret;"), out)
    assert report.ok, str(report)
    np.testing.assert_array_equal(report.arrays[0].astype(np.float64), np.array(wanted, np.float64))


def test_vectors_of_atomics_are_aligned():
    text = "mov.f32 %f1, 0f3f800000; red.global.add.v4.f32 [%rd1+4], {%f1, %f1, %f1, %f1}; ret;"
    report = once(entry(text), np.zeros(8, np.float32))
    assert [one.code for one in report.findings] == ["misaligned"]


def test_linear_bulk_reductions(compile_ptx):
    from test_machine_tma import COMMON

    source = (
        COMMON
        + """
extern "C" __global__ void k(float* o) {
  __shared__ __align__(128) float s[64]; s[threadIdx.x] = threadIdx.x; FENCE_ASYNC; __syncthreads();
  if (threadIdx.x == 0) { asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 256;" :: "l"(o), "r"(shared_address(s)) : "memory");
    asm volatile("cp.async.bulk.commit_group;"); asm volatile("cp.async.bulk.wait_group 0;"); }
}"""
    )
    report = once(compile_ptx(source, "sm_90a"), np.ones(64, np.float32), threads=64, grid=2)
    assert report.ok, str(report)
    np.testing.assert_array_equal(report.arrays[0], 1 + 2 * np.arange(64))
