"""Broken barriers between roles, forced into generated CUDA: the PTX machine finds every one.

The isl proof refuses these kernels before any code exists; here the same mistakes are made in the
text of kernels that were proved, and a run on the machine has to *report* them: a second witness,
which knows nothing of the proof. What follows a semicolon is a further way to make the mistake. The
same mistakes in trees and records are in ``tests/tile_mutants.py``.
"""

from __future__ import annotations

import re

import pytest
from generated import edited
from generated_roles import KERNELS, role_execute, role_kernel

COUNT = {"deadlock", "barrier-count"}
OVERWRITTEN = {"in-flight-access", "race-read-write", "race-write-write"}
EARLY = {"in-flight-access", "race-write-read", "uninitialised-shared-read"}
DEADLOCK = {"deadlock"}
RACE = {"race-read-write"}

OWN = "if (thread % 128 == 0) barrier_arrive("
WARP = "if (lane == 0) barrier_arrive("
READ = 'asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");'
BAR = 'asm volatile("bar.sync %0, 128;" :: "r"(group + 1) : "memory");'
DRAIN = "retire_empty_ring_rest(i);"
RELEASE, RETIRE = "arrive_empty_ring(i, k - 1);", "retire_empty_ring(i, k - 1);"
LOCAL = ("thread % 128 < 2) barrier_arrive_remote(", "thread % 128 == rank) barrier_arrive_remote(")


def count(barrier: str, expected: int, given: int) -> tuple[str, str]:
    """Another number of arrivals that complete a phase."""
    return f", {expected});  // {barrier}", f", {given});  // {barrier}"


def without(leaf: str) -> tuple[str, str]:
    """The calls of a leaf dropped."""
    return f" {leaf}(i", " (void)(i"


def ahead(leaf: str, cursor: str) -> tuple[str, str]:
    """A wait for the next round, too."""
    flip = f"{cursor}.parity ^= 1;"
    return f"{leaf}(i, k);", f"{leaf}(i, k); {flip} {leaf}(i, k); {flip}"


def deeper(name: str, groups: int, slots: int, cursors: tuple[str, ...], kernel: str):
    """Edits: the mbarriers of a ring, moved to the end of memory, are one more than its slots."""
    made = role_kernel(kernel)
    at = re.search(rf"(shared \+ \d+) \+ 8 \* slot, \d+\);  // {name}\n", made.source)[1]
    end = f"shared + {made.passes.source.launch.shared_bytes + 8}"
    init = f"; ++slot) barrier_init({end} "
    wider = f"slot < {groups * slots}{init}", f"slot < {groups * (slots + 1)}{init}"
    return [(f"{at} ", f"{end} "), wider, *cursors]


# name -> kernel, edits (or a function that makes them), findings any of which must be there
BROKEN = {
    # the main loop
    "a release as soon as products are issued": (
        "cooperative", [(RETIRE, ""), (RELEASE, RELEASE + RETIRE)], OVERWRITTEN,
    ),
    "a release as soon as products are issued; pingpong": (
        "pingpong", [(RETIRE, ""), (RELEASE, RELEASE + RETIRE)], OVERWRITTEN,
    ),
    "a release as soon as products are issued; cluster": (
        "cluster", [(RETIRE, ""), (RELEASE, RELEASE + RETIRE)], OVERWRITTEN,
    ),
    "a release as soon as products are issued; after the loop": (
        "cooperative",
        [(DRAIN, ""), ("finish(i, 0);", f"{DRAIN} finish(i, 0);")],
        {"in-flight-access"},
    ),
    "products in flight that nobody counted": (
        "cooperative",
        [("wgmma.wait_group.sync.aligned 1", "wgmma.wait_group.sync.aligned 2")],
        OVERWRITTEN,
    ),
    "a release when the ring has come round": (
        "cooperative", [(RELEASE, "if (k >= 3) " + RELEASE)], DEADLOCK,
    ),
    "one consumer's arrival is missing": ("cooperative", [count("empty_ring", 2, 1)], COUNT),
    "one consumer's arrival is missing; it does not arrive": (
        "cooperative",
        [(OWN, OWN.replace("thread % 128", "thread")), count("empty_ring", 2, 1)],
        RACE,
    ),
    "one consumer's arrival is missing; and is waited for": (
        "cooperative", [(OWN, OWN.replace("thread % 128", "thread"))], DEADLOCK,
    ),
    "one arrival too many": ("cooperative", [count("empty_ring", 2, 3)], DEADLOCK),
    "one arrival too many; pingpong": ("pingpong", [count("empty_ring", 1, 2)], DEADLOCK),
    "two arrivals where one thread expects bytes": (
        "cooperative", [count("full_ring", 1, 2)], DEADLOCK,
    ),
    "the empty barrier's ring is deeper": (
        "cooperative",
        lambda: deeper(
            "empty_ring", 1, 3,
            (
                ("Cursor<3> ring_producer;", "Cursor<3> ring_producer; Cursor<4> waited;"),
                ("ring_producer.slot * 8, ring_producer.parity ^ 1);",
                 "waited.slot * 8, waited.parity ^ 1); waited.advance();"),
                ("Cursor<3> ring_consumer_behind;", "Cursor<4> ring_consumer_behind;"),
            ),
            "cooperative",
        ),
        OVERWRITTEN,
    ),
    "the empty barrier's ring is deeper; for the consumers": (
        "pingpong",
        [("Cursor<3> ring_consumer_behind;", "Cursor<4> ring_consumer_behind;")],
        COUNT | OVERWRITTEN,
    ),
    "the empty barrier's ring is deeper; and shallower for the consumers": (
        "cooperative",
        [("Cursor<3> ring_consumer_behind;", "Cursor<2> ring_consumer_behind;")],
        DEADLOCK,
    ),
    "the full barrier's ring is shallower": (
        "cooperative",
        [
            ("Cursor<3> ring_producer;", "Cursor<3> ring_producer; Cursor<2> told;"),
            ("ring_producer.slot * 8;", "told.slot * 8; told.advance();"),
            ("Cursor<3> ring_consumer;", "Cursor<3> ring_consumer; Cursor<2> heard;"),
            ("ring_consumer.slot * 8, ring_consumer.parity);",
             "heard.slot * 8, heard.parity); heard.advance();"),
        ],
        COUNT,
    ),
    "the full barrier's ring is shallower; and the ring, for the producer": (
        "cooperative", [("Cursor<3> ring_producer", "Cursor<2> ring_producer")], DEADLOCK,
    ),
    "the full barrier's ring is shallower; and the ring, for the consumers": (
        "cooperative",
        [("Cursor<3> ring_consumer;", "Cursor<2> ring_consumer;")],
        COUNT | EARLY,
    ),
    "the full barrier's ring is shallower; deeper, for the producer": (
        "cooperative",
        [("Cursor<3> ring_producer", "Cursor<4> ring_producer")],
        COUNT | EARLY,
    ),
    "parity of empty: the producer waits for its own round": (
        "cooperative", [("ring_producer.parity ^ 1", "ring_producer.parity")], DEADLOCK,
    ),
    "parity of empty: the producer waits for the round before the last": (
        "cooperative",
        [
            ("Cursor<3> ring_producer;", "Cursor<3> ring_producer; int filled = 0;"),
            ("wait_empty_ring(i, k);", "if (filled++ >= 6) wait_empty_ring(i, k);"),
            ("ring_producer.parity ^ 1", "ring_producer.parity"),
        ],
        OVERWRITTEN | COUNT,
    ),
    "parity of full: consumers wait for the round before": (
        "cooperative", [("ring_consumer.parity)", "ring_consumer.parity ^ 1)")], EARLY,
    ),
    "parity of full: consumers wait for the round before; pingpong": (
        "pingpong", [("ring_consumer.parity)", "ring_consumer.parity ^ 1)")], EARLY,
    ),
    "consumers wait one round ahead": (
        "cooperative", [ahead("wait_full_ring", "ring_consumer")], DEADLOCK,
    ),
    "consumers wait one round ahead; the producer": (
        "cooperative", [ahead("wait_empty_ring", "ring_producer")], DEADLOCK,
    ),
    "no empty barrier": ("cooperative", [without("wait_empty_ring")], OVERWRITTEN),
    "no empty barrier; pingpong": ("pingpong", [without("wait_empty_ring")], OVERWRITTEN),
    "no empty barrier; cluster": ("cluster", [without("wait_empty_ring")], OVERWRITTEN),
    "no full barrier": ("cooperative", [without("wait_full_ring")], EARLY),
    # clusters
    "no arrivals at the other block of the cluster": (
        "cluster", [LOCAL, count("empty_ring", 4, 2)], OVERWRITTEN,
    ),
    "a block counts on arrivals that stay at home": ("cluster", [LOCAL], DEADLOCK),
    "one consumer of the cluster is missing": (
        "cluster", [count("empty_ring", 4, 3)], OVERWRITTEN | COUNT,
    ),
    # sums that blocks share
    "no wait for the parts": ("shared", [without("wait_full_part")], EARLY),
    "the parts of the tile before": (
        "shared", [("part_consumer.parity)", "part_consumer.parity ^ 1)")], EARLY | DEADLOCK,
    ),
    "one landing area": (
        "shared", [("Cursor<2> part_consumer;", "Cursor<1> part_consumer;")], OVERWRITTEN,
    ),
    "landing areas of two slots in one place": (
        "shared", [(" + part_consumer.slot * 16384", "")], OVERWRITTEN,
    ),
    "a block sends nothing": ("shared", [(" send(i)", " if (rank == 0) send(i)")], DEADLOCK),
    "a block sends only its first tile": (
        "shared", [(" send(i)", " if (rank == 0 || i == 0) send(i)")], DEADLOCK,
    ),
    "a warp sends nothing": ("shared", [(" send(i)", " if (warp % 4) send(i)")], DEADLOCK),
    "bytes of the other block's parts alone": (
        "shared", [("barrier_expect(full, 16384)", "barrier_expect(full, 8192)")], COUNT | EARLY,
    ),
    "nobody announces the bytes of the parts": (
        "shared",
        [("if (thread % 128 == 0) barrier_expect(full, 16384);", "")],
        DEADLOCK,
    ),
    "every thread announces the bytes of the parts": (
        "shared", [("if (thread % 128 == 0) barrier_expect(full, 1", "barrier_expect(full, 1")],
        COUNT,
    ),
    "the bytes are told to another block": (
        "shared", [("address_in(full, d)", "address_in(full, 1 - d)")], {"out-of-bounds-shared"},
    ),
    "both blocks' parts in one place": (
        "shared", [(" + rank * 8192 + thread", " + thread")], OVERWRITTEN | EARLY,
    ),
    "sums are sent before the products are complete": (
        "shared", [(DRAIN, ""), ("combined(i);", f"{DRAIN} combined(i);")], {"wgmma-order"},
    ),
    "a block ends while others send to it": (
        "shared",
        [
            (" wait_full_part(i)", " if (i + 1 < tiles) wait_full_part(i)"),
            (" combine(i", " if (i + 1 < tiles) combine(i"),
        ],
        {"out-of-bounds-shared", "in-flight-access"},
    ),
    # turns
    "no turn": ("pingpong", [without("wait_turn")], EARLY | COUNT),
    "no turn; and none is given": (
        "pingpong", [without("wait_turn"), without("arrive_turn")], EARLY | COUNT,
    ),
    # the epilogue
    "one panel too many on its way out": (
        "cooperative", [(READ, READ.replace("read 0", "read 1"), 1)], {"in-flight-access"},
    ),
    "one panel too many on its way out; two panels of a tile": (
        "residual", [(READ, READ.replace("read 0", "read 1"), 1)], {"in-flight-access"},
    ),
    "one panel too many on its way out; any number": (
        "cooperative", [(READ, ";", 1)], {"in-flight-access"},
    ),
    "no barrier of the warpgroup": (
        "cooperative", [without("fence_store"), without("wait_store"), without("bar_store")],
        {"race-write-read", "missing-proxy-fence"},
    ),
    "no fence before the copy engine reads": (
        "cooperative", [without("fence_store")], {"missing-proxy-fence"},
    ),
    "a panel is written over while it is stored": (
        "cooperative", [without("wait_store")], {"in-flight-access"},
    ),
    "a block ends while a panel is stored": (
        "cooperative", [(" wait_last_store();", ";")], {"in-flight-access"},
    ),
    "no barrier of the warpgroup; no meeting": ("cooperative", [(BAR, "")], {"race-write-read"}),
    "no barrier of the warpgroup; f32": ("residual", [(BAR, "")], {"race-write-read"}),
    "one warp's arrival at a panel is missing": ("residual", [count("empty_r_0", 4, 3)], RACE),
    "one warp's arrival at a panel is missing; pingpong": (
        "pingpong", [count("empty_r_0", 4, 3)], RACE,
    ),
    "one warp's arrival at a panel is missing; it does not arrive": (
        "residual",
        [(WARP, WARP.replace(")", " && warp % 4 != 3)", 1)), count("empty_r_0", 4, 3)],
        RACE,
    ),
    "one warp's arrival at a panel is missing; and is waited for": (
        "residual", [(WARP, WARP.replace(")", " && warp % 4 != 3)", 1))], DEADLOCK,
    ),
    "one warp too many at a panel": ("residual", [count("empty_r_0", 4, 5)], DEADLOCK),
    "the panels' empty barrier is of another depth": (
        "residual",
        lambda: deeper(
            "empty_r_0", 2, 2,
            (
                ("Cursor<2> r_0_loader;", "Cursor<2> r_0_loader; Cursor<3> waited;"),
                ("(owner * 2 + r_0_loader.slot) * 8, r_0_loader.parity ^ 1);",
                 "(owner * 3 + waited.slot) * 8, waited.parity ^ 1); waited.advance();"),
                ("Cursor<2> r_0_consumer;", "Cursor<2> r_0_consumer; Cursor<3> released;"),
                ("(group * 2 + r_0_consumer.slot) * 8);",
                 "(group * 3 + released.slot) * 8); released.advance();"),
            ),
            "residual",
        ),
        OVERWRITTEN,
    ),
    "parity of empty panels": (
        "residual", [("r_0_loader.parity ^ 1", "r_0_loader.parity")], DEADLOCK,
    ),
    "parity of empty panels; of full ones": (
        "residual", [("r_0_consumer.parity)", "r_0_consumer.parity ^ 1)")], EARLY | COUNT,
    ),
    "no empty barrier of panels": ("residual", [without("wait_empty_r_0")], OVERWRITTEN),
    "no empty barrier of panels; pingpong": (
        "pingpong", [without("wait_empty_r_0")], OVERWRITTEN,
    ),
    "no full barrier of panels": ("residual", [without("wait_full_r_0")], EARLY),
    "no full barrier of panels; pingpong": ("pingpong", [without("wait_full_r_0")], EARLY),
    "no full barrier of the second matrix": ("pingpong", [without("wait_full_g_1")], EARLY),
}  # fmt: skip


@pytest.mark.parametrize("completion", ["late", "early", "random"])
@pytest.mark.parametrize("name", KERNELS)
def test_the_barriers_as_derived(name, completion):
    report, exact = role_execute(name, role_kernel(name).ptx, completion=completion)
    assert exact and report.ok, str(report)


@pytest.mark.sample(3)
@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_barrier_is_reported(fault, compile_ptx):
    kernel, edits, codes = BROKEN[fault]
    edits = edits() if callable(edits) else edits
    ptx = compile_ptx(edited(role_kernel(kernel).source, edits), "sm_90a")
    report, _ = role_execute(kernel, ptx, room=64, max_steps=20_000)
    assert codes & {finding.code for finding in report.findings}, str(report)
