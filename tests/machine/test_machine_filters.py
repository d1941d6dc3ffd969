# ruff: noqa: E501 - CUDA text
"""What a GPU does with textures bit by bit: weights, coordinates, what lies outside, what is missing.

None of it is in a manual beyond "8 bits behind the point". The machine follows what an H200 returned
for these launches, which `test_machine_calibration` replays.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from gpu_twin import run_within
from machine.conftest import to_ptx
from test_machine_images import half_up, outside, sampled, scaled, weights

from polygen.machine import Launch, Surface, Texture, run


def on_texture(body, image, *arrays, threads, images=False, allowed=None):
    """One launch of blocks of 256 threads; `i` is the number of a thread, `n` how many there are."""
    names = "".join(f", {kind} p{at}" for at, kind in enumerate(_kind(one) for one in arrays))
    source = f"""extern "C" __global__ void k(cudaTextureObject_t o{names}, int n) {{
  const int i = blockIdx.x * 256 + threadIdx.x; if (i >= n) return;
  {body}
}}"""
    if isinstance(image, Surface):
        source = source.replace("cudaTextureObject_t", "cudaSurfaceObject_t")
    launch = Launch((-(-threads // 256), 1, 1), (256, 1, 1), 0, (image, *arrays, np.int32(threads)))
    if allowed is None:
        report = run(to_ptx(source), launch)
    else:
        report = run_within(to_ptx(source), launch, (*[None] * len(arrays), allowed))
    assert report.ok, str(report)
    return report.arrays if images else report.arrays[1:]


def stored(body, image, *arrays, threads):
    """The image itself after a launch."""
    return on_texture(body, image, *arrays, threads=threads, images=True)[0]


def _kind(array):
    width = f"{array.shape[1]}" if array.ndim == 2 else ""
    name = {"float32": "float", "int32": "int", "int16": "short", "uint32": "unsigned"}
    short = {"float32": "float", "int32": "int", "int16": "short", "uint32": "uint"}
    return f"{(short if width else name)[array.dtype.name]}{width}*"


# --- weights -------------------------------------------------------------------------------------
def test_weights_of_two_axes():
    """The weight of the far corner for all fractions, in 256ths."""
    image = np.array([[0, 0], [0, 1]], np.float32)
    out = np.zeros(65536, np.int16)
    body = "const float w = 256 * tex2D<float>(o, 0.5f + (i & 255) / 256.f, 0.5f + (i >> 8) / 256.f); p0[i] = w == floorf(w) ? (short)w : -1;"
    (found,) = on_texture(body, Texture(image, filter="linear"), out, threads=65536)
    a, b = np.meshgrid(np.arange(256), np.arange(256))
    np.testing.assert_array_equal(found.reshape(256, 256), (a * b + 128) >> 8)


ODD = [0, 1, 2, 3, 5, 63, 64, 65, 85, 127, 128, 129, 170, 191, 192, 193, 200, 253, 254, 255]


def fractions(axes, count):
    """Triples or pairs of fractions in 256ths: random ones behind awkward ones."""
    random = np.random.default_rng(axes)
    odd = random.choice(ODD, (count // 2, axes))
    return np.r_[odd, random.integers(0, 256, (count - count // 2, axes))]


@pytest.mark.parametrize("corner", range(4))
def test_weights_of_every_corner_of_two_axes(corner):
    image = np.zeros(4, np.float32)
    image[corner] = 1
    at = fractions(2, 1024)
    x, y = ((0.5 + column / 256).astype(np.float32) for column in at.T)
    (*_, found) = on_texture(
        "p2[i] = 256 * tex2D<float>(o, p0[i], p1[i]);",
        Texture(image.reshape(2, 2), filter="linear"), x, y, np.zeros(1024, np.float32),
        threads=1024,
    )  # fmt: skip
    sides = corner & 1, corner >> 1  # along x, along y
    wanted = [weights(pair).get(sides, 0) for pair in at.tolist()]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("corner", range(8))
def test_weights_of_every_corner_of_three_axes(corner):
    image = np.zeros(8, np.float32)
    image[corner] = 1
    at = fractions(3, 3072)
    x, y, z = ((0.5 + column / 256).astype(np.float32) for column in at.T)
    (*_, found) = on_texture(
        "p3[i] = (short)(256 * tex3D<float>(o, p0[i], p1[i], p2[i]));",
        Texture(image.reshape(2, 2, 2), filter="linear"), x, y, z, np.zeros(3072, np.int16),
        threads=3072,
    )  # fmt: skip
    sides = corner & 1, corner >> 1 & 1, corner >> 2
    wanted = [weights(triple).get(sides, 0) for triple in at.tolist()]
    np.testing.assert_array_equal(found, wanted)


# --- coordinates ---------------------------------------------------------------------------------
EXTENTS = (5, 7, 100, 1000, 2048)
MODES = [("clamp", False), ("border", False), ("clamp", True), ("border", True), ("wrap", True), ("mirror", True)]  # fmt: skip


def beside(extent, normalised):
    """Coordinates at, just before and just behind what decides: edges of texels, ties of 256ths."""
    random = np.random.default_rng(extent)
    step = extent if normalised else 1
    edges = random.integers(-2 * extent, 3 * extent, 100)
    ties = random.integers(-2 * extent * 512, 3 * extent * 512, 100) / 512
    far = random.integers(-(2**20), 2**20, 30) + random.integers(0, 512, 30) / 512
    fine = random.uniform(-2 * extent, 3 * extent, 152)
    at = (np.r_[edges, ties, far, edges[:30] + 0.5] / step).astype(np.float32)
    near = [np.nextafter(at, np.float32(np.inf)), np.nextafter(at, np.float32(-np.inf))]
    return np.r_[at, *near, (fine / step).astype(np.float32), at[:92] * np.float32(1.0000007)]


@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("filter", ["point", "linear"])
@pytest.mark.parametrize("mode, normalised", MODES)
def test_coordinates(extent, filter, mode, normalised):
    image = np.arange(extent, dtype=np.float32)
    texture = Texture(image, filter=filter, addressing=mode, normalised=normalised)
    at = beside(extent, normalised)
    out = np.zeros(len(at), np.float32)
    _, found = on_texture("p1[i] = tex1D<float>(o, p0[i]);", texture, at, out, threads=len(at))
    wanted = [sampled(image, [one], mode, filter, normalised) for one in at]
    np.testing.assert_array_equal(found, np.array(wanted, np.float32))


AWAY = [0.0, -0.0, 1e-40, 0.25, 0.5, 1.0, -1.0, 3.5, 1e5, -1e5, 8388608.0, 2147483648.0, -2147483648.0, 1e10, -1e10, 3e38,
        -3e38, np.inf, -np.inf, np.nan, 65536.0, 65536.5, 32768.25, 16777216.0, 33554432.0, 1e7 + 1, -8388609.0, 0.1, 0.7, 5e-8, -5e-8, 0.99999994]  # fmt: skip


@pytest.mark.parametrize("filter", ["point", "linear"])
@pytest.mark.parametrize("mode, normalised", MODES)
def test_coordinates_far_away(filter, mode, normalised):
    image = np.arange(1, 8, dtype=np.float32)
    texture = Texture(image, filter=filter, addressing=mode, normalised=normalised)
    at, out = np.array(AWAY, np.float32), np.zeros(32, np.float32)
    _, found = on_texture("p1[i] = tex1D<float>(o, p0[i]);", texture, at, out, threads=32)
    near = np.abs(at) < 2**20
    wanted = [sampled(image, [one], mode, filter, normalised) for one in at[near]]
    np.testing.assert_array_equal(found[near], np.array(wanted, np.float32))


# --- sums ----------------------------------------------------------------------------------------
SHAPES = {1: (64,), 2: (16, 16), 3: (8, 8, 8)}
READS = {1: "tex1D<float>(o, p0[i])", 2: "tex2D<float>(o, p0[i], p1[i])", 3: "tex3D<float>(o, p0[i], p1[i], p2[i])"}  # fmt: skip


def values(dtype, shape, gap):
    random = np.random.default_rng(gap)
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return random.integers(info.min, info.max, shape, kind, endpoint=True)
    return (random.standard_normal(shape) * 2.0 ** random.integers(-gap, gap + 1, shape)).astype(
        kind
    )


@pytest.mark.parametrize("axes", SHAPES)
@pytest.mark.parametrize(
    "dtype, gap",
    [("float32", 0), ("float32", 4), ("float32", 30), ("float16", 0), ("float16", 6), ("uint8", 0), ("int8", 0),
     ("uint16", 0), ("int16", 0)],
)  # fmt: skip
def test_sums_of_any_values(axes, dtype, gap):
    image = values(dtype, SHAPES[axes], gap)
    texture = Texture(image, filter="linear", as_floats=np.dtype(dtype).kind in "iu")
    random = np.random.default_rng(axes)
    sides = random.integers(0, SHAPES[axes][0] * 256, (3, 512))
    at = [(0.5 + side / 256).astype(np.float32) for side in sides]
    body = f"p3[i] = {READS[axes]};"
    largest = abs(image.astype(np.float64)).max()
    near = {
        ("int8", 0): 0.5 / 32767 + 2.0**-24,
        ("float32", 30): largest * 2.0**-27 if axes == 3 else None,
    }
    allowed = near.get((dtype, gap))
    given = texture, *at, np.zeros(512, np.float32)
    *_, found = on_texture(body, *given, threads=512, allowed=allowed)
    kind = np.dtype(dtype)
    for row, point in enumerate(zip(*at[:axes], strict=True)):
        steps = [min(max(int(256 * float(x)) - 128, 0), 256 * (image.shape[0] - 1)) for x in point]
        terms = [
            (w, float(image[tuple((step >> 8) + side for step, side in zip(steps, corner, strict=True))[::-1]]))
            for corner, w in weights([step & 255 for step in steps]).items()
        ]  # fmt: skip
        total = sum(w * texel for w, texel in terms) / 256
        if kind.kind == "f":  # what is cut off eight texels, and one rounding
            digits = np.finfo(kind).nmant
            off = 2.0 ** -(digits + 1) * abs(total)
            off += 2.0 ** -(digits + 1) * max(abs(texel) for _, texel in terms)
        else:
            total = max(total / np.iinfo(kind).max, -1)
            off = 0.5 / (65535 if kind.kind == "u" else 32767) + 2.0**-23
        assert abs(float(found[row]) - total) <= off


@pytest.mark.parametrize("gap", [0, 1, 3, 8, 16, 24])
def test_two_values_of_different_size(gap):
    """Pairs of texels, one of them by 2^gap larger, with all fractions."""
    random = np.random.default_rng(gap)
    image = (1 + random.random((16, 2))) * [1, 2.0**gap] * random.choice([-1, 1], (16, 2))
    at = random.integers(0, 256, 512)
    x = (np.arange(512) % 16 * 2 + 0.5 + at / 256).astype(np.float32)
    texture = Texture(image.astype(np.float32).ravel(), filter="linear")
    _, found = on_texture("p1[i] = tex1D<float>(o, p0[i]);", texture, x, np.zeros(512, np.float32), threads=512)  # fmt: skip
    rows = image.astype(np.float32).astype(np.float64)[np.arange(512) % 16]
    wanted = (rows[:, 0] * (256 - at) + rows[:, 1] * at) / 256
    assert (abs(found - wanted) <= 2.0**-24 * (abs(wanted) + abs(rows).max(1))).all()


def test_values_that_are_not_finite():
    """Weights of zero beside infinities and NaN."""
    image = np.array([1, np.inf, 2, -np.inf, 3, np.nan, 4, 1e-40, 3e38, 3e38, -0.0, 5], np.float32)
    at = (np.arange(0, 26) / 2).astype(np.float32)
    texture = Texture(image, filter="linear")
    on_texture("p1[i] = tex1D<float>(o, p0[i]);", texture, at, np.zeros(26, np.float32), threads=26)
    texture = Texture(image)
    on_texture("p1[i] = tex1D<float>(o, p0[i]);", texture, at, np.zeros(26, np.float32), threads=26)
    with np.errstate(over="ignore"):
        halves = image.astype(np.float16)
    for filter in ("point", "linear"):
        texture = Texture(halves, filter=filter)
        on_texture("p1[i] = tex1D<float>(o, p0[i]);", texture, at, np.zeros(26, np.float32), threads=26)  # fmt: skip


# --- channels, gathers, layers, cubes ------------------------------------------------------------
@pytest.mark.parametrize("channels", [1, 2, 4])
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int16", "int32", "as floats"])
@pytest.mark.parametrize("mode", ["clamp", "border"])
def test_channels_within_and_outside(channels, dtype, mode):
    kind = {"as floats": "uint8"}.get(dtype, dtype)
    shape = (4, 5) if channels == 1 else (4, 5, channels)
    image = values(kind, shape, 0)
    texture = Texture(image, channels, addressing=mode, as_floats=dtype == "as floats")
    x, y = (np.random.default_rng(at).uniform(-1, 6, 64).astype(np.float32) for at in (1, 2))
    floats = dtype in ("float32", "float16", "as floats")
    out = np.zeros((64, 4), np.float32 if floats else np.int32)
    texel = "float4" if floats else "int4"
    *_, found = on_texture(
        f"p2[i] = tex2D<{texel}>(o, p0[i], p1[i]);", texture, x, y, out, threads=64
    )
    texels = image.reshape(4, 5, channels).astype(np.float64)
    texels = texels / 255 if dtype == "as floats" else texels
    wanted = np.zeros((64, 4))
    for row, (i, j) in enumerate(
        zip(np.floor(x).astype(int), np.floor(y).astype(int), strict=True)
    ):
        inside = 0 <= i < 5 and 0 <= j < 4
        if inside or mode == "clamp":
            wanted[row, :channels] = texels[min(max(j, 0), 3), min(max(i, 0), 4)]
    np.testing.assert_array_equal(found, wanted.astype(out.dtype))


@pytest.mark.parametrize("component", range(4))
@pytest.mark.parametrize("mode, normalised", MODES)
def test_gathers_of_every_component(component, mode, normalised):
    image = np.arange(4 * 5 * 4, dtype=np.float32).reshape(4, 5, 4)
    texture = Texture(image, 4, addressing=mode, normalised=normalised)
    x, y = beside(5, normalised), beside(4, normalised)
    order = np.random.default_rng(component).permutation(len(x))[:128]
    x, y = x[order], y[np.arange(128) * 7 % len(y)]
    out = np.zeros((128, 4), np.float32)
    body = f"p2[i] = tex2Dgather<float4>(o, p0[i], p1[i], {component});"
    *_, found = on_texture(body, texture, x, y, out, threads=128)
    for row, *at in zip(found, x, y, strict=True):
        at = [scaled(float(one), normalised * n) for one, n in zip(at, (5, 4), strict=True)]
        i, j = (half_up(256 * (one - Fraction(1, 2))) >> 8 for one in at)
        kept = [
            (outside(b, 4, mode), outside(a, 5, mode))
            for a, b in ((i, j + 1), (i + 1, j + 1), (i + 1, j), (i, j))
        ]
        wanted = [0 if None in place else image[(*place, component)] for place in kept]
        assert row.tolist() == wanted


@pytest.mark.parametrize("channels", [1, 2])
def test_gathers_of_components_that_are_missing(channels):
    shape = (4, 5) if channels == 1 else (4, 5, channels)
    image = np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)
    x, y = (np.random.default_rng(at).uniform(-1, 6, 64).astype(np.float32) for at in (1, 2))
    for component in range(4):
        body = f"p2[i] = tex2Dgather<float4>(o, p0[i], p1[i], {component});"
        given = Texture(image, channels), x, y, np.zeros((64, 4), np.float32)
        *_, found = on_texture(body, *given, threads=64)
        assert found.all() if component < channels else not found.any()


@pytest.mark.parametrize("filter", ["point", "linear"])
@pytest.mark.parametrize("mode", ["clamp", "border"])
def test_layers_of_lines_and_of_planes(filter, mode):
    number = np.array([0, 1, 2, 3, 100, -1, -100, 65535, 65536, 65537, 2**31 - 1, -(2**31)], np.int32)  # fmt: skip
    number = np.resize(number, 96)
    x, y = (np.random.default_rng(at).uniform(-1, 6, 96).astype(np.float32) for at in (1, 2))
    lines = np.arange(15, dtype=np.float32).reshape(3, 5)
    texture = Texture(lines, layered=True, filter=filter, addressing=mode)
    body = "p2[i] = tex1DLayered<float>(o, p0[i], p1[i]);"
    *_, found = on_texture(body, texture, x, number, np.zeros(96, np.float32), threads=96)
    known = number >= 0
    wanted = [
        sampled(lines[min(n, 2)], [a], mode, filter, layer=True)
        for a, n in zip(x[known], number[known], strict=True)
    ]
    np.testing.assert_array_equal(found[known], np.array(wanted, np.float32))
    planes = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    texture = Texture(planes, layered=True, filter=filter, addressing=mode)
    body = "p3[i] = tex2DLayered<float>(o, p0[i], p1[i], p2[i]);"
    *_, found = on_texture(body, texture, x, y, number, np.zeros(96, np.float32), threads=96)
    at = zip(x[known], y[known], number[known], strict=True)
    wanted = [sampled(planes[min(n, 2)], [a, b], mode, filter) for a, b, n in at]
    np.testing.assert_array_equal(found[known], np.array(wanted, np.float32))


@pytest.mark.parametrize("filter", ["point", "linear"])
@pytest.mark.parametrize("mode", ["clamp", "border", "wrap", "mirror"])
def test_directions_of_cubes(filter, mode):
    cube = np.random.default_rng(4).integers(-99, 99, (6, 4, 4)).astype(np.float32)
    random = np.random.default_rng(6)
    odd = random.choice([-2.0, -1, -0.5, 0, 0.25, 0.5, 1, 2], (256, 3))
    at = np.r_[odd, random.standard_normal((256, 3))].astype(np.float32)
    at[~at.any(1)] = 1
    texture = Texture(cube, cube=True, filter=filter, addressing=mode, normalised=True)
    body = "p3[i] = texCubemap<float>(o, p0[i], p1[i], p2[i]);"
    *_, found = on_texture(body, texture, *at.T.copy(), np.zeros(512, np.float32), threads=512)
    assert (abs(found) <= abs(cube).max()).all() and len(np.unique(found)) > 60


# --- surfaces ------------------------------------------------------------------------------------
BOUNDS = ("Zero", "Clamp")


def beyond(image, bounds, *at):
    """Texels at indices, outermost first: 0 outside, or the nearest one."""
    kept = tuple(np.clip(one, 0, n - 1) for one, n in zip(at, image.shape, strict=False))
    if image.ndim == 4:  # layers have no sign
        kept = (np.where(at[0] < 0, len(image) - 1, kept[0]), *kept[1:])
    inside = np.all([one == k for one, k in zip(at, kept, strict=True)], axis=0)
    found = image[kept]
    shape = inside.reshape(inside.shape + (1,) * (found.ndim - 1))
    return np.where(shape | (bounds == "Clamp"), found, 0)


@pytest.mark.parametrize("bounds", BOUNDS)
def test_surfaces_outside(bounds):
    x, y, z = np.random.default_rng(8).integers(-3, 8, (3, 128)).astype(np.int32)
    mode = f"cudaBoundaryMode{bounds}"
    plane = np.arange(1, 21, dtype=np.int32).reshape(4, 5)
    body = f"p2[i] = surf2Dread<int>(o, 4 * p0[i], p1[i], {mode});"
    *_, found = on_texture(body, Surface(plane), x, y, np.zeros(128, np.int32), threads=128)
    np.testing.assert_array_equal(found, beyond(plane, bounds, y, x))
    cuboid = np.arange(1, 61, dtype=np.int16).reshape(3, 4, 5)
    body = f"p3[i] = surf3Dread<short>(o, 2 * p0[i], p1[i], p2[i], {mode});"
    *_, found = on_texture(body, Surface(cuboid), x, y, z, np.zeros(128, np.int32), threads=128)
    np.testing.assert_array_equal(found, beyond(cuboid, bounds, z, y, x))
    layers = np.arange(1, 121, dtype=np.int32).reshape(3, 4, 5, 2)
    body = f"const int2 v = surf2DLayeredread<int2>(o, 8 * p0[i], p1[i], p2[i], {mode}); p3[i] = v.x + 1000 * v.y;"
    *_, found = on_texture(body, Surface(layers, 2, layered=True), x, y, z, np.zeros(128, np.int32), threads=128)  # fmt: skip
    wanted = beyond(layers, bounds, z, y, x)
    np.testing.assert_array_equal(found, wanted[:, 0] + 1000 * wanted[:, 1])


@pytest.mark.parametrize("bounds", BOUNDS)
def test_stores_outside_surfaces(bounds):
    """Threads whose clamped places are different: every second column, one row each."""
    x = np.array([-9, 0, 1, 2, 3, 4, 12], np.int32)[:6]
    y = np.array([0, 1, 2, 3, 4, 9], np.int32)
    plane = np.zeros((6, 5), np.int32)
    body = f"surf2Dwrite(i + 1, o, 4 * p0[i], p1[i], cudaBoundaryMode{bounds});"
    source = Surface(plane)
    wanted = plane.copy()
    for number, (a, b) in enumerate(zip(x, y, strict=True)):
        kept = min(max(b, 0), 5), min(max(a, 0), 4)
        if bounds == "Clamp" or kept == (b, a):
            wanted[kept] = number + 1
    found = stored(body, source, x, y, threads=6)
    np.testing.assert_array_equal(found, wanted)
