# ruff: noqa: E501 - CUDA text
"""Lines of C++ that compilers make many kinds of instructions of, with what each gives.

A line computes ``out`` from ``a`` and ``b``, 64 random bits each; `i` is the thread. What it gives is told in
Python, where that is short; the others have to run, or to be refused in one line (`REFUSED`).
"""

SNIPPETS: list[tuple[str, str | None]] = [
    ("out = __popcll(a) + __clzll(b)", "a.bit_count() + 64 - b.bit_length()"),
    ("out = __ffsll(a) + __ffs((int)b)", "first(a) + first(b & U)"),
    (
        "out = __brevll(a) ^ __brev((unsigned)b)",
        'int(f"{a:064b}"[::-1], 2) ^ int(f"{b & U:032b}"[::-1], 2)',
    ),
    (
        "out = __umul64hi(a, b) + __mul64hi((long long)a, (long long)b)",
        "(a * b >> 64) + (s64(a) * s64(b) >> 64)",
    ),
    ("out = (unsigned long long)(((unsigned __int128)a * b) >> 37)", "a * b >> 37"),
    (
        "out = (unsigned long long)((((__int128)(long long)a << 3) + (__int128)(long long)b) >> 5)",
        "(s64(a) << 3) + s64(b) >> 5",
    ),
    (
        "out = (unsigned long long)(((unsigned __int128)a << 64 | b) / (b | 1))",
        "(a << 64 | b) // (b | 1)",
    ),
    ("out = a / (b | 1) + a % (b | 3)", "a // (b | 1) + a % (b | 3)"),
    ("out = (long long)a / (long long)(b | 1)", "cut(s64(a), s64(b | 1))"),
    (
        "out = (int)a / ((int)b | 1) + (int)a % ((int)b | 3)",
        "cut(s32(a), s32(b) | 1) + s32(a) - (s32(b) | 3) * cut(s32(a), s32(b) | 3)",
    ),
    ("out = (short)a / ((short)b | 1)", None),
    (
        "out = __byte_perm((unsigned)a, (unsigned)b, (unsigned)(a >> 32))",
        "sum(((b & U) << 32 | a & U) >> 8 * (a >> 32 + 4 * i & 7) & 255 << 0 << 0 if False else (((b & U) << 32 | a & U) >> 8 * (a >> 32 + 4 * i & 7) & 255) << 8 * i for i in range(4))",
    ),
    (
        "out = __funnelshift_l((unsigned)a, (unsigned)b, (unsigned)(a >> 40)) ^ __funnelshift_rc((unsigned)a, (unsigned)b, (unsigned)(a >> 33) & 63)",
        None,
    ),
    (
        "out = __sad((int)a, (int)b, 5u) + __usad((unsigned)a, (unsigned)b, 7u)",
        "(abs(s32(a) - s32(b)) + 5 + abs((a & U) - (b & U)) + 7) & U",
    ),
    (
        "out = __hadd((int)a, (int)b) + __rhadd((int)a, (int)b) + __uhadd((unsigned)a, (unsigned)b)",
        None,
    ),
    (
        "out = __dp4a((int)a, (int)b, 7) + __dp2a_lo((int)a, (int)b, 3) + __dp2a_hi((unsigned)a, (unsigned)b, 3u)",
        None,
    ),
    (
        "out = __vadd4((unsigned)a, (unsigned)b) ^ __vsub2((unsigned)a, (unsigned)b)",
        "lanes(a, b, 8, lambda x, y: x + y) ^ lanes(a, b, 16, lambda x, y: x - y)",
    ),
    (
        "out = __vmaxs4((unsigned)a, (unsigned)b) ^ __vminu2((unsigned)a, (unsigned)b) ^ __vabsdiffu4((unsigned)a, (unsigned)b)",
        "lanes(a, b, 8, max, True) ^ lanes(a, b, 16, min) ^ lanes(a, b, 8, lambda x, y: abs(x - y))",
    ),
    (
        "out = __vcmpgtu4((unsigned)a, (unsigned)b) + __vavgu4((unsigned)a, (unsigned)b) + __vsadu4((unsigned)a,(unsigned)b)",
        "(lanes(a, b, 8, lambda x, y: 255 * (x > y)) + lanes(a, b, 8, lambda x, y: (x + y + 1) // 2) + sum(abs((a >> s & 255) - (b >> s & 255)) for s in (0, 8, 16, 24))) & U",
    ),
    (
        "out = __vseteq2((unsigned)a, (unsigned)b) + __vaddss2((unsigned)a, (unsigned)b)",
        "(lanes(a, b, 16, lambda x, y: x == y) + lanes(a, b, 16, lambda x, y: min(max(x + y, -32768), 32767), True)) & U",
    ),
    (
        "out = __viaddmax_s32((int)a, (int)b, 9) + __vimin3_u32((unsigned)a,(unsigned)b, 77u)",
        "(max(s32(a + b), 9) + min(a & U, b & U, 77)) & U",
    ),
    (
        "out = __vimax_s16x2_relu((unsigned)a, (unsigned)b) + __viaddmin_u16x2((unsigned)a,(unsigned)b,0x10001u)",
        "(lanes(a, b, 16, lambda x, y: max(x, y, 0), True) + lanes(a, b, 16, lambda x, y: min(x + y & 0xFFFF, 1))) & U",
    ),
    (
        "out = __mulhi((int)a, (int)b) + __umulhi((unsigned)a, (unsigned)b) + __mul24((int)a, (int)b)",
        None,
    ),
    (
        "out = __float_as_uint(__int_as_float((int)a)) + __double_as_longlong(__longlong_as_double(b))",
        None,
    ),
    (
        "out = (unsigned long long)__double2ll_rn(__ll2double_rd((long long)a)) + __float2uint_ru(__uint2float_rz((unsigned)b) * 0.5f)",
        None,
    ),
    (
        "out = __float_as_uint(__fadd_rz(__int2float_rn((int)a), 1.5f)) ^ __float_as_uint(__fmul_ru((float)(int)b, 1.1f))",
        None,
    ),
    (
        "out = __double_as_longlong(__dadd_rd((double)(long long)a, 1.5)) ^ __double_as_longlong(__dmul_rz((double)(long long)b, 1.1))",
        None,
    ),
    (
        "out = __double_as_longlong(__fma_rn((double)(int)a, 1.1, (double)(int)b)) ^ __double_as_longlong(__ddiv_rn((double)(int)a, 3.7))",
        None,
    ),
    (
        "out = __float_as_uint(__fdiv_rn((float)(int)a, 3.1f)) ^ __float_as_uint(__fsqrt_ru(fabsf((float)(int)b)))",
        None,
    ),
    (
        "out = __float_as_uint(__frcp_rd((float)((int)a | 1))) ^ __float_as_uint(__fsqrt_rn(fabsf((float)(int)b)))",
        None,
    ),
    (
        "out = __float_as_uint(truncf((float)(int)a * 0.37f)) + __float_as_uint(rintf((float)(int)b * 0.37f)) + __float_as_uint(floorf((float)(int)a * 0.11f)) + __float_as_uint(ceilf((float)(int)b * .13f))",
        None,
    ),
    (
        "out = (unsigned long long)llrintf((float)(int)a * 0.37f) + (unsigned long long)lround((double)(int)b * 0.37)",
        None,
    ),
    (
        "out = __float_as_uint(fminf((float)(int)a, (float)(int)b)) + __float_as_uint(copysignf((float)(int)a, (float)(int)b))",
        None,
    ),
    (
        "out = __float_as_uint(fmodf((float)(int)a, 37.5f)) + __float_as_uint(remainderf((float)(int)b, 3.f))",
        None,
    ),
    (
        "out = __double_as_longlong(fmod((double)(int)a, 37.5)) + __double_as_longlong(rint((double)(int)b * 0.3))",
        None,
    ),
    (
        "out = isnan(__int_as_float((int)a)) + 2 * isinf(__int_as_float((int)a)) + 4 * (signbit(__int_as_float((int)a)) != 0) + 8 * isfinite(__longlong_as_double(b))",
        None,
    ),
    (
        "out = (unsigned long long)ldexpf((float)(short)a, (int)(b & 7)) + (unsigned long long)scalbnf(3.f, (int)(b & 15))",
        None,
    ),
    ("out = ilogbf(fabsf((float)(int)a) + 1.f) + ilogb(fabs((double)(int)b) + 1.)", None),
    (
        "out = (a << (b & 63)) ^ (a >> (b & 63)) ^ ((long long)a >> (b & 31))",
        "(a << (b & 63)) ^ (a >> (b & 63)) ^ (s64(a) >> (b & 31))",
    ),
    ("out = ((unsigned char)a + (signed char)b) * (unsigned short)a - (short)b", None),
    ("out = (a & b) | (~a ^ b) ; if ((a ^ b) & 1) out = ~out; else out += 7", None),
    ("out = a > b ? (int)a : (short)b", "s32(a) if a > b else signed(b, 16)"),
    ("out = (bool)a + (bool)(b & 1) + !(a & 2)", "bool(a) + (b & 1) + (not a & 2)"),
    (
        "out = min((long long)a, (long long)b) ^ max(a, b) ^ abs((int)a) ^ llabs((long long)b)",
        "min(s64(a), s64(b)) ^ max(a, b) ^ abs(s32(a)) ^ abs(s64(b))",
    ),
    (
        "out = 0; for (int i = 0; i < (int)(a & 15); ++i) out = out * 31 + (b >> i & 7)",
        "folded(a, b)",
    ),
    (
        "out = 0; switch (a % 11) { case 0: out = 5; break; case 1: out = b; break; case 2: out = b * 3; break; case 3: out = b ^ a; break; case 4: out = 9; break; case 5: out = 77; break; case 6: out = b - a; break; case 7: out = ~b; break; default: out = 1; }",
        None,
    ),
    (
        "int v[8]; for (int i = 0; i < 8; ++i) v[i] = (int)(a >> 8 * i & 255); out = v[b & 7] + v[(b >> 3) & 7]",
        "(a >> 8 * (b & 7) & 255) + (a >> (b & 56) & 255)",
    ),
    (
        "unsigned char v[16]; for (int i = 0; i < 16; ++i) v[i] = (unsigned char)(a >> i); out = v[b & 15]",
        "a >> (b & 15) & 255",
    ),
    (
        "union { float f; unsigned u; } x; x.u = (unsigned)a; out = x.u + (x.f > 1.f)",
        "((a & U) + (single(a) > 1)) & U",
    ),
    (
        "struct S { int x; long long y; char z; } s[2] = {{1, 2, 3}, {4, 5, 6}}; s[a & 1].y += b; out = s[b & 1].y + s[0].z",
        None,
    ),
    (
        "out = __shfl_sync(~0u, (unsigned)a, 5) + __shfl_up_sync(~0u, (int)b, 3) + __shfl_down_sync(~0u, (unsigned)a, 7, 16) + __shfl_xor_sync(~0u, (unsigned)b, 9)",
        None,
    ),
    ("out = __shfl_sync(~0u, a, (int)(b & 31)) + __shfl_xor_sync(~0u, b, 16)", None),
    ("out = __shfl_sync(~0u, (double)(int)a, 3)", None),
    ("out = __ballot_sync(~0u, a & 1) + __any_sync(~0u, b & 2) + __all_sync(~0u, b & 1)", None),
    ("out = __activemask() + __popc(__match_any_sync(~0u, (unsigned)a & 3))", None),
    ("int p; out = __match_all_sync(~0u, (unsigned)(a & 0), &p) + p", None),
    ("int p; out = __match_any_sync(~0u, a & 7ull) ^ __match_all_sync(~0u, b, &p) ^ p", None),
    (
        "out = __reduce_add_sync(~0u, (unsigned)a) + __reduce_max_sync(~0u, (int)b) + __reduce_xor_sync(~0u, (unsigned)b) + __reduce_and_sync(~0u, (unsigned)a|1)",
        None,
    ),
    ("out = __nv_bswap(a)", 'int.from_bytes(a.to_bytes(8, "little"), "big")'),
    ("out = threadIdx.x + blockDim.x * blockIdx.x + gridDim.x + warpSize", None),
    (
        "__shared__ unsigned long long s[256]; s[threadIdx.x] = a; __syncthreads(); out = s[255 - threadIdx.x] + b",
        None,
    ),
    (
        "__shared__ unsigned s[4]; if (threadIdx.x < 4) s[threadIdx.x] = 0; __syncthreads(); atomicAdd(&s[a & 3], 1u); atomicMax(&s[3], 5u); __syncthreads(); out = s[0] + s[1]",
        None,
    ),
    (
        "__shared__ int s; out = __syncthreads_count((int)(a & 1)) + __syncthreads_or((int)(b & 1)) + __syncthreads_and(1)",
        None,
    ),
    ("out = (unsigned long long)(expf((float)(a & 7)) + logf((float)(b & 255) + 1.f) * 8)", None),
    (
        "out = (unsigned long long)(1000 + 100 * sinf((float)(a & 1023)) + 100 * cosf((float)(b & 511)) + 10 * tanhf((float)(a & 3)))",
        None,
    ),
    (
        "out = (unsigned long long)(1000 + 100 * sin((double)(a & 1023)) + 10 * exp((double)(b & 3)) + log1p((double)(a & 7)) * 3)",
        None,
    ),
    (
        "out = (unsigned long long)(powf((float)(a & 7), 2.5f) + sqrtf((float)(b & 1023)) + rsqrtf((float)(a & 255) + 1) * 100 + cbrtf((float)(b & 255)))",
        None,
    ),
    (
        "out = (unsigned long long)(pow((double)(a & 7), 2.5) + hypot((double)(b & 255), 3.) + erff(0.5f) * 100 + erf(0.25) * 100 + tgammaf(4.5f) + lgammaf(4.5f))",
        None,
    ),
    (
        "out = (unsigned long long)(__expf(1.f) * 1000 + __logf(3.f) * 1000 + __sinf(1.f) * 1000 + __powf(2.f, 1.5f) * 1000 + __fdividef(7.f, 3.f) * 1000 + __tanf(.5f)*1000 + exp2f(1.5f) * 100 + exp10f(.3f)*100)",
        None,
    ),
    ("out = (unsigned long long)(sinf((float)(a & 0xfffff) * 1000.f) * 1000 + 2000)", None),
    (
        "out = (unsigned long long)(norm3df((float)(a&7), 2.f, 3.f) * 100 + atan2f((float)(b&7), 2.f) * 100 + acosf(.3f) * 100 + asinhf(2.f)*10 + sinhf(1.f)*10 + j0f(1.f)*100 + normcdff(.3f) * 100)",
        None,
    ),
    ("out = clock64() - clock64() <= 0", None),
    (
        "out = __cvta_generic_to_shared((void*)0) * 0 + __isGlobal(gout) + __isShared((void*)gout) + __isLocal(&out)",
        None,
    ),
    (
        "out = __ldg(gin + (a & 63)) + __ldcg(gin + (b & 63)) + __ldcs(gin + 3) + __ldca(gin + 1) + __ldlu(gin + 2) + __ldcv(gin + 5)",
        None,
    ),
    ("__stcg(gout + i, a); __stwt(gout + i, b); __threadfence(); out = gout[i]", None),
    (
        "out = a; __nanosleep(10); __syncwarp(); __threadfence_block(); __threadfence_system(); __prof_trigger(1)",
        None,
    ),
    ("const ulonglong2 v = *(const ulonglong2*)(gin + (i & ~1)); out = v.x + v.y", None),
    ("const uchar4 v = *(const uchar4*)(gin + i); out = v.x + v.y * v.z + v.w", None),
    (
        "const float4 v = make_float4((float)(a & 7), 1, 2, 3); out = (unsigned long long)(v.x + v.y * v.z - v.w + 10)",
        None,
    ),
    ("out = a; if (i == 500) __trap()", None),
    ('out = a; if (i == 500) printf("%d\\n", i)', None),
    ("out = a; assert(i < 400)", None),
    (
        "__constant__ static const int table[4] = {3, 5, 7, 11}; out = table[a & 3]",
        "(3, 5, 7, 11)[a & 3]",
    ),
    ("out = counter * 0 + atomicAdd(&counter, 0u)", None),
    (
        "out = atomicCAS((unsigned long long*)gout + 300 + i, 0ull, a) + atomicExch(gout + 300 + i, 5ull)",
        None,
    ),
    (
        "out = __vcmpeq4((unsigned)a, (unsigned)b) | __vnegss2((unsigned)a) | __vabs4((unsigned)b)",
        None,
    ),
    (
        'unsigned x = (unsigned)a, y; asm("{ .reg .pred p; setp.lt.u32 p, %1, 77; selp.u32 %0, 1, 2, p; }" : "=r"(y) : "r"(x)); out = y',
        "1 if a & U < 77 else 2",
    ),
    ('unsigned y; asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(y)); out = y', None),
    (
        'unsigned long long y; asm volatile("mov.b64 %0, {%1, %2};" : "=l"(y) : "r"((unsigned)a), "r"((unsigned)b)); out = y',
        "(b & U) << 32 | a & U",
    ),
    (
        'unsigned x, y; asm volatile("mov.b64 {%0, %1}, %2;" : "=r"(x), "=r"(y) : "l"(a)); out = x ^ y',
        "a & U ^ a >> 32",
    ),
    (
        'unsigned short x, y; asm volatile("mov.b32 {%0, %1}, %2;" : "=h"(x), "=h"(y) : "r"((unsigned)a)); out = x ^ y',
        None,
    ),
    (
        'unsigned y; asm("vadd.s32.s32.s32.sat %0, %1, %2;" : "=r"(y) : "r"((unsigned)a), "r"((unsigned)b)); out = y',
        None,
    ),
    (
        "out = 0; unsigned long long x = a; while (x > 1) { x = x & 1 ? 3 * (x >> 40) + 1 : x >> 1; if (++out > 200) break; }",
        None,
    ),
    (
        "out = __half_as_ushort(__hadd(__ushort_as_half((unsigned short)(a & 0x7bff)), __ushort_as_half((unsigned short)(b & 0x7bff))))",
        "int((np.uint16(a & 0x7BFF).view('f2') + np.uint16(b & 0x7BFF).view('f2')).view('u2'))",
    ),
    (
        "out = __half_as_ushort(__float2half_rn((float)(short)a * 0.01f)) + __half_as_ushort(__float2half_ru((float)(short)b)) + __half2int_rz(__ushort_as_half((unsigned short)(a & 0x73ff)))",
        None,
    ),
    (
        "const __half2 h = __hfma2(__halves2half2(__float2half((float)(a & 7)), __float2half(2.f)), __float2half2_rn(3.f), __float2half2_rn(1.f)); out = __half2float(__low2half(h)) + __half2float(__high2half(h))",
        "3 * (a & 7) + 1 + 7",
    ),
    (
        "const __half2 h = __hmax2(__float2half2_rn((float)(a & 7)), __float2half2_rn((float)(b & 7))); out = (unsigned long long)__low2float(h) + __hbeq2(h, h) + __heq(__low2half(h), __high2half(h))",
        "max(a & 7, b & 7) + 2",
    ),
    (
        "const __nv_bfloat162 h = __hmul2(__float2bfloat162_rn((float)(a & 7)), __float2bfloat162_rn(2.f)); out = (unsigned long long)(__low2float(h) + __bfloat162float(__high2bfloat16(h)))",
        "4 * (a & 7)",
    ),
    (
        "out = __bfloat16_as_ushort(__float2bfloat16_rz((float)(int)a)) + __bfloat16_as_ushort(__hfma(__float2bfloat16((float)(a & 3)), __float2bfloat16(2.f), __float2bfloat16(1.f)))",
        None,
    ),
    ("__nv_fp8_e4m3 f((float)(a & 7)); out = (unsigned long long)(float)f", "a & 7"),
    (
        "out = (unsigned long long)hexp(__float2half(1.f)).operator float() + (unsigned long long)(float)hsqrt(__float2half(49.f)) + (unsigned long long)(float)htrunc(__float2half(3.7f))",
        "2 + 7 + 3",
    ),
    ("out = Node{(int)(a & 3), 1}.deep(5)", "5 + (a & 3)"),
    (
        "auto f = [&](auto x) { return x * 2 + (b & 1); }; out = f(a & 255) + f((unsigned char)3)",
        "2 * (a & 255) + 6 + 2 * (b & 1)",
    ),
    ("out = twice<7>(a) + twice<9>(b)", "(a + 7) * 2 + (b + 9) * 2"),
    ("void* p = malloc(16); out = p != 0; free(p)", None),
    ("unsigned long long* p = new unsigned long long[2]; p[0] = a; out = p[0]; delete[] p", None),
    ("out = callee[a & 1](b)", None),
    ("out = down((int)(a & 7))", None),
    (
        "memcpy(gout + i, gin + i, 8); memset(gout + i + 300, 7, 3); out = gout[i] + (gout[i + 300] & 0xffffff)",
        "a + 0x070707",
    ),
    ("volatile unsigned long long x = a; x += b; out = x", "a + b"),
    (
        "out = a; if (i & 1) { out += 3; if (i & 2) { out *= 5; goto end; } out ^= b; } end:",
        "(a + 3) * 5 if i & 3 == 3 else (a + 3) ^ b if i & 1 else a",
    ),
    (
        "out = 0; for (int k = 0; k < 5; ++k) { if ((a >> k & 1) == 0) continue; if (b >> k & 1) break; out += k; }",
        "stepped(a, b)",
    ),
    (
        "__shared__ unsigned long long s[256]; s[i] = a; __syncthreads(); for (int k = 128; k; k /= 2) { if (i < k) s[i] += s[i + k]; __syncthreads(); } out = s[0]",
        "sum(A[:256])",
    ),
    (
        "unsigned v = (unsigned)a & 255; for (int k = 16; k; k /= 2) v += __shfl_xor_sync(~0u, v, k); out = v",
        "sum(x & 255 for x in A[i // 32 * 32 : i // 32 * 32 + 32])",
    ),
    (
        "out = __reduce_min_sync(~0u, (unsigned)a)",
        "min(x & U for x in A[i // 32 * 32 : i // 32 * 32 + 32])",
    ),
    (
        "out = __popc(__ballot_sync(~0u, a & 1) & ((1u << (i & 31)) - 1))",
        "sum(x & 1 for x in A[i // 32 * 32 : i])",
    ),
    (
        "const unsigned m = __match_any_sync(~0u, (unsigned)a & 3); out = m",
        "sum(1 << k for k, x in enumerate(A[i // 32 * 32 : i // 32 * 32 + 32]) if x & 3 == a & 3)",
    ),
]
REFUSED = {  # by a word of the line: what the refusal names
    "malloc(16)": "malloc",
    "new unsigned": "malloc",
    "callee[": "call",
    "down((": "down",
    "vadd.s32": "vadd",
}
PRELUDE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
typedef unsigned long long word;
__device__ unsigned counter;
__device__ word __nv_bswap(word x) { return (word)__byte_perm((unsigned)x, 0, 0x0123) << 32 | __byte_perm((unsigned)(x >> 32), 0, 0x0123); }
struct Node { int x, y; __device__ int deep(int n) const { int s = x; for (int k = 0; k < n; ++k) s += y; return s; } };
template <int N> __device__ __noinline__ word twice(word x) { return (x + N) * 2; }
__device__ __noinline__ word one(word x) { return x + 1; }
__device__ __noinline__ word two(word x) { return x + 2; }
__device__ word (*callee[2])(word) = {one, two};
__device__ __noinline__ word down(int n) { return n < 2 ? 1 : n * down(n - 1) + down(n - 2); }
"""


def source(number: int, body: str) -> str:
    head = f'extern "C" __global__ void k{number}(word* gin, word* gin2, word* gout)'
    return f"{head} {{ const int i = threadIdx.x; const word a = gin[i], b = gin2[i]; word out; {body}; gout[i] = out; }}\n"
