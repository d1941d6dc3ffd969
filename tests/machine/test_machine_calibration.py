"""The machine against a GPU: the tests of matrix and bulk-copy instructions, run on both.

Every launch those tests make runs on the machine and, when it has no finding, on the GPU with the
same PTX and data; all arrays must agree in every bit, but for sums of random floats: those stay
within what their type and length allow. With POLYGEN_RECORD=FOLDER what the GPU
returned is written down, and `test_recorded_gpu_agrees` compares the machine with the files in
``calibration/`` where there is no GPU.
"""

from __future__ import annotations

import inspect
import itertools
import os
from pathlib import Path

import numpy as np
import pytest
import test_machine_filters as filters
import test_machine_foreign as foreign
import test_machine_gemm_cp_async as cp_async
import test_machine_gemm_hopper as hopper
import test_machine_images as images
import test_machine_instructions as instructions
import test_machine_isa as isa
import test_machine_map_changes as map_changes
import test_machine_memory as memory
import test_machine_mma as mma
import test_machine_store_async as store_async
import test_machine_tma as tma
import test_machine_tma_axes as tma_axes
import test_machine_warp_operations as warp_operations
import test_machine_wgmma as wgmma
import test_machine_wide as wide
import test_machine_wmma as wmma
from gpu_twin import Note, Recording, digest, given, replayed, twin
from wgmma_text import wgmma_function

from polygen.machine import Launch, run

MMA = (
    "exact", "tf32_ignores_low_bits", "quad_pairs", "ldmatrix_and_stmatrix", "random_floats",
    "tf32_operands", "rounding_to_tf32", "narrow_integers", "quad_pairs_of_floats", "doubles",
)  # fmt: skip
WGMMA = (
    "widths", "types_and_swizzles", "majors", "a_from_registers", "signs_and_scale",
    "random_floats", "tf32_operands", "starts_within_a_pattern",
)  # fmt: skip
TMA_IN = (
    "load_every_rank", "load_swizzles", "load_bounds", "fill_with_nan", "linear_copies",
    "parity_of_the_phases", "cluster_multicast", "tf32_loads_round", "other_loads_keep_all_bits",
)  # fmt: skip
FOLDER = Path(__file__).parent / "calibration"
TMA_OUT = (
    "store_clips", "reduction", "cp_async_arrives_on_an_mbarrier", "tf32_stores_keep_all_bits",
)  # fmt: skip
CHOSEN = [
    (mma, MMA),
    (wgmma, WGMMA),
    (tma, TMA_IN + TMA_OUT),
    (cp_async, ("exact_and_silent", "random_floats")),
    (hopper, ("exact_and_silent", "wait_that_only_peeks", "random_floats")),
    (
        tma_axes,
        (
            "stores_of_every_rank_clip_every_axis", "a_swizzle_counts_the_rows_of_all_axes",
            "windows_read_what_numpy_slices", "windows_write_what_numpy_slices",
            "a_window_shares_the_memory_of_its_array", "multicasts_of_every_rank",
            "the_wrappers_copy_boxes",
        ),
    ),
    (wmma, ("exact",)),
    (
        foreign,
        (
            "atomics_of_every_width", "linear_bulk_reductions", "what_a_store_clips_is_not_read",
            "columns_that_a_store_clips_need_no_values",
        ),
    ),
    (wide, ("pairs_of_words",)),
    (
        images,
        (
            "filters_and_addressing", "texels_of_every_type", "integers_as_floats",
            "whole_coordinates_and_what_lies_outside", "cubes", "gathers",
            "channels_that_are_missing", "surfaces_are_read_and_written",
            "surfaces_of_pairs_layers_and_bytes",
        ),
    ),
    (mma, ("movmatrix_transposes_what_the_lanes_of_a_warp_hold",)),
    (isa, ("an_instruction_gives_what_the_manual_says",)),
    (
        warp_operations,
        (
            "shuffles", "votes", "matches", "reductions", "one_lane_is_elected", "who_is_active",
            "barriers_that_reduce", "atomics_of_one_lane_each", "atomics_of_floats",
            "compare_and_swap", "which_space_an_address_is_of",
        ),
    ),
    (
        memory,
        (
            "copies_of_every_width", "local_arrays_and_generic_addresses", "cp_async_partial_fill",
            "scalars_and_structs", "barrier_reduction", "shuffle_of_half_a_warp",
        ),
    ),
    (
        instructions,
        (
            "integer", "fields_and_shifts", "fma_rounds_once_on_ties", "directed_rounding",
            "comparison_with_nan", "zeros_have_an_order", "subnormals_stay_unless_flushed",
            "packed_conversions", "eight_bit_conversions", "packed_arithmetic", "shuffle",
            "votes_and_reductions", "packed_comparisons",
        ),
    ),
    (store_async, ("blocks_exchange_what_they_hold", "one_word_and_two")),
    (
        filters,
        (
            "weights_of_two_axes", "weights_of_every_corner_of_two_axes",
            "weights_of_every_corner_of_three_axes", "coordinates", "coordinates_far_away",
            "sums_of_any_values", "two_values_of_different_size", "values_that_are_not_finite",
            "channels_within_and_outside", "gathers_of_every_component",
            "gathers_of_components_that_are_missing", "layers_of_lines_and_of_planes",
            "directions_of_cubes", "surfaces_outside", "stores_outside_surfaces",
        ),
    ),
    (images, ("layers", "sizes_are_asked")),
    (map_changes, ("maps_that_change_load_what_they_say",)),
    (warp_operations, ("parts_of_a_warp_with_masks_of_their_own",)),
    (instructions, ("arithmetic_gives_one_nan",)),
    (mma, ("matrix_instructions_give_one_nan", "quad_pairs_give_one_nan")),
    (wgmma, ("products_of_warpgroups_give_one_nan",)),
    (wmma, ("fragments_of_products_give_one_nan",)),
]  # fmt: skip

# What no GPU has been asked yet. Once it is recorded, it belongs to those above.
NEXT: list[tuple[object, tuple[str, ...]]] = []


def cases(chosen):
    """(module, test function, arguments) for every parameter set of the chosen tests."""
    for module, names in chosen:
        short = module.__name__.removeprefix("test_machine_")
        for name in names:
            function = getattr(module, f"test_{name}")
            marks = getattr(function, "pytestmark", [])
            axes = []
            for mark in (mark for mark in marks if mark.name == "parametrize"):
                keys = [key.strip() for key in mark.args[0].split(",")]
                rows = [row if len(keys) > 1 else (row,) for row in mark.args[1]]
                axes.append([dict(zip(keys, row, strict=True)) for row in rows])
            for number, combination in enumerate(itertools.product(*axes)):
                arguments = {key: value for part in combination for key, value in part.items()}
                yield pytest.param(module, function, arguments, id=f"{short}-{name}-{number}")


def arguments_of(module, function, arguments, compile_ptx, read_kernel):
    """The arguments of a test function: those of its case and those of its fixtures."""
    wanted = inspect.signature(function).parameters
    if "compile_ptx" in wanted:
        arguments = {**arguments, "compile_ptx": compile_ptx}
    if "source" in wanted:
        name = "gemm_cp_async.cu" if module is cp_async else "gemm_tma_wgmma.cu"
        front = (
            "" if module is cp_async else wgmma_function("multiply_128", 128, 16, "f32.bf16.bf16")
        )
        arguments["source"] = front + read_kernel(name)
    return arguments


def compared(monkeypatch, module, both):
    """Let a module's tests run what compares in the place of the machine alone."""
    monkeypatch.setattr(module, "run", both)
    if hasattr(module, "run_within"):
        monkeypatch.setattr(module, "run_within", both)


def file_of(module, function):
    """Where the cases of a test function are recorded."""
    return f"{module.__name__}.{function.__name__}".replace("test_machine_", "").replace(
        "test_", ""
    )


def case_of(request):
    """The part of a test's name that tells its case."""
    return request.node.callspec.id


@pytest.fixture(scope="session")
def recording():
    """Collects what the GPU returns; with POLYGEN_RECORD=FOLDER files are written at the end."""
    made = Recording()
    yield made
    folder = os.environ.get("POLYGEN_RECORD")
    if folder and made.files:
        cupy = pytest.importorskip("cupy")
        made.write(Path(folder), cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())


@pytest.mark.gpu
@pytest.mark.parametrize("module, function, arguments", list(cases(CHOSEN + NEXT)))
def test_gpu_agrees(
    module, function, arguments, monkeypatch, compile_ptx, read_kernel, request, recording
):
    cupy = pytest.importorskip("cupy")
    if "sm_90" in inspect.getsource(module) and cupy.cuda.Device().compute_capability != "90":
        pytest.skip("these kernels are built for sm_90")
    notes, wrong = [], []
    compared(monkeypatch, module, twin(cupy, notes, wrong))
    try:
        function(**arguments_of(module, function, arguments, compile_ptx, read_kernel))
    finally:  # what the GPU returned is worth keeping most of all when it is not what we think
        recording.add(file_of(module, function), case_of(request), notes)
    assert not wrong, "\n".join(wrong)


@pytest.mark.skipif(not any(FOLDER.glob("*.npz")), reason="no recordings")
@pytest.mark.parametrize("module, function, arguments", list(cases(CHOSEN)))
def test_recorded_gpu_agrees(
    module, function, arguments, monkeypatch, compile_ptx, read_kernel, request
):
    path = FOLDER / f"{file_of(module, function)}.npz"
    assert path.exists(), f"{path.name} is missing: record again"
    compare, left = replayed(path, case_of(request))
    compared(monkeypatch, module, compare)
    function(**arguments_of(module, function, arguments, compile_ptx, read_kernel))
    assert not left, "the recording has more launches: record again"


def test_files_that_are_recorded_are_compared():
    recorded = {path.stem for path in FOLDER.glob("*.npz")}
    known = {file_of(*case.values[:2]) for case in cases(CHOSEN)}
    assert recorded == known, "what is recorded belongs to the tests that are chosen"
    assert all(case.values[1] is not None for case in cases(NEXT)), "they exist"


def test_what_the_cases_cover():
    names = [case.id for case in cases(CHOSEN)]
    assert len(names) == len(set(names))
    kinds = {row[0] for row in mma.CASES}
    assert {"m16n8k8", "m16n8k16", "m16n8k32"} <= {kind.split(".")[0] for kind in kinds}
    for kind in ("f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8"):
        assert any(f".{kind}.{kind}." in name for name in kinds)
    for test in (*MMA, *WGMMA, *TMA_IN, *TMA_OUT):
        assert any(test in name for name in names), test


def test_recordings_come_back(tmp_path, compile_ptx):
    """The round trip, with the machine in the place of the GPU; a changed bit or input is seen."""
    body = "{ y[threadIdx.x] = 2 * x[threadIdx.x]; }"
    ptx = compile_ptx(f'extern "C" __global__ void k(const float* x, float* y) {body}')
    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    launch = Launch((1, 1, 1), (32, 1, 1), 0, (x, y))
    real = run(ptx, launch).arrays

    def write(arrays):
        made = Recording()
        made.add("file", "case", [Note(digest(launch), arrays, given(launch))])
        made.write(tmp_path, "none")
        return replayed(tmp_path / "file.npz", "case")

    compare, left = write(real)
    assert len(left) == 1
    assert compare(ptx, launch).ok and not left
    with pytest.raises(AssertionError, match="record again"):
        compare(ptx, launch)
    compare, _ = write((real[0], np.where(np.arange(32) == 5, -real[1], real[1])))
    with pytest.raises(AssertionError, match="differs from what the GPU returned"):
        compare(ptx, launch)
    changed = real[1] + np.where(np.arange(32) == 5, np.float32(0.5), 0)
    compare, _ = write((real[0], changed))
    assert compare(ptx, launch, (None, 0.25)).ok
    compare, _ = write((real[0], changed))
    with pytest.raises(AssertionError, match=r"1 of 32 .* element 5: 10.0 .* 10.5"):
        compare(ptx, launch, (None, 0.2))
    compare, _ = write(real)
    with pytest.raises(AssertionError, match="has changed"):
        compare(ptx, Launch((1, 1, 1), (32, 1, 1), 0, (x + 1, y)))
