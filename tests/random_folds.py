"""Random programs with folds: the values of random programs, folded over rows, columns or both.

Sums are of clipped values, so that they stay below 2^24 and f32 holds them exactly in any order.
"""

from __future__ import annotations

import random
from dataclasses import replace

from random_programs import Random, compile_program, random_program, split_outputs

from polygen.api import fuse
from polygen.errors import PolygenError
from polygen.frontend.parse import parse_expression
from polygen.kernel import Kernel
from polygen.lower.cover import covering

# A fold, and the value of which it is exact.
FOLDS = (
    ("sum", "clip({}, -3, 4)"),
    ("sum", "clip({}, -3, 4)"),
    ("max", "{}"),
    ("min", "{}"),
    ("max", "abs({})"),
    ("prod", "clip({}, -1, 1)"),
    ("argmax", "{}"),
    ("argmin", "clip({}, -2, 2)"),
)


def fold_program(seed: int, largest: int = 1500, *, roles: bool = False) -> Random:
    """The program of a seed: one to three folds, with the matrix or without.

    Args:
        seed: decides everything.
        largest: size.
        roles: take a schedule with roles.
    """
    rng = random.Random(f"folds {seed}")
    case = random_program(rng.randrange(1 << 30), largest)
    value = split_outputs(case.expression)[0]
    outputs = []
    for _ in range(rng.randint(1, 3)):
        name, of = rng.choice(FOLDS)
        axes = ["0", "1", "-1"] if name.startswith("arg") else ["0", "1", "-1", "(0, 1)", "None"]
        axis = rng.choice(axes)
        kept = rng.random() < 0.4
        words = f"axis={axis}, keepdims=True" if kept else f"axis={axis}"
        outputs.append(f"{name}({of.format(f'({value})')}, {words})")
    if rng.random() < 0.6:
        outputs.insert(rng.randint(0, len(outputs)), value)
    expression = outputs[0] if len(outputs) == 1 else f"({', '.join(outputs)})"
    return replace(case, seed=seed, expression=expression, out_dtype=None, with_roles=roles)


# What elements use of their own row; `{v}` is a value, `{a}` the axis.
ROWS = (
    "({v}) - max({v}, axis={a}, keepdims=True)",
    "({v}) + min({v}, axis={a}, keepdims=True)",
    "clip({v}, -3, 4) * 2 - sum(clip({v}, -3, 4), axis={a}, keepdims=True)",
    "where(({v}) >= max({v}, axis={a}, keepdims=True), 1, 0)",
    "maximum({v}, max(clip({v}, -9, 5), axis={a}, keepdims=True) - 2)",
)


def row_program(seed: int, largest: int = 1500, *, roles: bool = False) -> Random:
    """The program of a seed: elements that use results of their own row, to one level or to two.

    Args:
        seed: decides everything.
        largest: size.
        roles: take a schedule with roles.
    """
    rng = random.Random(f"rows {seed}")
    case = random_program(rng.randrange(1 << 30), largest)
    value = split_outputs(case.expression)[0]
    axis = rng.choice(["0", "1", "-1", "-1", "(0, 1)"])
    used = rng.choice(ROWS).format(v=value, a=axis)
    if rng.random() < 0.4:
        used = rng.choice(ROWS).format(v=f"clip({used}, -7, 8)", a=axis)
    outputs = [used]
    if rng.random() < 0.4:
        outputs.append(value)
    if rng.random() < 0.4:
        name, of = rng.choice(FOLDS[:5])
        outputs.append(f"{name}({of.format(f'({value})')}, axis={rng.choice([axis, '0'])})")
        if "(" in axis:
            outputs[-1] = outputs[-1][:-1] + ", keepdims=True)"
    if rng.random() < 0.3:  # put together: every part has a statement of its own
        other = rng.choice(ROWS).format(v=value, a=axis)
        outputs[0] = f"stack([{used}, {other}], axis={rng.choice([0, -1])})"
    expression = outputs[0] if len(outputs) == 1 else f"({', '.join(outputs)})"
    return replace(case, seed=seed, expression=expression, out_dtype=None, with_roles=roles)


def compile_rows(case: Random, arch: str) -> Kernel:
    """The kernel of a seed: half of them have rows in tiles, where tiles cover them."""
    kernel = compile_program(case, arch)
    tile, schedule = case.seed % 2 == 0, kernel.schedule
    if schedule.covers_rows == tile:
        return kernel
    way = replace(schedule.epilogue, through="registers", columns=0, rows="after")
    own = replace(schedule, epilogue=way)
    if tile:
        own = covering(schedule, case.sizes.get("N", 0))
    fused = fuse(parse_expression(case.expression, case.names), name=f"random_{case.seed}")
    options = {"arch": arch, "sizes": case.sizes, "out_dtype": case.out_dtype}
    try:
        made = fused.compile(*case.signature, schedule=own, **options)
        made.artifact  # noqa: B018  (may spill)
    except PolygenError:  # rows run along m, or are of several axes
        return kernel
    longer = (
        case.sizes.get(str(one.dim), 0) > one.multiple
        for one in made.passes.source.conditions
        if one.kind == "cover"
    )
    return kernel if any(longer) else made


# Folds of an operand's rows; `{v}` is the operand with k last.
OPERANDS = (
    "sum(clip({v}, -2, 2), axis=-1, keepdims=True)",
    "sum({v} * {v}, axis=-1, keepdims=True)",
    "max({v} * 2 - 1, axis=-1, keepdims=True)",
    "min(abs({v}), axis=-1, keepdims=True)",
    "sum(where({v} > 0, 1, -2), axis=-1, keepdims=True)",
)


def operand_program(seed: int, largest: int = 1500, *, roles: bool = False) -> Random:
    """The program of a seed: elements that use folds of rows of their operands, of either side.

    Args:
        seed: decides everything.
        largest: size.
        roles: take a schedule with roles.
    """
    rng = random.Random(f"operands {seed}")
    case = random_program(rng.randrange(1 << 30), largest)
    value = split_outputs(case.expression)[0]
    left = "x.T" if "[K,M]" in case.signature[0] else "x"
    right = "w" if "[N,K]" in case.signature[1] else "w.T"
    used = [f"({value})"]
    side = rng.choice(["left", "right", "both"])
    if side != "right":
        used += rng.sample([one.format(v=left) for one in OPERANDS], rng.randint(1, 2))
    if side != "left":
        used.append(f"({rng.choice(OPERANDS).format(v=right)}).T")
    expression = " + ".join(used)
    if rng.random() < 0.3:
        expression = f"({expression}, max({expression}, axis={rng.choice([0, 1])}))"
    return replace(case, seed=seed, expression=expression, out_dtype=None, with_roles=roles)


# Folds of an operand's rows that leave; `{v}` is the operand with k last.
OUTPUTS = (
    "sum(clip({v}, -2, 2), axis=-1)",
    "sum({v} * {v}, axis=-1, keepdims=True)",
    "max({v} * 2 - 1, axis=-1)",
    "min(abs({v}), axis=-1) * 2 + max({v}, axis=-1)",
    "max(where({v} > 0, {v}, -2), axis=-1, keepdims=True)",
    "3 - sum(where({v} > 0, 1, -2), axis=-1)",
)


def output_program(seed: int, largest: int = 1500, *, roles: bool = False) -> Random:
    """The program of a seed: folds of rows of operands that leave, some of which elements use.

    Args:
        seed: decides everything.
        largest: size.
        roles: take a schedule with roles.
    """
    rng = random.Random(f"outputs {seed}")
    case = random_program(rng.randrange(1 << 30), largest)
    value = split_outputs(case.expression)[0]
    left = "x.T" if "[K,M]" in case.signature[0] else "x"
    right = "w" if "[N,K]" in case.signature[1] else "w.T"
    sides = rng.choice([[left], [right], [left, right], [left, right]])
    leaving = [rng.choice(OUTPUTS).format(v=side) for side in sides]
    leaving += [rng.choice(OUTPUTS).format(v=sides[0])] * rng.randint(0, 1)
    used = f"({value})"
    if rng.random() < 0.4:
        used += f" + {rng.choice(OPERANDS).format(v=left)}"
    if rng.random() < 0.2:
        used = f"max({used}, axis={rng.choice([0, 1])})"
    outputs = [used, *dict.fromkeys(leaving)]
    rng.shuffle(outputs)
    expression = f"({', '.join(outputs)})"
    return replace(case, seed=seed, expression=expression, out_dtype=None, with_roles=roles)


def section_program(seed: int, largest: int = 100) -> Random:
    """The program of a seed: two or three products with outputs of their own sizes, some of which
    fold rows that elements use, or folds that leave; perhaps heads of one of them, and a pair.

    Args:
        seed: decides everything.
        largest: size.
    """
    rng = random.Random(f"sections {seed}")
    sizes = {name: rng.randint(1, largest) for name in "MKNPQ"}
    names, signature, outputs = ["x"], ["bf16[M,K]"], []
    pairs = rng.random() < 0.3  # of which some section has one, and others columns that are cut
    for number, dim in enumerate("NPQ"[: rng.randint(2, 3)]):
        heads, size = rng.randint(1, 3), rng.choice([8, 16, 24])
        pair = pairs and rng.random() < 0.6
        own = rng.random() < 0.4 or (pairs and not pair)
        rows, value = f"{heads},{size}" if own else dim, ""
        for at in range(1 + pair):
            names.append(f"w{number}{at}")
            signature.append(f"bf16[{rows},K]")
            name = f"w{number}{at}"
            made = f"einsum('mk,hdk->mhd', x, {name})" if own else f"(x @ {name}.T)"
            value = f"{value} * {made}" if value else made
        value = rng.choice(["{}", "{} * 2", "clip({}, -7, 9)", "{} + 1"]).format(f"({value})")
        whole = pairs and not pair  # columns of what folds are not cut
        done = [rng.choice(ROWS).format(v=value, a=-1) if rng.random() < 0.6 - whole else value]
        if rng.random() < 0.3 - whole:
            name, of = rng.choice(FOLDS[:6])
            done.append(f"{name}({of.format(f'({value})')}, axis=-1)")
        outputs += done
    rng.shuffle(outputs)
    sizes = {name: size for name, size in sizes.items() if any(name in t for t in signature)}
    plain = dict.fromkeys(names, 0)
    expression = f"({', '.join(outputs)})"
    return Random(seed, expression, tuple(signature), tuple(names), sizes, None, plain, plain)
