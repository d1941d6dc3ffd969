"""Fragments computed of other elements, or otherwise, than the program says are refused."""

from __future__ import annotations

import dataclasses

import pytest
from fragment_samples import computed as plan
from fragment_samples import loaded, paired

from polygen.errors import VerifyError
from polygen.hardware.atom import atom
from polygen.hardware.fragment_load import atom_load
from polygen.lower.fragments import Make
from polygen.lower.verify import verify
from polygen.lower.work import Product


def changed(one, kind, **values):
    """The plan with other values in the records of one kind."""
    leaves = tuple(
        dataclasses.replace(leaf, work=dataclasses.replace(leaf.work, **values))
        if isinstance(leaf.work, kind)
        else leaf
        for leaf in one.leaves
    )
    return dataclasses.replace(one, leaves=leaves)


def test_the_plan_itself_is_sound():
    assert verify(plan()).entry


MISTAKES = {
    "another lane's row": ({"lane_row": "lane / 8"}, "the instruction takes it as"),
    "another lane's k": ({"lane_k": "lane % 4"}, "the instruction takes it as"),
    "rows of other elements": ({"row_of": "e % 2 * 8"}, "the instruction takes it as"),
    "k of other elements": ({"k_of": "e % 2 * 1 + e / 4 % 2 * 4"}, "the instruction takes it as"),
    "elements that are not adjacent": ({"access": 4}, "are not adjacent"),
    "no swizzle": ({"place": "row * 64 + byte"}, "other bytes than the copy engine writes"),
    "blocks that cut": ({"block": 16, "block_of": "e / 4 % 2 * 8"}, "outside of blocks"),
    "numbers of another type": ({"packed": 1}, "makes bf16"),
    "the ring of the other operand": ({"buffer": "ring_b"}, "other bytes than the copy engine"),
    "another tile": ({"tile": (64, 128)}, "ends at"),
    "k tiles of the other block": ({"k_tile": "k"}, "k tile k of block 1"),
    "rows of the other consumer": ({"part": ""}, "rows of consumer 1"),
    "no rounding": ({"statements": ()}, "other statements"),
    "nothing beside": ({"beside": ()}, "reads ()"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused(name):
    values, words = MISTAKES[name]
    with pytest.raises(VerifyError) as caught:
        verify(changed(plan(), Make, **values))
    assert words in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    "values, words",
    [
        ({"per": (1, 16)}, "in groups of (1, 16)"),
        ({"row_step": "0"}, "is accessed at"),
        ({"k_step": "2"}, "is accessed at"),
        ({"base": ("1",)}, "is accessed at"),
    ],
)
def test_other_addresses_beside_are_refused(values, words):
    made = plan().of(Make)[0]
    first, *others = made.beside
    beside = (dataclasses.replace(first, **values), *others)
    with pytest.raises(VerifyError) as caught:
        verify(changed(plan(), Make, beside=beside))
    assert words in str(caught.value), str(caught.value)


def test_a_product_that_takes_the_ring_is_refused():
    with pytest.raises(VerifyError, match="works on ring_a"):
        verify(changed(plan(), Product, fragment=""))


@pytest.mark.parametrize(
    "number, values, words",
    [
        (0, {"kept": "0"}, "s is read 0 times ahead"),
        (1, {"kept": ""}, "r is read"),
        (1, {"count": 2}, "r is read 2 times ahead"),
        (1, {"kept": "m * 2"}, "words of r are of others"),
        (1, {"kept": "m * 2 + e % 2"}, "words of r are of others"),
        (1, {"first": 7}, "words of r are of others"),
    ],
)
def test_other_words_are_refused(number, values, words):
    beside = list(plan().of(Make)[0].beside)
    beside[number] = dataclasses.replace(beside[number], **values)
    with pytest.raises(VerifyError) as caught:
        verify(changed(plan(), Make, beside=tuple(beside)))
    assert words in str(caught.value), str(caught.value)


def test_loads_of_other_fragments_are_refused():
    made = loaded().of(Make)[0]
    assert made.load is not None and made.load.name == "a_k"
    turned = atom_load(atom("m16n8k16_f32_bf16"), "a", k_contiguous=False)
    with pytest.raises(VerifyError, match="a_m loads other fragments"):
        verify(changed(loaded(), Make, load=turned))
    moved = dataclasses.replace(made.load, row_of_lane="lane % 8")
    verify(loaded())
    with pytest.raises(VerifyError, match=r"other fragments|other addresses"):
        verify(changed(loaded(), Make, load=moved, place="row * 128 + byte"))


def test_runs_that_no_access_reads_are_refused():
    made = loaded().of(Make)[0]
    assert [one.run for one in made.beside] == [2]
    beside = (dataclasses.replace(made.beside[0], run=16),)
    with pytest.raises(VerifyError, match="words of g are of others"):
        verify(changed(loaded(), Make, beside=beside))


CHUNKS = {
    "the pair of another lane": {"pick": "256 + (lane % 4 * 2) * 257 + 257"},
    "the same pair for all lanes": {"pick": "256"},
    "one byte twice": {"pick": "(lane % 4 * 2) * 257"},
    "the first half of a step": {"word": "0"},
    "another word": {"word": "e / 4 % 2 * 1"},
    "the other row": {"number": "1 - e / 2 % 2"},
    "one row": {"rows": 1},
    "rows beside each other": {"row_of": "r % 2 * 1"},
    "half a chunk": {"bytes": 8},
}


@pytest.mark.parametrize("name", CHUNKS)
def test_other_bytes_of_a_chunk_are_refused(name):
    made = paired().of(Make)[0]
    assert made.chunk is not None and made.chunk.bytes == 16
    with pytest.raises(VerifyError, match=r"of a chunk|chunks of row"):
        verify(changed(paired(), Make, chunk=dataclasses.replace(made.chunk, **CHUNKS[name])))


def test_chunks_that_the_swizzle_moves_are_refused():
    verify(paired())
    with pytest.raises(VerifyError, match="chunks of row 0, step 0 are read from other bytes"):
        verify(changed(paired(), Make, place="row * 128 + byte"))


def test_halves_of_bytes_come_from_the_shifted_word():
    made = paired("i4").of(Make)[0]
    assert made.chunk is not None and made.packed == 2
    chunk = dataclasses.replace(made.chunk, pick="lane % 4 * 257")
    with pytest.raises(VerifyError, match="of a chunk"):
        verify(changed(paired("i4"), Make, chunk=chunk))


def test_pairs_of_other_statements_are_refused():
    made = paired().of(Make)[0]
    assert made.pairs is not None and [one.function for one in made.pairs.statements] == ["mul"]
    other = dataclasses.replace(made.pairs, statements=(), result=made.name)
    with pytest.raises(VerifyError, match="computes other pairs"):
        verify(changed(paired(), Make, pairs=other))
    with pytest.raises(VerifyError, match="computes other pairs"):
        verify(changed(plan(), Make, pairs=made.pairs))


def test_k_tiles_that_go_beyond_the_end_are_refused():
    """384 are three tiles of 128, and two blocks have two each."""
    assert not paired().of(Make)[0].ends_whole
    with pytest.raises(VerifyError, match="has whole k tiles of 384"):
        verify(changed(paired(), Make, ends_whole=True))
