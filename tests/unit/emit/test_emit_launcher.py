"""The host launcher: it takes pointers, sizes and strides, and makes the tensor maps itself."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace

import pytest
import tensor_map_samples as samples
from matrix import case, small
from tensor_map_samples import host_text, plan_with_maps

from polygen.emit.cuda import emit
from polygen.lower.plan import Argument, MapAxis

HOST = (
    'extern "C" int pg_maps_launch(const unsigned short* __restrict__ x, '
    "const unsigned short* __restrict__ w, unsigned short* __restrict__ y0, int M, int K, int N, "
    "int x_stride0, int w_stride0, int y0_stride0, void* stream) {"
)


def flat(text):
    return re.sub(r"\s+", " ", text)


def test_the_caller_gives_pointers_sizes_and_strides_and_no_maps():
    text = host_text(plan_with_maps())
    assert HOST in text
    assert "if ((unsigned long long)x % 16) return 2" in text
    assert "if (M > 1 && x_stride0 % 8) return 2" in text
    assert (
        "(*reinterpret_cast<const TensorMap*>(&x_map), "
        "*reinterpret_cast<const TensorMap*>(&y0_map), M, K);" in text
    )


def test_maps_describe_the_stored_axes():
    call = r"polygen_encode_map\(&(\w+), (.*?)\)\)"
    found = dict(re.findall(call, host_text(plan_with_maps())))
    head, tail = "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2", "8}}, CU_TENSOR_MAP_SWIZZLE_128B"
    assert found == {
        "x_map": f"{head}, x, {{{{K, 1, 64}}, {{M, x_stride0, {tail}",
        "y0_map": f"{head}, y0, {{{{N, 1, 64}}, {{M, y0_stride0, {tail}",
    }
    plan = plan_with_maps()
    columns = replace(plan.program.inputs[0], order=(1, 0))
    program = replace(plan.program, inputs=(columns, *plan.program.inputs[1:]))
    first = replace(plan.arguments[0], axes=samples.stored_axes(columns))
    plan = replace(plan, program=program, arguments=(first, *plan.arguments[1:]))
    found = dict(re.findall(call, host_text(plan)))
    assert " x, {{M, 1, 64}, {K, x_stride1, 8}}," in found["x_map"], "its rows are innermost"


def test_fixed_sizes_are_numbers():
    plan = case("maps", "nn", "bf16", "plain", schedule=small()).kernel().passes.plan
    x = replace(plan.program.inputs[0], dims=("M", 64))
    program = replace(plan.program, inputs=(x, *plan.program.inputs[1:]))
    argument = Argument("x_map", "map", "x", axes=(MapAxis(0, "M", 8), MapAxis(1, 64, 32)))
    arguments = (argument, *plan.arguments)
    text = host_text(replace(plan, program=program, arguments=arguments, leaves=()))
    assert "x, {{64, 1, 32}, {M, x_stride0, 8}}, CU_TENSOR_MAP_SWIZZLE_NONE" in text


def test_persistent_blocks_are_whole_clusters():
    text = flat(host_text(plan_with_maps(persistent=7, cluster=(2, 1))))
    assert "tiles_along = (M + 15) / 16;" in text and "tiles_across = (K + 63) / 64;" in text
    assert (
        "config.gridDim = dim3(2);" in text and "cudaOccupancyMaxActiveClusters(&resident" in text
    )
    bounded = (
        "grid((tile_clusters < (unsigned)resident ? (unsigned)tile_clusters : (unsigned)resident)"
    )
    assert f"{bounded} * 2);" in text
    alone = flat(host_text(plan_with_maps(persistent=7)))
    assert "cudaDevAttrMultiProcessorCount" in alone and f"{bounded} * 1);" in alone


def test_without_maps_the_launcher_is_as_it_was():
    plan = case("plain", "nt", "bf16", "plain", schedule=small()).kernel().passes.plan
    text = host_text(plan)
    for word in ("#include", "TensorMap", "Persistent", "polygen_"):
        assert word not in text
    assert text.strip() in emit(plan).text


def test_the_kernel_declares_its_maps():
    text = emit(plan_with_maps()).text
    assert (
        "pg_maps(const __grid_constant__ TensorMap x_map, "
        "const __grid_constant__ TensorMap y0_map, int M, int K) {" in text
    )


needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


@needs_nvcc
@pytest.mark.parametrize("persistent", [0, 8])
def test_nvcc_compiles_the_launcher_and_links_it_without_the_driver(persistent, tmp_path):
    plan = plan_with_maps(persistent=persistent)
    text = samples.text("bf16", entry=plan.entry) + "\n" + host_text(plan)
    text += "\nint main() { return 0; }\n"
    (tmp_path / "kernel.cu").write_text(text)
    command = ["nvcc", "-arch=sm_90a", "-Werror=all-warnings", "kernel.cu", "-o", "kernel"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert b"pg_maps_launch" in (tmp_path / "kernel").read_bytes()
