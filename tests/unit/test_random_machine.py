"""Random programs on the PTX machine: exact or within their bound, and nothing found."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import Any

import pytest
from older_targets import TURING, VOLTA, compilable
from padded_arrays import mixed, trouble
from random_chains import chain_program, run_chain, run_layers
from random_folds import (
    compile_rows,
    fold_program,
    operand_program,
    output_program,
    row_program,
    section_program,
)
from random_products import compile_products, product_program
from random_programs import (
    compile_program,
    has_float_bound,
    narrow_program,
    odd_program,
    older_program,
    random_program,
    roomy_program,
    run_random,
    stored_numpy,
)
from random_prologues import (
    compile_fragments,
    compile_made_first,
    fragment_program,
    prologue_program,
)

from polygen.api import fuse
from polygen.frontend.parse import parse_expression


def _on_machine(kernel: Any, operands: list[Any]) -> list[Any]:
    arrays = [stored_numpy(*item[:3]) if isinstance(item, tuple) else item for item in operands]
    done = kernel.emulation(*arrays)
    assert done.report.ok, str(done.report)
    return list(done.results) if isinstance(done.results, tuple) else [done.results]


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(24))
def test_random_programs_are_exact_on_the_machine(seed: int) -> None:
    arch = ("sm_80", "sm_90a", "sm_89")[seed % 3]
    assert run_random(random_program(seed, largest=140), arch, _on_machine) == ""


ROOMY = [seed if seed < 5 else pytest.param(seed, marks=pytest.mark.slow) for seed in range(8)]


@pytest.mark.parametrize("seed", ROOMY)
def test_roomy_programs_are_exact_on_the_machine(seed: int) -> None:
    assert run_random(roomy_program(seed, largest=140), "sm_90a", _on_machine) == ""


NARROW = [n if n < 4 else pytest.param(n, marks=pytest.mark.slow) for n in range(8)]


@pytest.mark.parametrize("seed", NARROW)
def test_narrow_results_and_operands_are_exact_on_the_machine(seed: int) -> None:
    arch = ("sm_90a", "sm_80", "sm_89")[seed % 3]
    assert run_random(narrow_program(seed, largest=140), arch, _on_machine) == ""


ODD = [seed if seed < 4 else pytest.param(seed, marks=pytest.mark.slow) for seed in range(8)]


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", ODD)
def test_rows_at_any_address_are_exact_on_the_machine_with_roles(seed: int) -> None:
    assert run_random(odd_program(seed, largest=140), "sm_90a", _on_machine) == ""


MORE_OLDER = int(os.environ.get("POLYGEN_OLDER", "8"))
OLDER = [n if n < 2 else pytest.param(n, marks=pytest.mark.slow) for n in range(MORE_OLDER)]


@pytest.mark.parametrize("arch", [TURING, VOLTA])
@pytest.mark.parametrize("seed", OLDER)
def test_random_programs_are_exact_on_the_machine_for_older_targets(seed: int, arch: str) -> None:
    made = {"compiled": lambda case, arch: compilable(compile_program(case, arch))}
    assert run_random(older_program(seed, largest=140), arch, _on_machine, **made) == ""


MORE_PROLOGUES = int(os.environ.get("POLYGEN_PROLOGUES", "8"))
PROLOGUES = [n if n < 2 else pytest.param(n, marks=pytest.mark.slow) for n in range(MORE_PROLOGUES)]


@pytest.mark.parametrize("odd", [False, True], ids=["aligned", "odd"])
@pytest.mark.parametrize("seed", PROLOGUES)
def test_computed_operands_are_exact_on_the_machine(seed: int, odd: bool) -> None:
    arch = ("sm_80", "sm_90a")[seed % 2]
    assert run_random(prologue_program(seed, odd=odd), arch, _on_machine) == ""


@pytest.mark.parametrize(
    "seed", [n if n < 6 else pytest.param(n, marks=pytest.mark.slow) for n in range(60)]
)
def test_operands_that_are_made_first_without_roles_are_exact_on_the_machine(seed: int) -> None:
    case, arch = prologue_program(seed, odd=seed % 2 == 1), ("sm_80", "sm_90a")[seed % 4 // 2]
    kernel = compile_made_first(case, arch)
    assert kernel.passes.plan.realign is not None
    assert run_random(case, arch, _on_machine, compiled=lambda *_: kernel) == ""


FRAGMENTS = [n if n < 9 else pytest.param(n, marks=pytest.mark.slow) for n in range(48)]


@pytest.mark.parametrize("seed", FRAGMENTS)
def test_operands_that_consumers_compute_are_exact_on_the_machine(seed: int) -> None:
    """Where the ring can have one of their arrays: a third of the seeds."""
    case = fragment_program(seed)
    kernel = compile_fragments(case, "sm_90a")
    if kernel is None:
        pytest.skip("the copy engine brings none of the arrays")
    assert run_random(case, "sm_90a", _on_machine, compiled=lambda *_: kernel) == ""


@pytest.mark.parametrize("kind", ["any", "roomy"])
def test_random_floats_are_within_their_bounds_on_the_machine(kind: str) -> None:
    make = roomy_program if kind == "roomy" else random_program
    cases = [
        case for case in (make(seed, largest=140) for seed in range(30)) if has_float_bound(case)
    ]
    assert {case.signature[0].split("[")[0] for case in cases} == {"f16", "bf16", "tf32"}
    for case in cases[:3]:
        assert run_random(case, "sm_90a", _on_machine, exact=False) == ""


@pytest.mark.sample(3)
@pytest.mark.parametrize("roomy", [False, True], ids=["any", "roomy"])
@pytest.mark.parametrize(
    "seed", [n if n < 4 else pytest.param(n, marks=pytest.mark.slow) for n in range(8)]
)
def test_random_products_are_exact_on_the_machine(seed: int, roomy: bool) -> None:
    case = product_program(seed, 140, roomy=roomy)
    arch = "sm_90a" if roomy or seed % 2 else "sm_80"
    assert run_random(case, arch, _on_machine, compiled=compile_products) == ""


FOLDED = int(os.environ.get("POLYGEN_RANDOM_COUNT", "12"))


@pytest.mark.parametrize(
    "seed", [n if n < 4 else pytest.param(n, marks=pytest.mark.slow) for n in range(FOLDED)]
)
def test_random_folds_are_exact_on_the_machine(seed: int) -> None:
    """With POLYGEN_RANDOM_COUNT set, as many seeds."""
    roles = seed % 3 == 2
    case = fold_program(seed, 100 if roles else 140, roles=roles)
    arch = "sm_90a" if roles else ("sm_80", "sm_89")[seed % 2]
    assert run_random(case, arch, _on_machine) == ""


MORE_ROWS = int(os.environ.get("POLYGEN_ROWS", "8"))
ROW_PROGRAMS = [n if n < 3 else pytest.param(n, marks=pytest.mark.slow) for n in range(MORE_ROWS)]


@pytest.mark.parametrize("seed", ROW_PROGRAMS)
def test_random_rows_are_exact_on_the_machine(seed: int) -> None:
    roles = seed % 3 == 1
    arch = "sm_90a" if roles else ("sm_80", "sm_89")[seed % 2]
    case = row_program(seed, 100 if roles else 140, roles=roles)
    assert run_random(case, arch, _on_machine, compiled=compile_rows) == ""


MORE_SECTIONS = int(os.environ.get("POLYGEN_SECTIONS", "8"))
SECTIONS = [n if n < 1 else pytest.param(n, marks=pytest.mark.slow) for n in range(MORE_SECTIONS)]


@pytest.mark.parametrize("seed", SECTIONS)
def test_random_sections_are_exact_on_the_machine(seed: int) -> None:
    """With POLYGEN_SECTIONS set, as many seeds."""
    assert run_random(section_program(seed), "sm_90a", _on_machine) == ""


OPERANDS = int(os.environ.get("POLYGEN_RANDOM_COUNT", "4"))
OPERAND_FOLDS = [
    n if n in (1, 2) else pytest.param(n, marks=pytest.mark.slow) for n in range(OPERANDS)
]


@pytest.mark.parametrize("seed", OPERAND_FOLDS)
def test_random_folds_of_operands_are_exact_on_the_machine(seed: int) -> None:
    """With POLYGEN_RANDOM_COUNT set, as many seeds."""
    roles = seed % 4 == 3
    case = operand_program(seed, 64 if roles else 140, roles=roles)
    arch = "sm_90a" if roles else ("sm_80", "sm_89")[seed % 2]
    assert run_random(case, arch, _on_machine) == ""


@pytest.mark.parametrize("seed", OPERAND_FOLDS)
def test_random_folds_of_operands_that_leave_are_exact_on_the_machine(seed: int) -> None:
    """With POLYGEN_RANDOM_COUNT set, as many seeds."""
    roles = seed % 4 == 3
    case = output_program(seed, 64 if roles else 140, roles=roles)
    arch = "sm_90a" if roles else ("sm_80", "sm_89")[seed % 2]
    assert run_random(case, arch, _on_machine) == ""


MORE_VIEWS = int(os.environ.get("POLYGEN_RANDOM_COUNT", "16"))
VIEWS = [n if n < 2 else pytest.param(n, marks=pytest.mark.slow) for n in range(MORE_VIEWS)]


@pytest.mark.parametrize("seed", VIEWS)
def test_random_rows_in_views_are_right_on_the_machine(seed: int) -> None:
    """Outputs, too, are parts of larger arrays; some of a row is held, and some is walked."""
    arch, rng = ("sm_80", "sm_90a", TURING)[seed % 3], random.Random(seed)
    case = row_program(1000 + seed, 100)
    if arch == TURING:
        halves = tuple(
            text.replace("bf16", "f16").replace("tf32", "f16") for text in case.signature
        )
        case = replace(case, signature=halves, out_dtype=None)
    case = replace(case, sizes=case.sizes | {"K": min(case.sizes["K"], 40)})
    fused = fuse(parse_expression(case.expression, case.names), name=f"views_{seed}")
    chosen = compile_program(case, arch).schedule
    words, warps = rng.choice([1, 2, 3, 8]), rng.choice([1, 2, 4, 8])
    way = replace(chosen.epilogue, row_words=words, row_warps=warps)
    schedule, out = replace(chosen, epilogue=way), case.out_dtype
    made = fused.compile(*case.signature, arch=arch, schedule=schedule, out_dtype=out)
    kernel = compilable(made)
    assert trouble(kernel, case.sizes, mixed(kernel.program, seed), seed) == "", str(case)


CHAINS = [n if n < 2 else pytest.param(n, marks=pytest.mark.slow) for n in range(MORE_VIEWS)]


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("seed", CHAINS)
def test_random_chains_are_right_on_the_machine(seed: int, arch: str) -> None:
    """With POLYGEN_RANDOM_COUNT set, as many seeds."""
    assert run_chain(chain_program(seed, arch), seed) == ""


LAYERS = [seed if seed < 4 else pytest.param(seed, marks=pytest.mark.slow) for seed in range(40)]


@pytest.mark.parametrize("seed", LAYERS)
def test_random_layers_are_exact_on_the_machine(seed: int) -> None:
    """With gates, residuals and folds of results."""
    assert run_layers(seed, ("sm_80", "sm_90a")[seed % 2]) == ""
