"""Attention over caches in pages on a GPU: exact on whole numbers, near float64 on others."""

from __future__ import annotations

import numpy as np
import pytest
from chain_samples import few_rows
from paged_samples import arrays, bf16, decoding, signature, sums_of_whole_numbers

import polygen as pg
from polygen.frontend.evaluate import reference
from polygen.hardware.device import device

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")


def _arch() -> str:
    if cupy.cuda.Device().compute_capability != "90":
        pytest.skip("chains run on warpgroup instructions")
    return device("sm_90a").name


def _on_gpu(array: np.ndarray):
    """The array on the device; bf16 as the words that hold it."""
    torch = pytest.importorskip("torch")
    if array.dtype == bf16:
        return torch.from_numpy(array.view(np.int16)).cuda().view(torch.bfloat16)
    return torch.from_numpy(array).cuda()


def _host(result) -> np.ndarray:
    return result.double().cpu().numpy()


PAGES = [(8, 64, 0), (16, 64, 0), (16, 64, 256), (64, 64, 128), (256, 64, 0), (24, 48, 0)]


@pytest.mark.parametrize(("page", "keys", "part"), PAGES)
@pytest.mark.parametrize("heads_first", [False, True])
def test_every_key_comes_from_its_page(page: int, keys: int, part: int, heads_first: bool) -> None:
    count = 1200 // page
    lengths = [1, page, 777, page * count, 130]
    given = arrays(page, lengths, count, heads=3, rows=5, heads_first=heads_first)
    given[:2] = (np.sign(one.astype(np.float32)).astype(bf16) for one in given[:2])
    given[3][0, 1:] = -1  # behind the length; kept inside of the array, like others
    function = sums_of_whole_numbers(heads_first=heads_first)
    named = signature(page, "J", heads=3, heads_first=heads_first)
    few = few_rows(part, keys=keys)
    kernel = pg.fuse(function).compile(*named, arch=_arch(), schedule=few)
    found = kernel(*map(_on_gpu, given))
    kept = np.clip(given[3], 0, len(given[1]) - 1)
    wanted = reference(function, [*given[:3], kept, given[4]])
    known = np.isfinite(wanted)
    np.testing.assert_array_equal(_host(found)[known], wanted[known])


@pytest.mark.parametrize(("page", "depth"), [(16, 128), (64, 128), (256, 128), (16, 64), (32, 256)])
def test_decoding_is_near_float64(page: int, depth: int) -> None:
    count = 2048 // page
    lengths = [1, 17, 1000, 2047, 2048, 300, 1536, 64]
    given = arrays(page, lengths, count, rows=4, heads=4, depth=depth, whole=False)
    function = decoding(scale=depth**-0.5)
    sizes = {"B": 8, "G": 4, "N": len(given[1]), "J": count}
    named = signature(page, "J", heads=4, depth=depth)
    kernel = pg.fuse(function).compile(*named, arch=_arch(), sizes=sizes)
    found = _host(kernel(*map(_on_gpu, given)))
    wanted = reference(function, given)
    assert np.abs(found - wanted).max() <= 0.02 * max(1.0, np.abs(wanted).max())


def test_calls_take_tables_of_any_width() -> None:
    _arch()
    fused = pg.fuse(decoding())
    for count in (5, 9):
        given = arrays(16, [1, 16 * count], count, whole=False)
        found = fused(*map(_on_gpu, given))
        wanted = reference(decoding(), given)
        assert np.abs(_host(found) - wanted).max() <= 0.02 * max(1.0, np.abs(wanted).max())


def test_many_launches_give_the_same_bits() -> None:
    given = arrays(16, [1000, 2048, 5, 1999], 128, heads=8, depth=128, whole=False)
    named = signature(16, 128, heads=8, depth=128)
    schedule = few_rows(256, columns=128)
    kernel = pg.fuse(decoding(2048)).compile(*named, arch=_arch(), schedule=schedule)
    there = [_on_gpu(one) for one in given]
    first = kernel(*there)
    for _ in range(2000):
        again = kernel(*there)
    assert (first == again).all()


def test_numbers_that_name_no_page_are_refused_on_request() -> None:
    table = cupy.asarray([[0, 3], [9, 1]], dtype=cupy.int32)
    with pytest.raises(pg.PolygenError, match="row 1, 0 is row 9"):
        pg.check_rows(table, 9)
