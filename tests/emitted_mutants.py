"""What is emitted of whole kernels, with a statement dropped, doubled or exchanged with the next.

`KERNELS` names kernels of both paths, with the launches beside them; `emitted(name)` has what is
proved of one before it is emitted. Texts of trees are changed as texts (`text_mutants`), what isl
made of them as loops (`loop_mutants`). Every one has to be refused: texts by `refine`, loops by
`check_loops`. Exchanged texts that are right all the same are those of `EQUIVALENT`.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from unittest import mock

import polygen as pg
from polygen.lower import block_plan
from polygen.poly import block_tree, chain_map, mapping
from polygen.poly.ast import Block, Call, For, If, LoopAst, Marked
from polygen.poly.emitted import Emitted
from polygen.poly.place_trees import PlaceTree


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel to break.

    Attributes:
        function: its array code.
        signature: of its arguments.
        arch: its target.
        sizes: that are known.
    """

    function: Callable[..., object]
    signature: tuple[str, ...]
    arch: str = "sm_90a"
    sizes: tuple[tuple[str, int], ...] = ()


def _capped(q, k, v):
    return pg.softmax(pg.tanh((q @ k.mT) * 0.1 / 30) * 30) @ v


_SCORES = ("bf16[2,70,64]", "bf16[2,90,64]", "bf16[2,90,64]")
_PLAIN = ("bf16[M,K]", "bf16[N,K]")
_LARGE = (("M", 4096), ("N", 4096), ("K", 1024))
KERNELS = {
    "warps": Kernel(lambda x, w: pg.gelu(x @ w.T), _PLAIN, "sm_80", _LARGE),
    "warps, folds": Kernel(lambda x, w: pg.sum(x @ w.T, axis=1), _PLAIN, "sm_80"),
    "warps, a soft cap": Kernel(_capped, _SCORES, "sm_80"),
    "warps, copies through registers": Kernel(
        lambda x, w: x @ w.T, ("f16[M,K]", "f16[N,K]"), "sm_75"
    ),
    "roles": Kernel(lambda x, w: pg.gelu(x @ w.T), _PLAIN, "sm_90a", _LARGE),
    "roles, a residual": Kernel(
        lambda x, w, r: x @ w.T + r, (*_PLAIN, "bf16[M,N]"), "sm_90a", _LARGE
    ),
    "roles, folds": Kernel(lambda x, w: pg.softmax(x @ w.T), _PLAIN),
    "roles, a soft cap": Kernel(_capped, _SCORES),
    "roles, softmax made first": Kernel(
        lambda x, w: pg.softmax(x).astype("bf16") @ w.T, ("bf16[67,136]", "bf16[48,136]")
    ),
    "roles, gathered experts": Kernel(
        lambda x, r, w, e: pg.grouped_matmul(x[r], w, e),
        ("bf16[S,64]", "s32[T]", "bf16[E,64,N]", "s32[E]"),
    ),
    "roles, computed f32": Kernel(
        lambda x, w: pg.silu(x) @ w.T, ("f32[4096,512]", "f32[4096,512]")
    ),
    "roles, 8-bit columns copied first": Kernel(
        lambda x, w: x @ w, ("e4m3[1024,1040]", "e4m3[1040,1024]")
    ),
    "roles, rows copied first": Kernel(
        lambda x, w: x @ w.T, ("bf16[1021,1031]", "bf16[1033,1031]")
    ),
}


@lru_cache(maxsize=2)
def emitted(name: str) -> tuple[Emitted, ...]:
    """What is emitted of a kernel and the launches beside it, each with the proof that it needs."""
    kernel, found = KERNELS[name], []
    plain = block_tree.emitted_of

    def recorded(*given: object, **named: object) -> Emitted:
        one = plain(*given, **named)  # type: ignore[arg-type]
        found.append(one)
        return one

    with contextlib.ExitStack() as patched:
        for module in (block_tree, chain_map, mapping):
            patched.enter_context(mock.patch.object(module, "emitted_of", recorded))
        block_plan.forget()
        pg.fuse(kernel.function, name="broken").compile(
            *kernel.signature, arch=kernel.arch, sizes=dict(kernel.sizes) or None
        )
    block_plan.forget()
    return tuple(dict.fromkeys(found))


# ---- texts ---------------------------------------------------------------------------------------

_PIECE = r"\b{}(\[[^\]]*\])(?P<rest> -> \[[^\]]*\]| : [^;}}]*)?"


def text_mutants(of: Emitted) -> Iterator[tuple[str, Emitted]]:
    """Texts without a statement, with one twice, and with neighbours in a sequence exchanged."""
    for tree in of.trees:
        for what, changed in _changed(tree):
            trees = tuple(changed if one is tree else one for one in of.trees)
            yield f"{tree.place.name}: {what}", replace(of, trees=trees)


def _changed(tree: PlaceTree) -> Iterator[tuple[str, PlaceTree]]:
    domain, child, rest = tree.text.partition('", child')
    for call in dict.fromkeys(re.findall(r"\b(\w+)\[[^\]]*\](?: :|;| })", domain)):
        piece = _PIECE.format(call)
        cut = re.sub(piece, rf"{call}\1 : 1 = 0", domain)
        yield f"{call} is dropped", replace(tree, text=f"{cut}{child}{rest}")
        again = f"{call}_again"
        text = re.sub(piece, rf"\g<0>; {again}\1\g<rest>", tree.text)
        calls = (*tree.calls, (again, dict(tree.calls).get(call, call)))
        yield f"{call} is doubled", replace(tree, text=text, calls=calls)
    for elements in _sequences(tree.text):
        for (a, b), (c, d) in itertools.pairwise(elements):
            first, then = tree.text[a:b], tree.text[c:d]
            text = f"{tree.text[:a]}{then}{tree.text[b:c]}{first}{tree.text[d:]}"
            yield f"{_first(then)} before {_first(first)}", replace(tree, text=text)


def _first(element: str) -> str:
    """The first statement of an element of a sequence."""
    return re.findall(r"(\w+)\[[^\]]*\]", element.partition("{ filter:")[2].partition("{")[2])[0]


def _sequences(text: str) -> Iterator[list[tuple[int, int]]]:
    """Where the elements of every sequence begin and end."""
    for found in re.finditer(r"sequence: \[", text):
        at, depth, elements = found.end(), 0, []
        quoted, begin = False, 0
        while True:
            sign = text[at]
            quoted ^= sign == '"'
            if not quoted and sign in "{[":
                begin = at if depth == 0 else begin
                depth += 1
            if not quoted and sign in "}]":
                if depth == 0:
                    break
                depth -= 1
                if depth == 0:
                    elements.append((begin, at + 1))
            at += 1
        yield elements


# ---- loops ---------------------------------------------------------------------------------------


def loop_mutants(tree: PlaceTree) -> Iterator[tuple[str, LoopAst]]:
    """Loops without a call, with one twice, and with neighbours exchanged."""
    loops = tree.loops()
    yield from _broken(loops, lambda changed: changed)


def _broken(node: LoopAst, whole: Callable[[LoopAst], LoopAst]) -> Iterator[tuple[str, LoopAst]]:
    if isinstance(node, Call):
        what = f"{node.statement}({', '.join(map(str, node.arguments))})"
        yield f"{what} is dropped", whole(Block(()))
        yield f"{what} is doubled", whole(Block((node, node)))
    elif isinstance(node, For | Marked):
        yield from _broken(node.body, lambda changed: whole(replace(node, body=changed)))
    elif isinstance(node, If):
        yield from _broken(node.then, lambda changed: whole(replace(node, then=changed)))
        if node.otherwise is not None:
            yield from _broken(
                node.otherwise, lambda changed: whole(replace(node, otherwise=changed))
            )
    else:
        assert isinstance(node, Block)
        for n, child in enumerate(node.children):
            before, behind = node.children[:n], node.children[n + 1 :]

            def made(changed: LoopAst, before=before, behind=behind) -> LoopAst:
                return whole(Block((*before, changed, *behind)))

            yield from _broken(child, made)
            if behind:
                exchanged = Block((*before, behind[0], child, *behind[1:]))
                yield f"{_call(child)} behind {_call(behind[0])}", whole(exchanged)


def _call(node: LoopAst) -> str:
    """The first call below a node."""
    while not isinstance(node, Call):
        if isinstance(node, Block):
            node = node.children[0]
        else:
            node = node.then if isinstance(node, If) else node.body
    return node.statement


# ---- changes that are no mistakes ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Equivalent:
    """Exchanged neighbours with which a kernel still does what its program says.

    Attributes:
        what: the descriptions that `text_mutants` gives it, without the place.
        reason: why.
    """

    what: tuple[str, ...]
    reason: str


EQUIVALENT = (
    Equivalent(
        (
            "prepare before wait_load_a", "bar_stage before prepare", "prepare before fetch_a",
            "unfold before wait_load_a", "clear before commit", "wait_turn before prepare",
            "wait_full_ring before prepare", "wait_full_ring_a before prepare",
            "wait_empty_ring_a before locate", "wait_full_ring_a before locate",
            "skip_ring before finish", "skip_ring before wait_full_r_0", "skip_ring before fold",
        ),
        "registers of one thread, of which the other knows nothing",
    ),
    Equivalent(
        (
            "copy_b before copy_a", "copy_c before copy_b", "fetch_b before fetch_a",
            "load_b before load_a", "put before fill", "begin_1 before finish_0",
            "begin_2 before finish_1", "wait_full_ring_b before wait_full_ring_a",
        ),
        "two operands, or two results, that do not depend on each other",
    ),
    Equivalent(
        ("mma before load_b", "score before load_b", "mma before load_c"),
        "with a lookahead products between are of an earlier step, from the other fragment",
    ),
    Equivalent(
        ("copy_a before load_a", "copy_a before bar_copy_a"),
        "a copy is behind another barrier all the same, and its slot is that of an earlier tile",
    ),
    Equivalent(
        ("bar_load_a before fetch_b",),
        "a fetch writes registers of its own thread, and the barrier is for what lies in the rings",
    ),
    Equivalent(
        (
            "fence_multiply before wait_full_ring", "fence_multiply before wait_full_ring_b",
            "fence_multiply before wait_full_ring_c", "fence_score before wait_turn",
        ),
        "the fence is for registers of sums, which nothing touches between it and the products",
    ),
    Equivalent(
        ("wait_store before fence_store", "fence_store before arrive_empty_r_0"),
        "the fence is for the panel that was written, the other one for another panel",
    ),
    Equivalent(
        (
            "retire_empty_ring_rest before arrive_turn", "retire_empty_ring_b before arrive_turn",
            "unfold before arrive_empty_ring_rest", "complete before arrive_empty_ring_a",
            "weigh before arrive_empty_ring_b", "convert before arrive_empty_ring_c",
            "promote before arrive_empty_ring",
        ),
        "the slot or the turn is given back later, which is slower and no less ordered",
    ),
    Equivalent(
        (
            "wait_turn before wait_full_ring_b", "wait_full_ring_c before commit_score",
            "retire_empty_ring_c before weigh",
        ),
        "a wait comes sooner, which is slower and no less ordered",
    ),
    Equivalent(
        ("arrive_turn before commit_multiply",),
        "the turn is for who issues products first, and these have been issued",
    ),
)  # fmt: skip
# Loops of which one runs with a single k tile alone, the other with three or more.
NEVER_BOTH = frozenset({"commit behind wait_load_a"})
