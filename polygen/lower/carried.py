"""The second product's operand of a chain: the sums of the first, where they are.

A product may take what it sums over in any order, the same for both operands. So it is enough that
each thread's sums are, in some order of the instruction's k that all threads share, its own
elements of the left operand; the right operand's fragments are then loaded in that order.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from polygen.errors import VerifyError
from polygen.hardware.atom import Atom
from polygen.hardware.data_file import Integers
from polygen.poly.chain_match import VALUES, ChainMatch
from polygen.poly.layer_match import ROWS
from polygen.poly.legality import Proof


@dataclass(frozen=True, slots=True)
class Carried:
    """How sums are the left operand of the next product.

    Attributes:
        registers: per register of the operand its elements in the accumulator, each as (group of
            columns, element), of the groups that cover the instruction's k.
        order: per k of the instruction the column of the sums that is there; (): its own.
    """

    registers: tuple[tuple[tuple[int, int], ...], ...]
    order: tuple[int, ...]


@functools.cache
def carried(atom: Atom) -> Carried:
    """Where an instruction's left operand is among the sums of the same thread.

    Raises:
        VerifyError: a thread's operand is not among its own sums, in no order that all share.
    """
    per, each = atom.c.elements, atom.a.elements_per_register
    groups = range(-(-atom.k // atom.n))
    sums = np.concatenate([atom.c.table + np.array([0, g * atom.n]) for g in groups], axis=1)
    left, found = list(range(sums.shape[1])), list[tuple[int, int]]()
    columns: dict[int, int] = {}
    for slot in range(atom.a.elements):
        wanted = atom.a.table[:, slot]
        for at in left:
            agreed = _agreed(columns, wanted, sums[:, at])
            if agreed is not None:
                columns = agreed
                found.append(divmod(at, per))
                left.remove(at)
                break
        else:
            raise VerifyError(
                f"{atom.name}: element {slot} of the left operand is no sum of the same thread",
                where="chain",
            )
    order = tuple(columns[k] for k in range(atom.k))
    registers = tuple(
        tuple(found[register * each : (register + 1) * each])
        for register in range(atom.a.registers)
    )
    return Carried(registers, () if order == tuple(range(atom.k)) else order)


def _agreed(columns: dict[int, int], wanted: Integers, own: Integers) -> dict[int, int] | None:
    """The columns that are at each k, with those by which a sum of every thread is an element.

    Args:
        columns: by k, as far as they are known.
        wanted: row and k of the element, by lane.
        own: row and column of the sum, by lane.

    Returns:
        None where the rows are others, or a k has two columns, or a column is at two.
    """
    if not np.array_equal(wanted[:, 0], own[:, 0]):
        return None
    found = dict(columns)
    pairs = zip(wanted[:, 1].tolist(), own[:, 1].tolist(), strict=True)
    if any(found.setdefault(k, column) != column for k, column in pairs):
        return None
    return found if len(set(found.values())) == len(found) else None


def in_pairs(atom: Atom) -> tuple[tuple[int, int], ...]:
    """Per register of the left operand the sums that it holds, where these are two neighbours and
    the right operand is read in its own order, as matrix descriptors read it.

    Returns:
        Of each pair (group of columns, first element).

    Raises:
        VerifyError: they are not.
    """
    found = carried(atom)
    for register, held in enumerate(found.registers):
        group, element = held[0]
        if found.order or held != ((group, element), (group, element + 1)):
            raise VerifyError(
                f"{atom.name}: register {register} of the left operand is no pair of sums of the "
                "same thread",
                where="chain",
            )
    return tuple(held[0] for held in found.registers)


def order_of(found: ChainMatch, name: str, atom: Atom) -> tuple[int, ...]:
    """In which order the instruction's k is along an operand that comes from memory.

    Args:
        found: the chain.
        name: of its ring.
        atom: the instruction.

    Returns:
        (): in its own. It is that of the sums where the left operand stays in registers.
    """
    first = found.layers[0].rights if found.layers else found.scores.operands
    beside = name != VALUES and (name == ROWS or name in dict(first))
    return () if beside else carried(atom).order


def carried_proof(atom: Atom) -> Proof:
    """That the second product's operand stays in the registers of its threads."""
    order = carried(atom).order
    claim = "every thread's sums of the first product are its own operand of the second"
    if order:
        claim += f", whose k is columns {', '.join(map(str, order))}"
    return Proof(claim, atom.name)
