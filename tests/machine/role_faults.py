# ruff: noqa: E501 - CUDA text
"""Faults in the generated kernels with roles, and changes that only look like faults.

Each says whether the values come out right on the machine all the same.
"""

from __future__ import annotations

FENCE = 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'
INIT = 'asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");'
BAR = 'asm volatile("bar.sync %0, 128;" :: "r"(group + 1) : "memory");'
READ = 'if (thread % 128 == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");'
COMMIT = 'asm volatile("cp.async.bulk.commit_group;" ::: "memory");'
GROUP = 'asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");'
ORDER = 'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");'
GIVE = 'asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");'
TAKE = 'asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");'
AGAIN = "@done bra ready; bra again; ready: "
ASK = f"mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; {AGAIN}}}"
CLUSTER = "  cluster_arrive();\n  cluster_wait();\n"
OWN = "if (thread % 128 == 0) barrier_arrive("
WARP = "if (lane == 0) barrier_arrive("
HIGH_A = "(unsigned long long)0x40000040u << 32 | address_a"
HIGH_B = "(unsigned long long)0x40000040u << 32 | address_b"
QUARTER = "    const int quarter"
LAST_FILL = "          fill(i, k);\n        }\n      }\n"


def without(leaf: str) -> tuple[str, str]:
    """The calls of a leaf dropped."""
    return f" {leaf}(i", " (void)(i"


def moved(leaf: str, where: str) -> list[tuple[str, str]]:
    """A leaf called where `{}` stands in the text `where`, and nowhere else."""
    return [(leaf, ";"), (where.replace("{}", ""), where.format(leaf))]


# kernel, fault, edits, values right
FAULTS = [
    # what the copy engine brings
    ("cooperative", "bytes of the left operand alone", [("(full, 24576)", "(full, 16384)")], False),
    ("cooperative", "too many bytes expected", [("(full, 24576)", "(full, 24592)")], False),
    ("cooperative", "no bytes expected", [("barrier_expect(full, 24576)", "barrier_arrive(full)")], False),
    ("cluster", "bytes of what a block copies itself", [("(full, 24576)", "(full, 20480)")], False),
    ("cooperative", "expects bytes before the slot is free", [(" wait_empty_ring(i, k);", " ;"), ("(full, 24576);", "(full, 24576); barrier_wait(full + 3 * 8, ring_producer.parity ^ 1);")], False),
    ("residual", "bytes of half a panel", [("(full, 16384)", "(full, 8192)")], False),
    ("pingpong", "too many bytes of a panel", [("(full, 8192)", "(full, 8208)", 1)], False),
    ("cooperative", "maps swapped", [("&map_a, full", "&map_c, full"), ("&map_b, full", "&map_a, full"), ("&map_c, full", "&map_b, full")], False),
    ("cooperative", "coordinates swapped", [("k * 64 + 0, b_m * 128", "b_m * 128, k * 64 + 0")], False),
    ("cooperative", "right operand of another tile", [("k * 64 + 0, b_n * 64)", "k * 64 + 0, b_m * 64)")], False),
    ("cooperative", "left operand one k tile ahead", [("&map_a, full, k * 64", "&map_a, full, (k + 1) * 64")], False),
    ("residual", "second box of a tile never copied", [("ring_producer.slot * 16384 + 8192, &map_b", "ring_producer.slot * 16384 + 0, &map_b")], False),
    ("residual", "second box with the first's columns", [("b_n * 128 + 64, k * 64", "b_n * 128 + 0, k * 64")], False),
    ("cooperative", "producer stays at the first tile", [("        locate(i);\n", "")], False),
    ("cooperative", "producer begins one more tile", [("i < tiles; ++i) {\n        locate", "i <= tiles; ++i) {\n        locate")], True),
    ("cooperative", "producer copies one more k tile", [(LAST_FILL, LAST_FILL + " wait_empty_ring(0, 0); fill(0, 0);")], True),
    ("cooperative", "two lanes of the producer copy", [("warp == 8 && lane == 0", "warp == 8 && lane < 2")], True),
    ("residual", "one loader too many", [("warp < 11 && lane == 0", "warp < 12 && lane == 0")], False),
    ("residual", "panel with the other group's rows", [("owner * 64 + p", "(1 - owner) * 64 + p")], False),
    ("residual", "panel in the other group's place", [("(owner * 2 + r_0_loader.slot) * 16384", "((1 - owner) * 2 + r_0_loader.slot) * 16384")], False),
    ("residual", "both groups share panels", [("(owner * 2 + r_0_loader.slot) * 16384", "r_0_loader.slot * 16384")], False),
    ("pingpong", "loaders take each other's tiles", [("const int turn = owner;", "const int turn = 1 - owner;")], False),
    ("cooperative", "map copied to local memory", [("const __grid_constant__ TensorMap map_a", "const TensorMap map_a")], False),
    ("cooperative", "maps not aligned", [("struct alignas(64) TensorMap", "struct TensorMap")], False),
    # clusters
    ("cluster", "multicast to itself", [("3 << (rank / 2 * 2)", "1 << rank")], False),
    ("cluster", "multicast to the first block", [("3 << (rank / 2 * 2)", "1")], False),
    ("cluster", "both halves in one place", [("ring_producer.slot * 8192 + rank % 2 * 4096", "ring_producer.slot * 8192")], False),
    ("cluster", "both halves the same", [("b_n * 64 + rank % 2 * 32", "b_n * 64")], False),
    ("cluster", "both blocks have one tile", [("b_m * 2 + rank % 2", "b_m * 2")], False),
    ("cluster", "blocks of a cluster part", [("first = blockIdx.x / 2", "first = blockIdx.x")], False),
    ("cluster", "both arrivals at home", [("8, thread % 128);", "8, rank);")], False),
    ("cluster", "both arrivals abroad", [("8, thread % 128);", "8, 1 - rank);")], False),
    ("cluster", "one thread arrives for both", [("thread % 128 < 2)", "thread % 128 < 1)")], False),
    ("cluster", "arrivals relaxed", [("mbarrier.arrive.shared::cluster.b64", "mbarrier.arrive.relaxed.cluster.shared::cluster.b64")], True),
    ("cluster", "no cluster", [("__cluster_dims__(2, 1, 1) ", "")], False),
    ("cluster", "barrier of the block at the start", [(CLUSTER, "  __syncthreads();\n", 1)], True),
    ("cluster", "no wait at the start", [(CLUSTER, "  cluster_arrive();\n", 1)], True),
    ("cluster", "cluster barrier relaxed, nothing fenced", [("barrier.cluster.arrive.release", "barrier.cluster.arrive.relaxed"), (INIT, "")], True),
    ("cluster", "no cluster barrier at the end", [(CLUSTER, "", -1)], True),
    ("cluster", "no wait at the end", [(CLUSTER, "  cluster_arrive();\n", -1)], True),
    # barriers at the start
    ("cooperative", "no fences after init", [(FENCE, "", 1), (INIT, "")], True),
    ("cluster", "no fences after init", [(FENCE, "", 1), (INIT, "")], True),
    ("cooperative", "no barrier after init", [("  __syncthreads();\n", "")], True),
    # products
    ("cooperative", "waits after the products", moved("wait_full_ring(i, k);", "commit(i, k);{}"), False),
    ("cooperative", "one warp does not wait", [(" wait_full_ring(i", " if (warp % 4) wait_full_ring(i")], True),
    ("cooperative", "one thread waits", [(" wait_full_ring(i", " if (thread % 128 == 0) wait_full_ring(i")], True),
    ("cooperative", "no wgmma fence", [(ORDER, "")], True),
    ("cooperative", "no wgmma fence for the first k tile", [(" fence_multiply(i, 0)", " (void)(i, 0)")], True),
    ("cooperative", "no wgmma commit", [(GROUP, "")], True),
    ("cooperative", "wgmma committed after the wait", moved("commit(i, k);", "retire_empty_ring(i, k - 1);{}"), True),
    ("cooperative", "no drain", [("retire_empty_ring_rest(i);", "")], True),
    ("cooperative", "drained in the last tile alone", [("retire_empty_ring_rest(i);", "if (i == tiles - 1) retire_empty_ring_rest(i);")], True),
    ("cooperative", "drain after the release", moved("retire_empty_ring_rest(i);", "arrive_empty_ring_rest(i, k_tiles - 1);{}"), True),
    ("cooperative", "one warp does not drain", [("retire_empty_ring_rest(i);", "if (warp % 4) retire_empty_ring_rest(i);")], False),
    ("cooperative", "last slot never released", [("arrive_empty_ring_rest(i, k_tiles - 1);", "")], False),
    ("cooperative", "last slot released twice", [(" arrive_empty_ring_rest(i, k_tiles - 1);", "arrive_empty_ring_rest(i, k_tiles - 1); arrive_empty_ring_rest(i, k_tiles - 1);")], False),
    ("cooperative", "all threads release", [(OWN, "barrier_arrive(")], False),
    ("cooperative", "accumulates the tile before", [("k > 0 || s > 0", "1")], False),
    ("cooperative", "accumulates k tiles alone", [("k > 0 || s > 0", "k > 0")], False),
    ("cooperative", "accumulates steps alone", [("k > 0 || s > 0", "s > 0")], False),
    ("cooperative", "descriptor: rows of the first group", [("group * 8192) &", "0) &")], False),
    ("cooperative", "descriptor: next slot of B", [("address_b = low_b +", "address_b = low_b + 512 +")], False),
    ("cooperative", "descriptor: stride of A", [(HIGH_A, HIGH_A.replace("40u", "20u"))], False),
    ("cooperative", "descriptor: swizzle of B", [(HIGH_B, HIGH_B.replace("0x4", "0x8"))], False),
    ("cooperative", "descriptor: base offset of B", [(HIGH_B, HIGH_B.replace("0x4000", "0x4002"))], True),
    ("residual", "descriptor: leading stride of B", [("0x2000000u", "0x1000000u")], False),
    ("residual", "immediate: not transposed", [("p, 1, 1, 0, 1;", "p, 1, 1, 0, 0;")], False),
    ("cooperative", "k step of A too long", [("16384 + s * 32", "16384 + s * 64")], False),
    ("cooperative", "k step of B too short", [("8192 + s * 32", "8192 + s * 16")], False),
    ("residual", "k step of rows too short", [("s * 2048", "s * 1024")], False),
    ("cooperative", "slots of A overlap", [("ring_consumer.slot * 16384", "ring_consumer.slot * 8192")], False),
    ("cooperative", "k tiles rounded down", [("(K + 63) / 64", "K / 64")], False),
    ("cooperative", "parity never flips", [("slot = 0, parity ^= 1;", "slot = 0;")], False),
    # turns
    ("pingpong", "turn: parity of the first", [("turn_parity = 1 - group", "turn_parity = group")], False),
    ("pingpong", "turn: both go first", [("turn_parity = 1 - group", "turn_parity = 1")], False),
    ("pingpong", "turn: parity never flips", [("turn_parity ^= 1;", "")], False),
    ("pingpong", "turn: given to itself", [("(1 - group) * 8);", "group * 8);", -1)], False),
    ("pingpong", "turn: given at the start", moved("arrive_turn(i);", "wait_turn(i);{}"), False),
    ("pingpong", "turn: given by all threads", [(OWN, "barrier_arrive(", -1)], False),
    ("pingpong", "turn: two arrivals expected", [(", 1);  // turn", ", 2);  // turn")], False),
    ("pingpong", "no skip", [(" skip_ring(i);", "")], False),
    ("pingpong", "no first skip", [("skip_ring_first();", "")], False),
    ("pingpong", "releases do not skip", [(" ring_consumer_behind.advance_by(k_tiles);", "")], False),
    ("pingpong", "skip: parity", [("parity ^= slot / SLOTS & 1;", "")], False),
    ("pingpong", "skip: slot", [("slot %= SLOTS;", "slot = 0;")], False),
    ("pingpong", "both consumers take all tiles", [("i = turn; i < tiles; i += 2) {\n      locate", "i = 0; i < tiles; ++i) {\n      locate")], False),
    ("pingpong", "a consumer takes every third tile", [("i < tiles; i += 2) {\n      locate", "i < tiles; i += 3) {\n      locate")], False),
    # panels of operands
    ("residual", "panel read before its wait", moved("wait_full_r_0(i, p);", "finish(i, p);{}"), True),
    ("residual", "one warp waits for a panel", [(" wait_full_r_0(i", " if (warp % 4 == 0) wait_full_r_0(i")], True),
    ("residual", "one lane waits for a panel", [(" wait_full_r_0(i", " if (lane == 0) wait_full_r_0(i")], True),
    ("residual", "waits for the other group's panel", [("(group * 2 + r_0_consumer.slot) * 8, r_0", "((1 - group) * 2 + r_0_consumer.slot) * 8, r_0")], True),
    ("residual", "panel released before it is read", [("      r_0_consumer.advance();\n", ""), *moved("arrive_empty_r_0(i, p);", "{}finish(i, p);"), ("finish(i, p);", "finish(i, p); r_0_consumer.advance();")], True),
    ("residual", "releases the other group's panel", [("(group * 2 + r_0_consumer.slot) * 8);", "((1 - group) * 2 + r_0_consumer.slot) * 8);")], True),
    ("residual", "panel arrivals relaxed", [("mbarrier.arrive.shared::cta.b64", "mbarrier.arrive.relaxed.cta.shared::cta.b64")], True),
    ("residual", "no __syncwarp before the release", [("      __syncwarp();\n", "")], True),
    ("pingpong", "no __syncwarp before the release", [("      __syncwarp();\n", "")], True),
    ("residual", "all lanes release a panel", [(WARP, "barrier_arrive(")], False),
    ("residual", "panels never advance", [("r_0_consumer.advance();", "")], False),
    ("pingpong", "second matrix never advances", [("g_1_consumer.advance();", "")], False),
    ("pingpong", "reads the other slot", [("r_0_consumer.slot * 8192 + (quarter", "(1 - r_0_consumer.slot) * 8192 + (quarter")], False),
    ("residual", "reads the other group's panel", [("group * 32768 + p % 2 * 16384 + (quarter", "(1 - group) * 32768 + p % 2 * 16384 + (quarter", 1)], False),
    ("pingpong", "chunks of the operand added", [("r_0_at ^ j << 4", "r_0_at + (j << 4)")], False),
    ("residual", "swizzle bits of f32 pairs", [("^ ((lane / 4) & 7)) << 4", "^ ((lane / 4) & 3)) << 4", 1)], False),
    ("residual", "second box read from the first", [("(r_0_at ^ j % 4 * 32) + j / 4 * 8192", "(r_0_at ^ j % 4 * 32)")], False),
    # panels of results
    ("cooperative", "no swizzle of a panel", [("lane / 16 ^ (lane % 8 & 7)", "lane / 16")], False),
    ("cooperative", "swizzle bit of a panel", [("lane % 8 & 7", "lane % 8 & 3")], False),
    ("cooperative", "chunks of a panel added", [("matrices_write(y0_at ^ j << 4", "matrices_write(y0_at + (j << 4)")], False),
    ("residual", "rows of f32 pairs not 8 apart", [("half * 1024, y0_out", "half * 512, y0_out")], False),
    ("cooperative", "panels of the groups overlap", [("group * 16384 + result_y0_consumer", "group * 8192 + result_y0_consumer")], False),
    ("cooperative", "quarters two by two", [("warp % 4 * 16", "warp % 2 * 16")], False),
    ("cooperative", "quarters overlap", [("warp % 4 * 16", "warp % 4 * 8")], False),
    ("cooperative", "quarters in another order", [("warp % 4 * 16", "(3 - warp % 4) * 16")], False),
    ("cooperative", "sums of a pair swapped", [("[2 * half + 0], b", "[2 * half + 1], b")], False),
    ("cooperative", "matrices of a panel swapped", [("y0_words[j + 0][1], y0_words[j + 1][0]", "y0_words[j + 1][0], y0_words[j + 0][1]")], False),
    ("residual", "second panel from the first's sums", [("first_block = p % 2 * 8", "first_block = 0")], False),
    ("cooperative", "no proxy fence", [(FENCE, "", -1)], True),
    ("cooperative", "proxy fence by one thread", [(FENCE, "if (thread % 128 == 0) " + FENCE, -1)], True),
    ("residual", "waits for the slot after the barrier", [(READ, "", 1), (BAR, BAR + READ)], True),
    ("cooperative", "another thread waits for the slot", [(READ, READ.replace("== 0", "== 32"), 1)], False),
    ("cooperative", "barrier of two warps", [(BAR, BAR.replace("128", "64"))], True),
    ("cooperative", "barrier of a warp", [(BAR, "__syncwarp();")], True),
    ("cooperative", "both groups at one barrier", [(BAR, BAR.replace("group + 1", "1"))], True),
    ("cooperative", "barrier that does not exist", [(BAR, BAR.replace("group + 1", "group + 16"))], True),
    ("pingpong", "barrier of both groups", [(BAR, BAR.replace("group + 1", "1").replace("128", "256"))], False),
    ("cooperative", "barrier before the panel is written", moved("bar_store(i, 0);", "{}finish(i, 0);"), True),
    ("cooperative", "stored before the barrier", moved("bar_store(i, 0);", " store(i, 0);{}"), True),
    ("cooperative", "stored by all threads", [("if (thread % 128 == 0) {", "{")], False),
    ("cooperative", "stored by every warp", [("if (thread % 128 == 0) {", "if (lane == 0) {")], False),
    ("cooperative", "stored by a thread that never waits", [("if (thread % 128 == 0) {", "if (thread % 128 == 32) {")], False),
    ("cooperative", "stored with the first group's rows", [("group * 64 + p", "0 + p")], False),
    ("residual", "first box stored twice", [("16384 + 8192, b_n * 128 + p % 2 * 64 + 32", "16384 + 0, b_n * 128 + p % 2 * 64 + 0")], False),
    ("cooperative", "stored from the other slot", [("result_y0_consumer.slot * 8192 + 0, b_n", "(1 - result_y0_consumer.slot) * 8192 + 0, b_n")], False),
    ("cooperative", "results never advance", [("result_y0_consumer.advance();", "")], False),
    ("cooperative", "stores not committed", [(COMMIT, "")], False),
    ("residual", "committed before the stores", [(COMMIT, ""), ("        box_store(", f"        {COMMIT} box_store(", 1)], False),
    ("cooperative", "leaves with a store under way", [(READ, "", -1)], True),
    ("cooperative", "another thread waits at the end", [(READ, READ.replace("== 0", "== 32"), -1)], True),
    # a wait that may return false
    ("cooperative", "waits ask once", [(ASK, ASK.replace(AGAIN, ""))], False),
    ("pingpong", "waits ask once", [(ASK, ASK.replace(AGAIN, ""))], False),
    # edges
    ("cooperative", "low column not clamped", [("low = min(column, N - 1)", "low = column")], True),
    ("cooperative", "high column clamped to the next", [("min(column + 1, N - 1)", "min(column + 1, N)")], True),
    ("cooperative", "whole panels of columns at the edge", [("+ 64 <= N)", "<= N)")], True),
    ("cooperative", "warms what is not there", [("32, N - 1)", "32, N + 63)")], True),
    # who takes part
    ("cooperative", "one warp leaves early", [(QUARTER, f"    if (warp == 3) return;\n{QUARTER}")], False),
    ("cooperative", "one lane leaves early", [(QUARTER, f"    if (lane == 31) return;\n{QUARTER}")], False),
    ("residual", "one warp leaves before the last panels", [(" finish(i, p);", " if (i == tiles - 1 && warp == 5) return; finish(i, p);")], False),
    ("cooperative", "one warp asks for registers", [(TAKE, "if (warp % 4 == 0) " + TAKE)], False),
    ("cooperative", "no registers given back", [(GIVE, "")], True),
    # raster
    ("cooperative", "tiles rounded down", [("- first + stride - 1) / stride", "- first) / stride")], False),
    ("cooperative", "both blocks begin at the first tile", [("first = blockIdx.x / 1", "first = 0")], False),
    ("cooperative", "every second tile twice", [("item = first + i * stride", "item = (first + i * stride) / 2 * 2")], False),
    ("cooperative", "width of the last group", [("in_band % width, b_n = in_band / width", "in_band % 8, b_n = in_band / 8")], False),
    ("cooperative", "consumers leave out the last tile", [("i < tiles; ++i) {\n      locate", "i < tiles - 1; ++i) {\n      locate")], False),
]  # fmt: skip

# Stricter, only slower, or one of two ways to the same end: nothing to find.
HARMLESS = [
    ("cooperative", "bytes expected after the copies", [("        barrier_expect(full, 24576);\n", ""), ("        ring_producer.advance();", "        barrier_expect(full, 24576); ring_producer.advance();")]),
    ("cooperative", "waits for a slot after the fill before it", moved("wait_empty_ring(i, k);", " fill(i, k);{}")),
    ("cooperative", "registers as they are", [(GIVE, ""), (TAKE, "")]),
    ("cooperative", "proxy fence after init by the mbarrier fence", [(FENCE, "", 1)]),
    ("cooperative", "stores awaited altogether", [("cp.async.bulk.wait_group.read 0", "cp.async.bulk.wait_group 0")]),
    ("cooperative", "columns clamped everywhere", [("+ 64 <= N)", "+ 64 <= 0)")]),
    ("cooperative", "barrier 0 for the first group", [(BAR, BAR.replace("group + 1", "group"))]),
    ("cooperative", "no prefetch of maps", [("if (thread == 256) prefetch_map(&map_a);", "")]),
]  # fmt: skip

# Registers that do not wait for products: the machine finds them; the compiler, which would mend
# them at the cost of speed, is made to refuse.
REFUSED = [
    ("no wgmma fence after the first tile", [(" fence_multiply(i, ", " if (i == 0) fence_multiply(i, ")]),
    ("sums read before the drain", [("retire_empty_ring_rest(i);", ""), ("arrive_empty_ring_rest(i, k_tiles - 1);", ""), (" store(i, 0);", "store(i, 0); retire_empty_ring_rest(i); arrive_empty_ring_rest(i, k_tiles - 1);")]),
]  # fmt: skip
