"""The second product's operand of a chain: the sums of the first, where they are."""

from __future__ import annotations

import numpy as np

from polygen.errors import VerifyError
from polygen.hardware.atom import Atom
from polygen.poly.legality import Proof


def carried(atom: Atom) -> tuple[tuple[int, int], ...]:
    """Per register of an instruction's left operand, the accumulator's pair that is its content.

    A pair is (group of columns, first element) of those that cover the instruction's k; the second
    element is the next one. For every thread, the position of the pair in the accumulator is that
    of the register's elements in the operand.

    Raises:
        VerifyError: a thread's operand is not among its own sums, or not in pairs.
    """
    groups = atom.k // atom.n
    own = atom.c.table  # lane, element -> row, column
    wide = np.concatenate([own + np.array([0, g * atom.n]) for g in range(groups)], axis=1)
    per = own.shape[1]
    found = []
    for register in range(atom.a.registers):
        each = atom.a.elements_per_register
        wanted = atom.a.table[:, register * each : (register + 1) * each]
        at = [
            next(
                (e for e in range(wide.shape[1]) if np.array_equal(wide[:, e], wanted[:, h])), None
            )
            for h in range(each)
        ]
        if each != 2 or at[0] is None or at[1] != at[0] + 1:
            raise VerifyError(
                f"{atom.name}: register {register} of the left operand is no pair of sums of the "
                "same thread",
                where="chain",
            )
        found.append((at[0] // per, at[0] % per))
    return tuple(found)


def carried_proof(atom: Atom) -> Proof:
    """That the second product's operand stays in the registers of its threads."""
    carried(atom)
    claim = "every thread's sums of the first product are its own operand of the second"
    return Proof(claim, atom.name)
