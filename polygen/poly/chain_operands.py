"""What brings a chain's operands to its products: the copy engine in boxes, or threads in rows."""

from __future__ import annotations

from polygen.errors import UnsupportedProgram
from polygen.hardware.device import Device, common_facts
from polygen.poly.chain_match import VALUES, ChainMatch
from polygen.poly.elements import ROLES
from polygen.poly.operand import Operand


def require_boxes(found: ChainMatch) -> None:
    """Refuse operands that the copy engine cannot bring.

    Raises:
        UnsupportedProgram: with the operand.
    """
    row = common_facts()["tensor_map_row_bytes"]
    for name, operand in found.operands:
        if any(one.places for one in operand.index):
            _require_pages(found, operand, "n" if name != VALUES else "k")
        if not operand.in_boxes or operand.alignment < row:
            raise UnsupportedProgram(
                f"{operand.tensor}: the copy engine cannot move it",
                where=found.chain.values.name,
                why=f"operands of chains come in boxes, of rows that start at multiples of {row} "
                f"bytes; these start at multiples of {operand.alignment}",
                nearest="Pass an array with aligned rows, without steps backwards; without roles "
                "rows may begin anywhere",
            )


def in_rows_alone(found: ChainMatch) -> bool:
    """Whether threads copy all operands: rows that begin anywhere, or what warps alone run."""
    row = common_facts()["tensor_map_row_bytes"]
    operands = [operand for _, operand in found.operands]
    boxes = all(one.in_boxes and one.alignment >= row for one in operands) and not found.by_warps
    paged = any(index.places for one in operands for index in one.index)
    return not boxes and not paged and all(one.in_rows for one in operands)


def require_copies(found: ChainMatch) -> None:
    """Refuse operands that neither the copy engine nor threads bring.

    Raises:
        UnsupportedProgram: with the operand.
    """
    if not in_rows_alone(found):
        require_boxes(found)


def require_rows(found: ChainMatch) -> None:
    """Refuse operands that threads do not copy in rows.

    Raises:
        UnsupportedProgram: with the operand.
    """
    for _, operand in found.operands:
        where, name = found.chain.values.name, operand.tensor.name
        if any(one.places for one in operand.index):
            raise UnsupportedProgram(
                f"{operand}: by index, without roles",
                where=where,
                why="the copy engine finds pages of keys and values; threads copy rows that follow "
                "each other",
                nearest=f'Use arch="sm_90a", or pass {name} with its rows in order',
            )
        if not operand.in_rows:
            raise UnsupportedProgram(
                f"{operand}: neighbours are not adjacent",
                where=where,
                why="threads copy adjacent elements of a row",
                nearest=f"Pass {name} with adjacent elements along its last axis",
            )


def in_background(found: ChainMatch, device: Device) -> bool:
    """Whether all operands can be copied in the background: rows of 4-byte alignment."""
    least = device.asynchronous_copy_smallest
    return all(operand.alignment >= least for _, operand in found.operands)


def _require_pages(found: ChainMatch, operand: Operand, keys: str) -> None:
    """Refuse what is read by index but for pages of keys, each key with a row of its own."""
    where, name = found.chain.values.name, operand.tensor.name
    places = [place for one in operand.index for place in one.places]
    inside = {term.dim for place in places for term in place.terms if term.dim in ROLES}
    if operand.role == "m" or not inside <= {keys}:
        what = "rows of the first product" if operand.role == "m" else "columns, or what is summed,"
        raise UnsupportedProgram(
            f"{operand}: {what} by index",
            where=where,
            why="a table names pages of keys and of values",
            nearest=f"Pass {name} with its rows in the order of the result's",
        )
    if operand.inner.dim == keys:
        raise UnsupportedProgram(
            f"{operand}: keys of a page are neighbours in memory",
            where=where,
            why="boxes of pages are rows, one for each key",
            nearest=f"Pass {name} with its keys outside of its head dim, as in [N,P,D]",
        )
