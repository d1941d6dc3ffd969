"""Which tiles of keys fit pages, which pages any tile fits, and what finding them takes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from polygen.errors import UnsupportedProgram
from polygen.hardware.atom import Atom
from polygen.hardware.data_file import read, take
from polygen.hardware.device import Device
from polygen.hardware.matrix_layout import GROUP_ROWS
from polygen.poly.chain_match import ChainMatch
from polygen.poly.key_pages import KeyPages

_FILE = "chains.toml"


def keys_beside_pages(found: ChainMatch, atom: Atom, wanted: int) -> int:
    """The keys of a tile that pages of a chain fit: the next fewer ones than wanted, else more.

    Args:
        found: the chain.
        atom: its instruction.
        wanted: keys of a tile, as they would be without pages.

    Raises:
        UnsupportedProgram: no tile is whole pages, or a part of one.
    """
    pages = tuple(dict.fromkeys(one.page for one in found.paged.values()))
    counts = _tiles(pages, atom)
    if not counts:
        raise _no_tile(found, pages, atom)
    fewer = [count for count in counts if count <= wanted]
    return wanted if not pages else fewer[-1] if fewer else counts[0]


def registers_beside_pages(
    found: ChainMatch, given: Sequence[int], consumers: int, device: Device
) -> tuple[int, int]:
    """Registers of a thread of the producer and of a consumer, of which it gives some away.

    Args:
        found: the chain.
        given: both, as they are without pages.
        consumers: how many there are.
        device: the target.
    """
    producer, consumer = given
    wanted = take(read(_FILE), "pages", _FILE)["producer_registers"] if found.paged else producer
    step, more = device.role_registers_step, max(0, wanted - producer)
    less = -(-more // (consumers * step)) * step
    return producer + less * consumers, consumer - less


def _tiles(pages: Collection[int], atom: Atom) -> list[int]:
    """The tiles of keys that all pages fit, ascending."""
    every = range(atom.k, atom.n_most + 1, atom.k)
    return [keys for keys in every if all(KeyPages(page, keys).fits for page in pages)]


def _no_tile(found: ChainMatch, pages: tuple[int, ...], atom: Atom) -> UnsupportedProgram:
    alone = next((page for page in pages if not _tiles((page,), atom)), 0)
    near = [p for p in range(alone, 0, -1) if _tiles((p,), atom)][:1]
    near += [p for p in range(alone, 2 * alone + atom.k) if _tiles((p,), atom)][:1]
    return UnsupportedProgram(
        f"pages of {' and of '.join(map(str, pages))} keys",
        where=found.chain.values.name,
        why=f"a tile of keys, a multiple of {atom.k} up to {atom.n_most}, is whole pages of a "
        f"multiple of {GROUP_ROWS} keys, or a part of one",
        nearest=f"Use pages of {' or '.join(map(str, near))} keys"
        if alone
        else "Use pages of as many keys for the values as for the keys",
    )
