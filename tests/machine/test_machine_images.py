# ruff: noqa: E501 - CUDA text
"""Textures and surfaces against the programming guide's formulas, texel by texel."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from machine.conftest import to_ptx

import polygen as pg
from polygen.errors import LaunchError, PtxError
from polygen.machine import Launch, Struct, Surface, Texture, run

R = np.random.default_rng(5)
AWKWARD = [-3.0, -1.0, -0.75, -0.5, -0.25, -0.001, 0.0, 0.125, 0.25, 0.4990234375, 0.5, 0.501953125, 0.75, 0.99609375, 1.0,
           1.25, 1.5, 2.0, 2.25, 2.501953125, 2.75, 3.0, 3.5, 4.0, 4.25, 4.75, 5.0, 5.5, 6.0, 7.0, 9.0, 100.0]  # fmt: skip


def kernel(call: str, result: str = "float", more: str = "") -> str:
    return f"""extern "C" __global__ void k(cudaTextureObject_t o, const float* x, const float* y, const float* z, {result}* out) {{
  const int i = threadIdx.x; const float a = x[i], b = y[i], c = z[i]; {more}
  out[i] = {call};
}}"""


def fetched(texture, call, result="float", coordinates=None, dtype=np.float32, arch="sm_80"):
    x, y, z = coordinates or (
        np.array(AWKWARD, np.float32),
        np.array(AWKWARD[::-1], np.float32),
        np.array(AWKWARD[7:] + AWKWARD[:7], np.float32),
    )
    width = {
        "float": (),
        "int": (),
        "float4": (4,),
        "int4": (4,),
        "uint2": (2,),
        "float2": (2,),
        "unsigned char": (),
    }[result]
    out = np.zeros((len(x), *width), dtype)
    report = run(
        to_ptx(kernel(call, result), arch),
        Launch((1, 1, 1), (len(x), 1, 1), 0, (texture, x, y, z, out)),
    )
    assert report.ok, str(report)
    return report.arrays[-1], (x, y, z)


# --- the guide's formulas, one number at a time, with the roundings that an H200 has ---------------
def outside(index: int, extent: int, mode: str) -> int | None:
    """The texel that stands for an index; None: the border."""
    if 0 <= index < extent:
        return index
    if mode == "border":
        return None
    if mode == "wrap":
        return index % extent
    if mode == "mirror":
        index %= 2 * extent
        return min(index, 2 * extent - 1 - index)
    return min(max(index, 0), extent - 1)


def half_up(value: Fraction) -> int:
    return math.floor(value + Fraction(1, 2))


def half_down(value: Fraction) -> int:
    return math.ceil(value - Fraction(1, 2))


def weights(parts: list[int]) -> dict[tuple[int, ...], int]:
    """256ths of every corner: a part of z, of that one of x, of that one of y."""
    x, y, z = (*parts, 0, 0)[:3]
    found = {}
    for k, slice_ in enumerate((256 - z, z)):
        far = half_up(Fraction(slice_ * x, 256))
        for i, line in enumerate((slice_ - far, far)):
            up = (half_up if i else half_down)(Fraction(line * y, 256))
            found[i, 0, k], found[i, 1, k] = line - up, up
    return {key[: len(parts)]: w for key, w in found.items() if w}


def scaled(x: float, extent: int) -> Fraction:
    """A coordinate in texels: a part of the extent is cut off to 21 bits behind the point."""
    exact = Fraction(0 if abs(x) < 2.0**-126 else x)
    return Fraction(math.floor(exact * 2**21), 2**21) * extent if extent else exact


def sampled(array, at, mode="clamp", filter="point", normalised=False, layer=False):
    """A texel of an array (innermost axis last) at coordinates (innermost first)."""
    extents = array.shape[::-1]
    at = [scaled(float(x), n if normalised else 0) for x, n in zip(at, extents, strict=True)]

    def texel(indices):
        kept = [outside(i, n, mode) for i, n in zip(indices, extents, strict=True)]
        return 0 if None in kept else int(array[tuple(kept[::-1])])

    if filter == "point":
        return float(texel([math.floor(x) for x in at]))
    steps = [half_up(256 * (x - Fraction(1, 2))) for x in at]
    if mode == "clamp":
        steps = [min(max(step, 0), 256 * (n - 1)) for step, n in zip(steps, extents, strict=True)]
    if (
        mode == "border" and len(at) == 1 and not layer
    ):  # the only row of a plane, at its upper edge
        return sampled(array[None], [float(at[0]), 0.0], mode, filter)
    total = sum(
        weight * texel([(step >> 8) + side for step, side in zip(steps, corner, strict=True)])
        for corner, weight in weights([step & 255 for step in steps]).items()
    )
    return total / 256


IMAGES = {
    1: R.integers(-8, 9, 5).astype(np.float32),
    2: R.integers(-8, 9, (4, 5)).astype(np.float32),
    3: R.integers(-8, 9, (3, 4, 5)).astype(np.float32),
}
CALLS = {1: "tex1D<float>(o, a)", 2: "tex2D<float>(o, a, b)", 3: "tex3D<float>(o, a, b, c)"}
SAMPLINGS = [
    (filter, mode, normalised)
    for filter in ("point", "linear")
    for mode, normalised in [("clamp", False), ("border", False), ("clamp", True), ("border", True), ("wrap", True), ("mirror", True)]
]  # fmt: skip


@pytest.mark.parametrize("axes", IMAGES)
@pytest.mark.parametrize("filter, mode, normalised", SAMPLINGS)
def test_filters_and_addressing(axes, filter, mode, normalised):
    image = IMAGES[axes]
    texture = Texture(image, filter=filter, addressing=mode, normalised=normalised)
    found, at = fetched(texture, CALLS[axes])
    wanted = [sampled(image, one, mode, filter, normalised) for one in zip(*at[:axes], strict=True)]
    np.testing.assert_array_equal(found, np.array(wanted, np.float32))


TYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float16")


def of_type(dtype, channels):
    kind = np.dtype(dtype)
    low, high = (0, 9) if kind.kind == "f" else (np.iinfo(kind).min, np.iinfo(kind).max)
    image = R.integers(low, high, (4, 5, channels)).astype(kind)
    return image.reshape((4, 5) if channels == 1 else (4, 5, channels))


TEXELS = {(channels, dtype): of_type(dtype, channels) for channels in (1, 2, 4) for dtype in TYPES}
PLAIN = R.integers(0, 99, (4, 8)).astype(np.int32)
LAYERS_OF_PAIRS = R.integers(0, 99, (2, 4, 8, 2)).astype(np.int32)
BYTES = R.integers(0, 99, (3, 4, 8)).astype(np.uint8)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("channels", [1, 2, 4])
def test_texels_of_every_type(dtype, channels):
    kind, image = np.dtype(dtype), TEXELS[channels, dtype]
    name = {"f": "float", "i": "int", "u": "int"}[kind.kind]
    letter = {
        "uint8": "uchar",
        "int8": "char",
        "uint16": "ushort",
        "int16": "short",
        "uint32": "uint",
        "int32": "int",
    }.get(dtype, "float")
    plain = {"uchar": "unsigned char", "ushort": "unsigned short", "uint": "unsigned"}.get(
        letter, letter
    )
    texel = f"{letter}{channels}" if channels > 1 else plain
    for channel in range(channels):
        part = ".xyzw"[0] + "xyzw"[channel] if channels > 1 else ""
        found, (x, y, _) = fetched(
            Texture(image, channels),
            f"tex2D<{texel}>(o, a, b){part}",
            name,
            dtype=np.float32 if name == "float" else np.int32,
        )
        rows, columns = (
            np.clip(np.floor(one), 0, n - 1).astype(int) for one, n in ((y, 4), (x, 5))
        )
        wanted = image.reshape(4, 5, channels)[rows, columns, channel]
        np.testing.assert_array_equal(
            found, wanted.astype(np.int64).astype(found.dtype) if name == "int" else wanted
        )


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
def test_integers_as_floats(dtype):
    info = np.iinfo(dtype)
    image = np.array(
        [info.min, info.min + 1, -1 if info.min else 1, 0, 1, info.max - 1, info.max], dtype
    )
    at = np.arange(8, dtype=np.float32)
    found, _ = fetched(
        Texture(image, as_floats=True), "tex1D<float>(o, a)", coordinates=(at, at, at)
    )
    wanted = np.maximum(image.astype(np.float64) / info.max, -1).astype(np.float32)
    np.testing.assert_array_equal(found, wanted[[0, 1, 2, 3, 4, 5, 6, 6]])


def test_whole_coordinates_and_what_lies_outside():
    at = np.arange(-4, 12, dtype=np.float32)
    found, _ = fetched(Texture(IMAGES[1]), "tex1Dfetch<float>(o, (int)a)", coordinates=(at, at, at))
    np.testing.assert_array_equal(found, np.r_[np.zeros(4), IMAGES[1], np.zeros(7)])


def test_layers():
    layers = IMAGES[3]
    found, (x, y, z) = fetched(
        Texture(layers, layered=True), "tex2DLayered<float>(o, a, b, (int)fabsf(c))"
    )
    wanted = [sampled(layers[min(int(abs(n)), 2)], at) for *at, n in zip(x, y, z, strict=True)]
    np.testing.assert_array_equal(found, wanted)
    rows = IMAGES[2]
    found, _ = fetched(Texture(rows, layered=True, filter="linear"), "tex1DLayered<float>(o, a, 2)")
    np.testing.assert_array_equal(
        found, [np.float32(sampled(rows[2], [at], filter="linear")) for at in x]
    )


def test_cubes():
    cube = np.arange(54, dtype=np.float32).reshape(6, 3, 3)
    # (direction, face, column, row): the face's middle, and steps along its axes
    cases = [
        ((1, 0, 0), 0, 1, 1), ((-1, 0, 0), 1, 1, 1), ((0, 1, 0), 2, 1, 1), ((0, -1, 0), 3, 1, 1), ((0, 0, 1), 4, 1, 1),
        ((0, 0, -1), 5, 1, 1), ((1, 0.75, 0), 0, 1, 0), ((1, 0, 0.75), 0, 0, 1), ((-1, 0, 0.75), 1, 2, 1),
        ((0.75, 1, 0), 2, 2, 1), ((0, 1, 0.75), 2, 1, 2), ((0, -1, 0.75), 3, 1, 0), ((0.75, 0, 1), 4, 2, 1),
        ((0, 0.75, 1), 4, 1, 0), ((0.75, 0, -1), 5, 0, 1), ((0, -1.5, -2), 5, 1, 2),
    ]  # fmt: skip
    at = tuple(np.array([one[0][axis] for one in cases], np.float32) for axis in range(3))
    found, _ = fetched(Texture(cube, cube=True), "texCubemap<float>(o, a, b, c)", coordinates=at)
    np.testing.assert_array_equal(
        found, [cube[face, row, column] for _, face, column, row in cases]
    )


def test_gathers():
    image = IMAGES[2]
    found, (x, y, _) = fetched(Texture(image), "tex2Dgather<float4>(o, a, b, 0)", "float4")
    for row, *at in zip(found, x, y, strict=True):
        i, j = (half_up(256 * (Fraction(float(one)) - Fraction(1, 2))) >> 8 for one in at)
        corners = [(i, j + 1), (i + 1, j + 1), (i + 1, j), (i, j)]
        assert row.tolist() == [
            image[outside(b, 4, "clamp"), outside(a, 5, "clamp")] for a, b in corners
        ]


def test_levels_and_offsets_of_the_first():
    found, at = fetched(Texture(IMAGES[2]), "tex2DLod<float>(o, a, b, 0.f)")
    np.testing.assert_array_equal(
        found, [sampled(IMAGES[2], one) for one in zip(*at[:2], strict=True)]
    )


def test_channels_that_are_missing():
    found, _ = fetched(Texture(IMAGES[1]), "tex1D<float4>(o, a)", "float4")
    assert (found[:, 1:] == 0).all()


SURFACES = """
extern "C" __global__ void k(cudaSurfaceObject_t s, cudaSurfaceObject_t to, int* out) {
  const int i = threadIdx.x, x = i % 8, y = i / 8;
  int2 v; BODY
}"""


def on_surface(body, image, to=None, threads=32, arch="sm_80", **options):
    to = np.zeros_like(image) if to is None else to
    out = np.zeros(threads, np.int32)
    given = Surface(image, **options), Surface(to, **options), out
    return run(
        to_ptx(SURFACES.replace("BODY", body), arch), Launch((1, 1, 1), (threads, 1, 1), 0, given)
    )


def test_surfaces_are_read_and_written():
    image = PLAIN
    report = on_surface("surf2Dwrite(2 * surf2Dread<int>(s, 4 * x, y), to, 4 * (7 - x), y);", image)
    assert report.ok
    np.testing.assert_array_equal(report.arrays[1], 2 * image[:, ::-1])


def test_surfaces_of_pairs_layers_and_bytes():
    image = LAYERS_OF_PAIRS
    body = "surf2DLayeredread(&v, s, 8 * x, y, 1); surf2DLayeredwrite(make_int2(v.y, v.x), to, 8 * x, y, 0);"
    report = on_surface(body, image, channels=2, layered=True)
    assert report.ok
    np.testing.assert_array_equal(report.arrays[1][0], image[1, :, :, ::-1])
    small = BYTES
    report = on_surface(
        "surf3Dwrite((unsigned char)(surf3Dread<unsigned char>(s, x, y, 2) + 1), to, x, y, 0);",
        small,
    )
    assert report.ok
    np.testing.assert_array_equal(report.arrays[1][0], small[2] + 1)


def test_what_a_surface_does_not_have():
    line = np.arange(24, dtype=np.int32)
    body = "out[i] = surf1Dread<int>(s, 4 * (i - 4), MODE); surf1Dwrite(i, to, 4 * (i - 4), cudaBoundaryModeZero);"
    report = on_surface(body.replace("MODE", "cudaBoundaryModeZero"), line)
    assert report.ok
    np.testing.assert_array_equal(report.arrays[2], np.r_[np.zeros(4), line, np.zeros(4)])
    np.testing.assert_array_equal(report.arrays[1], np.arange(4, 28))
    report = on_surface(body.replace("MODE", "cudaBoundaryModeClamp"), line)
    np.testing.assert_array_equal(report.arrays[2], np.r_[[0] * 4, line, [23] * 4])
    report = on_surface(body.replace("MODE", "cudaBoundaryModeTrap"), line)
    (finding,) = report.findings
    assert (
        finding.code == "out-of-bounds-global"
        and finding.count == 8
        and "which it does not have" in finding.sentence
    )


def test_a_race_on_a_surface_is_found():
    line = np.arange(64, dtype=np.int32)
    body = "surf1Dwrite(i + 1, s, 4 * i); MID out[i] = surf1Dread<int>(s, 4 * (63 - i));"
    for barrier, codes in (("__syncthreads();", set()), ("", {"race-write-read"})):
        report = on_surface(body.replace("MID", barrier), line, threads=64)
        assert {one.code for one in report.findings} - {"race-read-write"} == codes


def test_sizes_are_asked():
    text = """extern "C" __global__ void k(cudaTextureObject_t o, int* out) {
      asm("txq.width.b32 %0, [%1];" : "=r"(out[0]) : "l"(o)); asm("txq.height.b32 %0, [%1];" : "=r"(out[1]) : "l"(o)); }"""
    report = run(
        to_ptx(text), Launch((1, 1, 1), (1, 1, 1), 0, (Texture(IMAGES[2]), np.zeros(2, np.int32)))
    )
    assert report.ok and report.arrays[1].tolist() == [5, 4]


TWO = """struct Two { cudaTextureObject_t t[2]; };
extern "C" __global__ void k(Two two, float* out) { const int i = threadIdx.x; out[i] = tex1D<float>(two.t[i & 1], i / 2); }"""


def test_handles_in_a_struct_one_per_lane():
    a, b = (np.arange(16, dtype=np.float32) + first for first in (0, 100))
    given = Struct(bytes(16), {0: Texture(a), 8: Texture(b)})
    launch = Launch((1, 1, 1), (32, 1, 1), 0, (given, np.zeros(32, np.float32)))
    report = run(to_ptx(TWO), launch)
    assert report.ok
    np.testing.assert_array_equal(report.arrays[2], np.stack([a, b], 1).ravel())
    assert pg.judge(TWO, launch, np.stack([a, b], 1).ravel(), arch="sm_80").ok


def test_the_judge_takes_images():
    launch = Launch(
        (1, 1, 1),
        (32, 1, 1),
        0,
        (
            Texture(IMAGES[2], filter="linear"),
            *[np.array(AWKWARD, np.float32)] * 3,
            np.zeros(32, np.float32),
        ),
    )
    wanted = np.array([sampled(IMAGES[2], (x, x), filter="linear") for x in AWKWARD], np.float32)
    assert pg.judge(kernel(CALLS[2]), launch, wanted, arch="sm_80").ok
    assert pg.judge(kernel(CALLS[2]), launch, wanted + 1, arch="sm_80").outcome == "wrong"


WRONG = [
    (Texture(IMAGES[1]), "tex2D<float>(o, a, b)", "as .2d, which has 1 axes"),
    (Texture(IMAGES[3], layered=True), "tex3D<float>(o, a, b, c)", "as .3d"),
    (
        Texture(IMAGES[2].astype(np.int32)),
        "tex2D<float>(o, a, b)",
        "whose texels are integers, as floats",
    ),
    (Texture(IMAGES[2]), "tex2D<int>(o, a, b)", "whose texels are floats, as integers"),
    (Surface(IMAGES[2]), "tex2D<float>(o, a, b)", "a handle of no texture"),
    (77, "tex2D<float>(o, a, b)", "a handle of no texture"),
]


@pytest.mark.parametrize("texture, call, words", WRONG)
def test_a_handle_that_does_not_fit_is_found(texture, call, words):
    at = np.zeros(32, np.float32)
    report = run(
        to_ptx(kernel(call)), Launch((1, 1, 1), (32, 1, 1), 0, (texture, at, at, at, at.copy()))
    )
    (finding,) = report.findings
    assert finding.code == "bad-descriptor" and words in finding.sentence


REFUSED = [
    (Texture(IMAGES[1].astype(np.float64)), "texels of float64"),
    (Texture(IMAGES[2], channels=3), "3 channels of an array"),
    (Texture(IMAGES[2], channels=2), "2 channels of an array of shape"),
    (Texture(IMAGES[2], filter="cubic"), "filter 'cubic'"),
    (Texture(IMAGES[2], addressing="wrap"), "not normalised.*a driver takes `clamp`"),
    (Texture(IMAGES[2].astype(np.int32), filter="linear"), "a linear filter of int32"),
    (Texture(IMAGES[2], as_floats=True), "texels of float32 as floats"),
    (Texture(IMAGES[3], cube=True), "a cube of shape"),
    (Texture(np.zeros((2, 2, 2, 2), np.float32)), "an image of shape"),
    (Surface(np.zeros(4, np.complex64)), "texels of complex64"),
]


@pytest.mark.parametrize("texture, words", REFUSED)
def test_an_image_that_no_driver_takes_is_refused(texture, words):
    at = np.zeros(32, np.float32)
    with pytest.raises(LaunchError, match=words):
        run(
            to_ptx(kernel(CALLS[2])),
            Launch((1, 1, 1), (32, 1, 1), 0, (texture, at, at, at, at.copy())),
        )


@pytest.mark.parametrize(
    "call",
    [
        "tex2DGrad<float>(o, a, b, make_float2(1, 1), make_float2(1, 1))",
        "texCubemapLayered<float>(o, a, b, c, 0)",
    ],
)
def test_what_is_not_modelled_is_refused(call):
    at = np.zeros(32, np.float32)
    with pytest.raises(PtxError, match=r"`tex\.\S+` is refused"):
        run(
            to_ptx(kernel(call)),
            Launch((1, 1, 1), (32, 1, 1), 0, (Texture(IMAGES[2]), at, at, at, at.copy())),
        )
