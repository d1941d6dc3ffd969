"""The kernels that tests share: layouts x dtypes x epilogues x alignments x targets x schedules.

Every entry is one fused program with a signature and a target. `cases` is built by rule, so that
each layout meets each dtype, each epilogue at least two layouts, and each target some of both.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from polygen.api import Fused, fuse
from polygen.frontend.parse import parse_expression
from polygen.kernel import Kernel
from polygen.schedule.model import (
    Cluster,
    CtaTile,
    Epilogue,
    Loops,
    Pipeline,
    Raster,
    Roles,
    Schedule,
    SharedMemory,
    Tile,
    WarpTile,
)

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")

# Operand order and transposition: (product, shape of x, shape of w).
LAYOUTS = {
    "nt": ("x @ w.T", "[M,K]", "[N,K]"),
    "nn": ("x @ w", "[M,K]", "[K,N]"),
    "tn": ("x.T @ w", "[K,M]", "[K,N]"),
    "tt": ("x.T @ w.T", "[K,M]", "[N,K]"),
}

# Expression around the product `@`, and the signatures of what it adds; `T` is the operands' dtype.
EPILOGUES: dict[str, tuple[str, dict[str, str]]] = {
    "plain": ("@", {}),
    "bias": ("@ + b", {"b": "T[N]"}),
    "bias_gelu": ("gelu(@ + b)", {"b": "T[N]"}),
    "bias_residual_relu": ("relu(@ + b + r)", {"b": "f32[N]", "r": "T[M,N]"}),
    "gate": ("silu(@ + b) * g", {"b": "T[N]", "g": "T[M,N]"}),
    "two_outputs": ("(relu(@), @ * 2 + b)", {"b": "f32[N]"}),
    "column_scale": ("(@) * c", {"c": "f32[M,1]"}),
    "transposed_residual": ("@ + r.T", {"r": "T[N,M]"}),
    "scalar": ("s * (@) + b", {"b": "f32[N]", "s": "f32"}),
    "where": ("where(@ > r, @, r - 1)", {"r": "T[M,N]"}),
    "middle_cast": ('(@).astype("f16") * 2 + b', {"b": "f32[N]"}),
    "column_major_residual": ("maximum(@, r)", {"r": "T[M,N]:col"}),
    "same_twice": ("(@ + r) * r", {"r": "f32[M,N]"}),
    "tanh_clip": ("tanh(clip(@, -3, 3))", {}),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel of the matrix."""

    name: str
    expression: str
    signature: tuple[tuple[str, str], ...]  # parameter -> description
    arch: str = "sm_80"
    sizes: tuple[tuple[str, int], ...] = (("M", 72), ("N", 56), ("K", 128))  # to optimise for
    schedule: Schedule | str = "auto"
    options: dict[str, Any] = field(default_factory=dict)
    trial: tuple[tuple[str, int], ...] = ()  # sizes to run on the PTX machine; () is the default

    def fused(self) -> Fused:
        """The function."""
        names = [name for name, _ in self.signature]
        function = parse_expression(self.expression, names)
        function.expression = self.expression  # type: ignore[attr-defined]
        fused: Fused = fuse(function, name=self.name)
        return fused

    def kernel(self) -> Kernel:
        """Generated, not yet compiled."""
        return self.fused().compile(
            *(text for _, text in self.signature),
            arch=self.arch,
            sizes=dict(self.sizes),
            schedule=self.schedule,
            **self.options,
        )


def case(
    name: str, layout: str, dtype: str, epilogue: str, alignment: int = 16, **changes: Any
) -> Case:
    """A case by layout, dtype, epilogue and the operands' alignment in bytes."""
    product, x, w = LAYOUTS[layout]
    around, extra = EPILOGUES[epilogue]
    at = "" if alignment == 16 else f"@{alignment}"
    signature = {"x": f"{dtype}{x}{at}", "w": f"{dtype}{w}{at}"}
    stored = "f32" if dtype == "tf32" else dtype
    signature |= {key: text.replace("T", stored) for key, text in extra.items()}
    expression = around.replace("@", f"({product})")
    return Case(name, expression, tuple(signature.items()), **changes)


def pipeline(
    stages: int,
    distance: int,
    order: tuple[str, ...] = ("copy", "mma"),
    *,
    fragments: int = 2,
    lookahead: int = 1,
    copies: str = "whole",
    across: bool = False,
) -> Pipeline:
    """A pipeline with every decision spelt out, so that defaults may change."""
    return Pipeline(
        stages=stages,
        distance=distance,
        order=order,
        fragments=fragments,
        lookahead=lookahead,
        copies=copies,
        across=across,
    )


def small(**changes: Any) -> Schedule:
    """A schedule of a 32x32x32 tile with 16x16 warps: quick to run on the machine."""
    base = Schedule(
        name="small",
        tile=Tile(CtaTile(32, 32, 32), WarpTile(16, 16)),
        pipeline=pipeline(3, 2),
    )
    return replace(base, **changes)


def tiled(cta: tuple[int, int, int], warp: tuple[int, int], **changes: Any) -> Schedule:
    """`small` with other tiles."""
    return small(tile=Tile(CtaTile(*cta), WarpTile(*warp)), **changes)


def dots(
    cta: tuple[int, int, int], warp: tuple[int, int], fragments: int = 2, **more: Any
) -> Schedule:
    """A schedule whose lanes multiply."""
    given: dict[str, Any] = {
        "name": "dots",
        "atom": "dot",
        "tile": Tile(CtaTile(*cta), WarpTile(*warp)),
        "pipeline": Pipeline(fragments=fragments, lookahead=fragments - 1),
        "epilogue": Epilogue("registers"),
    }
    return Schedule(**(given | more))


# Legal, and not what anybody would choose by habit.
UNUSUAL: dict[str, Schedule] = {
    "mma_k_n_m": small(loops=Loops(mma=("k", "n", "m"))),
    "mma_m_n_k": small(
        pipeline=pipeline(3, 2, fragments=4, lookahead=0), loops=Loops(("m", "n", "k"))
    ),
    "mma_n_k_m": small(
        pipeline=pipeline(3, 2, fragments=4, lookahead=0), loops=Loops(("n", "k", "m"))
    ),
    "stages_2": small(pipeline=pipeline(2, 1)),
    "stages_4_spread": small(pipeline=pipeline(4, 3, copies="spread", across=True)),
    "stages_5_spread": small(pipeline=pipeline(5, 3, copies="spread")),
    "stages_6_distance_5": small(pipeline=pipeline(6, 5)),
    "stages_6_distance_2": small(pipeline=pipeline(6, 2)),
    "one_stage_no_distance": small(pipeline=pipeline(1, 0)),
    "mma_first_distance_is_stages": small(pipeline=pipeline(3, 3, ("mma", "copy"))),
    "mma_first_distance_1": small(pipeline=pipeline(4, 1, ("mma", "copy"))),
    "one_fragment": small(pipeline=pipeline(3, 2, fragments=1, lookahead=0)),
    "three_fragments": tiled(
        (32, 32, 64), (16, 16), pipeline=pipeline(3, 2, fragments=3, lookahead=2)
    ),
    "across_lookahead": tiled((32, 32, 64), (16, 16), pipeline=pipeline(4, 2, across=True)),
    "warps_1x8": tiled((16, 128, 32), (16, 16)),
    "warps_8x1": tiled((128, 16, 32), (16, 16)),
    "warps_2x4_of_16x8": tiled((32, 32, 32), (16, 8)),
    "one_warp": tiled((32, 32, 32), (32, 32)),
    "one_warp_one_stage": tiled(
        (16, 16, 16), (16, 16), pipeline=pipeline(1, 0, fragments=1, lookahead=0)
    ),
    "warp_of_48x24": tiled((96, 48, 32), (48, 24)),
    "registers": small(epilogue=Epilogue("registers")),
    "registers_along_n": small(epilogue=Epilogue("registers"), raster=Raster("n", 3)),
    "raster_along_n": small(raster=Raster("n", 8)),
    "raster_group_1": small(raster=Raster("m", 1)),
    "raster_group_16": small(raster=Raster("m", 16)),
    "two_blocks": small(min_blocks=2),
    "no_swizzle": tiled((32, 32, 64), (16, 16), smem=SharedMemory("none")),
}


def _layout_cases() -> list[Case]:
    found = []
    for i, layout in enumerate(LAYOUTS):
        for j, dtype in enumerate(("f16", "bf16", "tf32")):
            arch = ARCHS[(3 * i + j) % len(ARCHS)]
            found.append(case(f"{layout}_{dtype}", layout, dtype, "bias", arch=arch))
    for layout in LAYOUTS:
        found.append(
            case(f"{layout}_sum_f16", layout, "f16", "plain", options={"acc_dtype": "f16"})
        )
    return found


def _epilogue_cases() -> list[Case]:
    found = []
    for i, epilogue in enumerate(EPILOGUES):
        for j, (layout, dtype) in enumerate((("nt", "bf16"), ("tn", "f16"))):
            arch = ARCHS[(i + 4 * j) % len(ARCHS)]
            found.append(case(f"{epilogue}_{layout}_{dtype}", layout, dtype, epilogue, arch=arch))
    return found


def _ragged_cases() -> list[Case]:
    """Alignments below 16 bytes, sizes that are no multiple of anything."""
    found = []
    ragged = {
        8: {"M": 44, "N": 68, "K": 100},
        4: {"M": 42, "N": 70, "K": 102},
        2: {"M": 37, "N": 53, "K": 101},
    }
    for alignment, sizes in ragged.items():
        for i, layout in enumerate(LAYOUTS):
            chosen = tuple(sizes.items())
            arch = ARCHS[(alignment + i) % len(ARCHS)]
            name = f"aligned_{alignment}_{layout}"
            found.append(
                case(
                    name,
                    layout,
                    "bf16",
                    "bias_residual_relu",
                    alignment,
                    arch=arch,
                    sizes=chosen,
                    trial=chosen,
                )
            )
    for alignment in (8, 4):
        chosen = (("M", 34), ("N", 37), ("K", 50 if alignment == 8 else 51))
        found.append(
            case(f"aligned_{alignment}_tf32", "nn", "tf32", "bias", 4, sizes=chosen, trial=chosen)
        )
    one = (("M", 1), ("N", 1), ("K", 1))
    found.append(case("ones", "nt", "f16", "bias_residual_relu", 2, sizes=one, trial=one))
    return found


def _storage_cases() -> list[Case]:
    """Column-major arrays, one tensor as both operands, fixed sizes, other output types."""
    both = (("x", "f16[M,K]:col"), ("w", "f16[N,K]:col"))
    return [
        Case("column_major_both", "x @ w.T", both),
        Case(
            "column_major_x",
            "x @ w + b",
            (("x", "bf16[M,K]:col"), ("w", "bf16[K,N]"), ("b", "f32[N]")),
        ),
        Case("column_major_tf32", "x @ w", (("x", "tf32[M,K]:col"), ("w", "tf32[K,N]:col"))),
        Case("swapped", "(w @ x.T).T", (("x", "f16[M,K]"), ("w", "f16[N,K]"))),
        Case("gram", "x @ x.T", (("x", "bf16[M,K]"),), sizes=(("M", 64), ("K", 96))),
        Case("gram_transposed", "x.T @ x", (("x", "f16[K,M]"),), sizes=(("M", 64), ("K", 96))),
        Case("fixed", "relu(x @ w)", (("x", "bf16[48,96]"), ("w", "bf16[96,40]")), sizes=()),
        Case(
            "static_k",
            "x @ w.T",
            (("x", "bf16[M,K]"), ("w", "bf16[N,K]")),
            options={"static": ("K",)},
        ),
        Case(
            "f32_out",
            "x @ w.T",
            (("x", "bf16[M,K]"), ("w", "bf16[N,K]")),
            options={"out_dtype": "f32"},
        ),
        Case(
            "outputs_differ",
            "(x @ w.T, relu(x @ w.T))",
            (("x", "bf16[M,K]"), ("w", "bf16[N,K]")),
            options={"out_dtype": ("f32", "bf16")},
        ),
        Case(
            "transposed_output",
            "(x @ w.T + b).T",
            (("x", "f16[M,K]"), ("w", "f16[N,K]"), ("b", "f16[N]")),
        ),
        Case(
            "row_and_column",
            "(x @ w) * c + b",
            (("x", "f16[M,K]"), ("w", "f16[K,N]"), ("c", "f16[M,1]"), ("b", "f16[1,N]")),
        ),
    ]


def _schedule_cases() -> list[Case]:
    """The unusual schedules, over all layouts and dtypes in turn."""
    found = []
    for i, (name, schedule) in enumerate(UNUSUAL.items()):
        layout, dtype = tuple(LAYOUTS)[i % 4], ("bf16", "f16", "tf32")[i % 3]
        arch = ARCHS[i % len(ARCHS)]
        found.append(
            case(f"{name}", layout, dtype, "bias_residual_relu", schedule=schedule, arch=arch)
        )
    return found


def _shipped_cases() -> list[Case]:
    """The large tiles that real sizes get."""
    large = (("M", 4096), ("N", 4096), ("K", 4096))
    narrow = (("M", 16384), ("N", 1024), ("K", 1024))
    return [
        case("large_bias_gelu", "nt", "bf16", "bias_gelu", sizes=large, arch="sm_90a"),
        case("large_two_outputs", "tn", "f16", "two_outputs", sizes=large),
        case("large_tf32", "nn", "tf32", "bias", sizes=large, arch="sm_120"),
        case("tall_residual", "nt", "bf16", "bias_residual_relu", sizes=narrow, arch="sm_100"),
    ]


def _name_cases() -> list[Case]:
    """Arguments and dims called like things of C, of the generated code and of the model."""

    def named(name: str, expression: str, **signature: str) -> Case:
        return Case(name, expression, tuple(signature.items()), sizes=())

    return [
        named(
            "names_of_loops",
            "a @ b + c + m + n + s + r + i + p",
            a="f16[M,K]",
            b="f16[K,N]",
            c="f32[N]",
            m="f32",
            n="f32[N]",
            s="f32[M,1]",
            r="f16[M,N]",
            i="f32[N]",
            p="f32",
        ),
        named(
            "names_of_the_frame",
            "(sum @ shared.T + row) * column + item + lane + warp + b_m",
            sum="bf16[t,s]",
            shared="bf16[n,s]",
            row="f32[n]",
            column="f32[t,n]",
            item="f32",
            lane="f32[t,1]",
            warp="f32",
            b_m="f32",
        ),
        named(
            "names_of_c",
            "float @ double + register + copy_a + mma",
            float="f16[int,K]",
            double="f16[K,long]",
            register="f32[long]",
            copy_a="f32",
            mma="f32",
        ),
        named(
            "names_of_values",
            "v0 @ y0 + t1 + sums",
            v0="f16[rows,m]",
            y0="f16[m,columns]",
            t1="f32[columns]",
            sums="f32",
        ),
    ]


# --- warps with roles ----------------------------------------------------------------------------
WIDTHS = (64, 96, 128, 160, 208, 256)
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2))
RASTERS = (Raster("m", 8), Raster("n", 1), Raster("m", 1), Raster("n", 4), Raster("m", 4))
# name -> form, parts of one tile along m and n, registers of the producer and of the consumers
FORMS = {
    "one": ("cooperative", (1, 1), 40, 232),
    "two": ("cooperative", (2, 1), 40, 232),
    "pingpong": ("pingpong", (1, 1), 40, 232),
    "three_in_turns": ("pingpong", (1, 1), 24, 152),
    "three": ("cooperative", (3, 1), 24, 152),
    "beside": ("cooperative", (1, 2), 40, 232),
    "three_beside": ("cooperative", (1, 3), 24, 152),
}
# Tensor maps cannot describe the matrices that these read along m.
_NO_PANELS = ("transposed_residual", "column_major_residual")


def roles(
    form: str = "one",
    n: int = 64,
    k: int = 64,
    *,
    m: int = 64,
    stages: int = 3,
    in_flight: int = 1,
    cluster: tuple[int, ...] = (1, 1),
    **epilogue: Any,
) -> Schedule:
    """A schedule with roles; quick to run on the machine.

    Args:
        form: a name of `FORMS`.
        n: columns of a consumer's part of a tile.
        k: elements along k per step.
        m: rows of it.
        stages: slots of the ring.
        in_flight: products that may still run when the next are issued.
        cluster: blocks along m and n, and along k.
        epilogue: fields of it, and the raster.
    """
    kind, parts, *registers = FORMS[form]
    raster = epilogue.pop("raster", RASTERS[0])
    return Schedule(
        name=f"roles_{form}",
        device="sm_90a",
        tile=Tile(CtaTile(parts[0] * m, parts[1] * n, k), WarpTile(m, n)),
        pipeline=Pipeline(stages=stages, in_flight=in_flight),
        roles=Roles(kind, *registers, turns=3 if form == "three_in_turns" else 2),
        cluster=Cluster(*cluster),
        raster=raster,
        epilogue=Epilogue(**{"through": "tma", **epilogue}),
    )


def _hopper(
    name: str, layout: str, dtype: str, epilogue: str, schedule: Schedule, **changes: Any
) -> Case:
    named = f"roles_{name}"
    return case(named, layout, dtype, epilogue, arch="sm_90a", schedule=schedule, **changes)


def _hopper_cases() -> list[Case]:
    """Every decision that roles leave open, each value of it in some case.

    What a family is not about goes round its values, so that most pairs meet somewhere.
    """
    found = []
    forms = tuple(FORMS)[:3]
    for i, layout in enumerate(LAYOUTS):
        for j, dtype in enumerate(("bf16", "f16")):
            turn = 2 * i + j
            schedule = roles(forms[turn % 3], WIDTHS[turn % 6], raster=RASTERS[turn % 5])
            found.append(_hopper(f"{layout}_{dtype}", layout, dtype, "bias", schedule))
    found.append(_hopper("nt_tf32", "nt", "tf32", "bias", roles(k=32)))
    found.append(_hopper("nt_tf32_gate", "nt", "tf32", "gate", roles("pingpong", 96, 32)))
    for dtype, form in (("e4m3", "one"), ("e5m2", "two")):
        eight = roles(form, 64 if form == "one" else 160, 128, stages=2)
        found.append(
            _hopper(f"nt_{dtype}", "nt", dtype, "plain", eight, options={"out_dtype": "bf16"})
        )
    for i, epilogue in enumerate(EPILOGUES):
        layout, dtype = tuple(LAYOUTS)[i % 4], ("bf16", "f16")[i % 2]
        form, n = forms[(i + 1) % 3], WIDTHS[(i + 2) % 6]
        through = "registers" if epilogue in _NO_PANELS else "tma"
        slots, prefetch = 2 + i % 2, 1 + i % 3
        schedule = roles(form, n, through=through, slots=slots, prefetch=prefetch)
        found.append(_hopper(epilogue, layout, dtype, epilogue, schedule))
    for i, form in enumerate(forms):
        for j, cluster in enumerate(CLUSTERS):
            turn = 4 * i + j
            layout, raster = tuple(LAYOUTS)[(i + j) % 4], RASTERS[turn % 5]
            schedule = roles(
                form, (64, 64, 128)[i], 32, in_flight=turn % 3, cluster=cluster, raster=raster,
                through="registers" if turn == 5 else "tma",
            )  # fmt: skip
            name = f"{form}_{cluster[0]}x{cluster[1]}"
            found.append(_hopper(name, layout, "bf16", "where", schedule))
    for stages in range(2, 7):
        for in_flight in sorted({stages % 2, min(2, stages - 1)}):
            form, k = forms[(stages + in_flight) % 3], (16, 32, 48)[stages % 3]
            schedule = roles(form, 64, k, stages=stages, in_flight=in_flight)
            name = f"stages_{stages}_in_flight_{in_flight}"
            found.append(_hopper(name, "nt", "f16", "plain", schedule))
    tall = roles("two", 64, 32, m=128, slots=3)
    found.append(_hopper("two_blocks_each", "tn", "bf16", "same_twice", tall))
    three = roles("three", 96, 32, prefetch=1)
    found.append(_hopper("three_consumers", "tt", "f16", "gate", three))
    for layout, epilogue, cluster in (
        ("nt", "gate", (1, 1)), ("nn", "two_outputs", (2, 1)), ("tn", "bias", (1, 2))
    ):  # fmt: skip
        turns = roles("three_in_turns", 64, 32, stages=4, cluster=cluster)
        found.append(_hopper(f"three_in_turns_{epilogue}", layout, "bf16", epilogue, turns))
    for i, epilogue in enumerate(("plain", "bias_residual_relu", "two_outputs", "same_twice")):
        layout, dtype = tuple(LAYOUTS)[i], ("bf16", "f16")[i % 2]
        beside = roles("beside", (96, 64, 128, 64)[i], 32, m=(192, 64, 64, 128)[i],
                       cluster=CLUSTERS[i], raster=RASTERS[i])  # fmt: skip
        found.append(_hopper(f"beside_{epilogue}", layout, dtype, epilogue, beside))
    narrow = roles("pingpong", 128, 32, columns=32, prefetch=3)
    found.append(_hopper("narrow_panels", "nt", "bf16", "bias_residual_relu", narrow))
    direct = roles("beside", 32, 32, through="registers")
    found.append(_hopper("beside_direct", "nt", "tf32", "transposed_residual", direct))
    # Parts of 192, 64 and 32 bytes of rows along n.
    for n, layout in ((96, "nn"), (32, "tt"), (16, "tn")):
        inner = roles("beside", n, 32, m=64, cluster=(2, 1) if n == 32 else (1, 1))
        found.append(_hopper(f"beside_{layout}_{n}", layout, "bf16", "bias", inner))
    third = roles("three_beside", 48, 32, m=64)
    found.append(_hopper("three_beside", "nt", "bf16", "gate", third))
    # Sums of f16, two in a register: every layout and form, every way out.
    halves = (("plain", {}), ("gate", {}), ("plain", {"through": "registers"}), ("bias", {}))
    for i, (layout, (epilogue, out)) in enumerate(zip(LAYOUTS, halves, strict=True)):
        schedule = roles((*forms, "beside")[i], WIDTHS[i % 3], m=128 if i == 3 else 64, **out)
        options = {"acc_dtype": "f16"} | ({"out_dtype": "f32"} if i == 3 else {})
        name = f"{layout}_sum_f16"
        found.append(_hopper(name, layout, "f16", epilogue, schedule, options=options))
    # Blocks that share sums: two, three, four and eight of them.
    for i, (form, n, split, epilogue, more) in enumerate(
        (
            ("one", 64, 2, "where", {}),
            ("two", 128, 4, "bias_residual_relu", {"prefetch": 1}),
            ("beside", 64, 8, "two_outputs", {"through": "registers"}),
            ("three", 96, 3, "column_scale", {"stages": 2}),
            ("one", 128, 8, "same_twice", {"m": 128, "columns": 16}),
        )
    ):
        layout, dtype = tuple(LAYOUTS)[i % 4], ("bf16", "f16")[i % 2]
        shared = roles(form, n, 32, cluster=(1, 1, split), **{"columns": 0, **more})
        found.append(_hopper(f"shared_{form}_{split}", layout, dtype, epilogue, shared))
    return found


HOPPER: tuple[Case, ...] = tuple(_hopper_cases())

CASES: tuple[Case, ...] = tuple(
    [
        *_layout_cases(),
        *_epilogue_cases(),
        *_ragged_cases(),
        *_storage_cases(),
        *_schedule_cases(),
        *_shipped_cases(),
        *_name_cases(),
        *HOPPER,
    ]
)
