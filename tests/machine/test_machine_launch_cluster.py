# ruff: noqa: E501 - CUDA and PTX text
"""Clusters that a launch asks for, and tensor maps inside of structs, as templated libraries have both."""

from __future__ import annotations

import numpy as np
import pytest
from machine.conftest import to_ptx

import polygen as pg
from polygen.cli.check_launch import launched, read_launch
from polygen.errors import LaunchError, LaunchFileError
from polygen.machine import Launch, Struct, TensorMap, run

# A block loads its rows and sends them to all blocks of its cluster; the record is one parameter.
SOURCE = """
typedef unsigned int word;
struct __align__(64) Map { unsigned long long words[16]; };
struct Params { int rows; float factor; Map from; float* to; };
template <class P> __device__ void body(const P& params) {
  __shared__ __align__(128) float tile[4][64];
  __shared__ __align__(8) unsigned long long barrier;
  word rank, ranks, at, bar;
  asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
  asm volatile("mov.u32 %0, %cluster_nctarank;" : "=r"(ranks));
  at = (word)__cvta_generic_to_shared(tile), bar = (word)__cvta_generic_to_shared(&barrier);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(256 * ranks) : "memory");
  }
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
  if (threadIdx.x == 0)
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
      :: "r"(at + 256 * rank), "l"(&params.from), "r"(0), "r"(blockIdx.x), "r"(bar), "h"((unsigned short)((1 << ranks) - 1)) : "memory");
  asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra L; }" :: "r"(bar) : "memory");
  float sum = 0;
  for (int i = 0; i < ranks; ++i) sum += tile[i][threadIdx.x];
  if (blockIdx.x < params.rows) params.to[64 * blockIdx.x + threadIdx.x] = params.factor * sum;
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}
extern "C" __global__ void CLUSTER k(const __grid_constant__ Params params) { body(params); }
"""
HEAD = (8).to_bytes(4, "little") + np.float32(2).tobytes()


def ptx(cluster: str = "") -> str:
    return to_ptx(SOURCE.replace("CLUSTER", cluster), "sm_90a")


def arrays() -> tuple[np.ndarray, np.ndarray]:
    return np.arange(8 * 64, dtype=np.float32).reshape(8, 64), np.full((8, 64), np.nan, np.float32)


def launch(cluster, map_at: int = 64, to_at: int = 192, size: int = 256) -> Launch:
    x, out = arrays()
    params = Struct(HEAD.ljust(size, b"\0"), {map_at: TensorMap(x, (1, 64)), to_at: (out, 0)})
    return Launch((8, 1, 1), (64, 1, 1), 0, (params,), "k", cluster)


@pytest.mark.parametrize("completion", ["late", "early", "random"])
@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_the_launch_says_how_many_blocks_are_a_cluster(blocks, completion):
    report = run(ptx(), launch((blocks, 1, 1)), completion=completion)
    assert report.ok, str(report)
    x, _ = arrays()
    sums = x.reshape(8 // blocks, blocks, 64).sum(1, keepdims=True)
    np.testing.assert_array_equal(report.arrays[1], 2 * np.repeat(sums, blocks, 1).reshape(8, 64))


def test_without_a_word_of_it_a_block_is_alone():
    x, _ = arrays()
    np.testing.assert_array_equal(run(ptx(), launch(None)).arrays[1], 2 * x)


def test_a_compiled_cluster_is_the_only_one():
    text = ptx("__cluster_dims__(2, 1, 1)")
    assert run(text, launch(None)).ok and run(text, launch((2, 1, 1))).ok
    with pytest.raises(LaunchError, match=r"a cluster of \(4, 1, 1\).*reqnctapercluster is \(2, 1"):
        run(text, launch((4, 1, 1)))


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ((3, 1, 1), "grid .8, 1, 1. is not a multiple of the cluster .3, 1, 1."),
        ((0, 1, 1), "not three positive numbers"),
        ((8, 4, 1), "a cluster of 32 blocks.*At most 16"),
    ],
)
def test_clusters_that_no_launch_has(cluster, words):
    with pytest.raises(LaunchError, match=words):
        run(ptx(), launch(cluster))


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ((96, 8), "a tensor map at byte 96 of a struct.*A multiple of 64"),
        ((192, 8), "a tensor map at byte 192 of a struct of 256"),
    ],
)
def test_a_tensor_map_at_no_place_for_one(places, words):
    with pytest.raises(LaunchError, match=words):
        run(ptx(), launch((2, 1, 1), *places))


def test_the_judge_takes_clusters_and_maps_in_structs():
    x, _ = arrays()
    sums = np.repeat(x.reshape(4, 2, 64).sum(1, keepdims=True), 2, 1).reshape(8, 64)
    verdict = pg.judge(ptx(), launch((2, 1, 1)), {1: 2 * sums}, arch="sm_90a")
    assert verdict.ok, verdict
    assert pg.judge(ptx(), launch((4, 1, 1)), {1: 2 * sums}, arch="sm_90a").outcome == "wrong"


def test_launch_files_name_clusters(tmp_path):
    head = "format = 1\ngrid = [8]\nblock = [64]\n"
    found = launched(read_launch(head + "cluster = [2, 2]\n", tmp_path / "a.toml"), ())
    assert found.cluster == (2, 2, 1)
    assert launched(read_launch(head, tmp_path / "a.toml"), ()).cluster is None
    with pytest.raises(LaunchFileError, match=r"cluster: \[0\] is not one to three positive"):
        read_launch(head + "cluster = [0]\n", tmp_path / "a.toml")
