"""Properties of layouts and schedule files over random inputs."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from polygen import isl
from polygen.hardware.data_file import evaluate
from polygen.hardware.swizzle import (
    Access,
    choose_swizzle,
    count_wavefronts,
    swizzle,
    swizzle_names,
    wavefronts,
)
from polygen.schedule.load import dumps, loads
from polygen.schedule.model import CtaTile, Loops, Pipeline, Raster, Schedule, Tile, WarpTile

SIZES = st.integers(1, 512)


@given(st.sampled_from(swizzle_names()), st.integers(1, 12), st.integers(1, 40))
def test_swizzled_addresses_fill_the_buffer_once(name, blocks, rows):
    layout = swizzle(name)
    row_bytes = 16 * layout.block * blocks
    assert layout.fits(row_bytes)
    row, byte = np.divmod(np.arange(rows * row_bytes), row_bytes)
    addresses = layout.address(row, byte, row_bytes)
    assert np.array_equal(np.sort(addresses), np.arange(rows * row_bytes))
    assert np.array_equal(addresses // row_bytes, row)
    assert np.array_equal(addresses % 16, byte % 16)


@given(
    st.sampled_from([1, 2, 4, 8, 16]).flatmap(
        lambda size: st.tuples(
            st.just(size), st.lists(st.integers(-1, 200), min_size=32, max_size=32)
        )
    )
)
def test_wavefronts_equal_a_count_bank_by_bank(case):
    size, units = case
    addresses = np.array([unit * size if unit >= 0 else -1 for unit in units])
    lanes = min(32, 128 // size)
    expected = 0
    for first in range(0, 32, lanes):
        banks = {bank: set() for bank in range(32)}
        for address in addresses[first : first + lanes]:
            for word in range(address // 4, (address + size - 1) // 4 + 1) if address >= 0 else ():
                banks[word % 32].add(word)
        expected += max(len(words) for words in banks.values())
    assert wavefronts(addresses, size) == expected


@settings(max_examples=30)
@given(st.integers(1, 24), st.lists(st.integers(0, 63), min_size=32, max_size=32), st.data())
def test_the_chosen_swizzle_is_the_best_that_fits(chunks, rows, data):
    columns = data.draw(st.lists(st.integers(0, chunks - 1), min_size=32, max_size=32))
    access = [Access(np.array(rows), 16 * np.array(columns), 16)]
    chosen = choose_swizzle(16 * chunks, access)
    assert chosen.fits(16 * chunks)
    best = count_wavefronts(chosen, 16 * chunks, access)
    for other in map(swizzle, swizzle_names()):
        if other.fits(16 * chunks):
            assert best <= count_wavefronts(other, 16 * chunks, access)


FORMULAS = st.recursive(
    st.sampled_from(["lane", "1", "3", "8"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+*"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(inner, st.sampled_from("/%"), st.sampled_from(["2", "4", "16"])).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
    ),
    max_leaves=6,
)


@given(FORMULAS)
def test_formulas_mean_what_c_means(text):
    lanes = np.arange(32)
    expected = [eval(text.replace("/", "//"), {"lane": int(lane)}) for lane in lanes]
    assert evaluate(text, {"lane": lanes}, "test").tolist() == expected


@given(
    st.text(max_size=20),
    st.tuples(SIZES, SIZES, SIZES),
    st.tuples(SIZES, SIZES),
    st.permutations(["copy", "mma"]),
    st.permutations(["k", "m", "n"]),
    st.lists(st.sampled_from("mnk"), unique=True, min_size=1),
    st.sampled_from("mn"),
    st.integers(0, 9),
)
def test_schedules_survive_their_files(name, cta, warp, order, mma, grid, along, distance):
    schedule = Schedule(
        name=name,
        tile=Tile(CtaTile(*cta), WarpTile(*warp)),
        pipeline=Pipeline(distance=distance, order=tuple(order)),
        loops=Loops(mma=tuple(mma), grid=tuple(grid)),
        raster=Raster(along=along),
    )
    assert loads(dumps(schedule), "text") == schedule


@settings(max_examples=30)
@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 20))
def test_witnesses_are_members_with_the_smallest_size(offset, least, step):
    text = f"[N] -> {{ S[i] -> T[j] : 0<=i<N and j={step}i+{offset} and N>{least} and i>=3 }}"
    relation = isl.UnionMap(text)
    pair = isl.sample_pair(relation)
    assert pair is not None
    assert pair.parameters == (("N", max(least + 1, 4)),)
    assert (pair.source, pair.target) == ("S[3]", f"T[{3 * step + offset}]")
