# ruff: noqa: E501 - PTX text
"""Every instruction by itself: right, or refused in one line that names it."""

from __future__ import annotations

import isa
import isa_floats
import isa_integers
import isa_narrow
import numpy as np
import pytest
from gpu_twin import run_within

from polygen.errors import PtxError
from polygen.machine import Launch, run

assert isa_integers and isa_floats and isa_narrow  # they fill the table
FAMILIES = sorted({case.text.split(".")[0].split()[0] for case in isa.CASES})


def family(name):
    return [case for case in isa.CASES if case.text.split(".")[0].split()[0] == name]


def executed(case):
    """Operands, and the column of results."""
    given = isa.operands(case)
    dtype = "u1" if case.result == "pred" else isa.storage(case.result)
    launch = Launch((1, 1, 1), (isa.THREADS, 1, 1), 0, (*given, np.zeros(isa.THREADS, dtype)))
    if case.text in isa.NEAR:
        relative, absolute = isa.NEAR[case.text]
        off = relative * np.abs(isa.expected(case, given).astype("f8")) + absolute
        report = run_within(isa.ptx(case), launch, (*[None] * len(given), off))
    else:
        report = run(isa.ptx(case), launch)
    assert report.ok, str(report)
    return given, report.arrays[-1]


def agrees(case, found, wanted):
    """Bit for bit but for the payload of NaN; approximations within their bounds."""
    if found.dtype.kind != "f":
        return found == wanted
    with np.errstate(invalid="ignore"):
        if case.text in isa.NEAR:
            relative, absolute = isa.NEAR[case.text]
            a, b = found.astype("f8"), wanted.astype("f8")
            return np.abs(a - b) <= relative * np.abs(b) + absolute
        same = (found == wanted) & (np.signbit(found) == np.signbit(wanted))
    return same | (np.isnan(found) & np.isnan(wanted))


def test_there_are_many():
    assert len(isa.CASES) >= 800 and len({case.text for case in isa.CASES}) >= 750


@pytest.mark.parametrize("name", FAMILIES)
def test_an_instruction_gives_what_the_manual_says(name):
    wrong = []
    for case in family(name):
        given, found = executed(case)
        wanted = isa.expected(case, given)
        good = agrees(case, found, wanted)
        if not good.all():
            row = int(np.flatnonzero(~good)[0])
            values = [column[row] for column in given]
            wrong.append(f"{case.text}: {values} gives {found[row]}, not {wanted[row]}")
    assert not wrong, "\n".join(wrong)


# --- what is refused -----------------------------------------------------------------------------
REFUSED = [
    "tex.grad.2d.v4.f32.f32 {%f, %f, %f, %f}, [%d, {%f, %f}], {%f, %f}, {%f, %f};",
    "tex.acube.v4.f32.f32 {%f, %f, %f, %f}, [%d, {%r, %f, %f, %f}];",
    "tex.2d.v4.f32.f32 {%f, %f, %f, %f}, [%d, %d, {%f, %f}];",
    "tex.2d.v4.f32.f32 {%f, %f, %f, %f}, [named, {%f, %f}];",
    "tex.2d.v4.f16.f32 {%h, %h, %h, %h}, [%d, {%f, %f}];",
    "tex.2d.v4.f32.f32 {%f, %f, %f, %f}, [%d, {%f}];",
    "tld4.r.a2d.v4.f32.f32 {%f, %f, %f, %f}, [%d, {%r, %f, %f, %f}];",
    "txq.channel_data_type.b32 %r, [%d];",
    "suld.b.cube.b32.trap {%r}, [%d, {%r}];",
    "sust.p.1d.b32.trap [%d, {%r}], {%r};",
    "sured.b.add.1d.u32.trap [%d, {%r}], %r;",
    "suq.channel_order.b32 %r, [%d];",
    "istypep.texref %p, %d;",
    "vadd.s32.s32.s32 %r, %r, %r;",
    "vmad.s32.s32.s32 %r, %r, %r, %r;",
    "vset.s32.s32.lt %r, %r, %r;",
    "vmin2.s32.s32.s32 %r, %r, %r, %r;",
    "vadd4.u32.u32.u32 %r, %r, %r, %r;",
    "vavrg4.u32.u32.u32 %r, %r, %r, %r;",
    "vabsdiff4.u32.u32.u32.sat %r, %r, %r, %r;",
    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r], 32;",
    "tcgen05.wait::ld.sync.aligned;",
    "tensormap.replace.tile.interleave_layout.global.b1024.b32 [%d], 1;",
    "tensormap.replace.tile.box_dim.global.b1024.b32 [%d], 5, %r;",
    "tensormap.replace.tile.nosuchfield.global.b1024.b32 [%d], %r;",
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d], [%r], 64;",
    "alloca.u64 %d, 32;",
    "stacksave.u64 %d;",
    "stackrestore.u64 %d;",
    "call (%r), %d, (%r);",
    "call.uni malloc, (%d);",
    "movmatrix.sync.aligned.m8n8.trans.b16 %r, %r, %r;",
    "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f}, {%r}, {%r}, {%f}, %r, 0;",
    "mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32 {%r}, {%r}, {%r}, {%r};",
    "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.xor.popc {%r}, {%r}, {%r}, {%r};",
    "mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.and.popc {%r}, {%r}, {%r}, {%r};",
    "wmma.mma.xor.popc.sync.row.col.m8n8k128.s32.b1.b1.s32 {%r}, {%r}, {%r}, {%r};",
    "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%f}, %d, %d, %r, 0, 1, 1, 1, 0, 0;",
    "redux.sync.min.NaN.f32 %f, %f, 0xffffffff;",
    "shfl.idx.b32 %r, %r, %r, %r;",
    "shfl.up.b32 %r|%p, %r, %r, %r;",
    "vote.all.pred %p, %p;",
    "add.rz.f16 %h, %h, %h;",
    "fma.rm.bf16 %h, %h, %h, %h;",
    "cvt.rp.bf16.f32 %h, %f;",
    "cvt.rs.f16x2.f32 %r, %f, %f, %r;",
    "cvt.rn.satfinite.e2m1x2.f32 %h, %f, %f;",
    "cvt.pack.sat.u4.s32.b32 %r, %r, %r, %r;",
    "mad24.hi.sat.s32 %r, %r, %r, %r;",
    "add.s32.x %r, %r, %r;",
    "min.f32 %f, %f, %f, %f;",
    "set.lt.and.u32.s32 %r, %r, %r, %p;",
    "lop3.or.b32 %r|%p, %r, %r, %r, 0x3f, %p;",
    "addc.u32 %r, %r, %r;",
    "@%p add.cc.u32 %r, %r, %r;",
    "@%p shfl.sync.idx.b32 %r, %r, %r, %r, 0xffffffff;",
    "cp.async.ca.shared.global [%r], [%d], 5;",
    "cp.async.cg.shared.global [%r], [%d], 8;",
    "multimem.ld_reduce.relaxed.sys.global.add.f32 %f, [%d];",
    "multimem.red.relaxed.sys.global.add.f32 [%d], %f;",
    "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r], [%r];",
    "getctarank.shared::cluster.u32 %r, %q;",
    "nosuchinstruction.f32 %f, %f;",
    "add.q32 %r, %r, %r;",
    "mov.u32 %r, %nosuchregister;",
    "mov.u32 %r, nosuchname;",
    "setp.zz.s32 %p, %r, %r;",
    "testp.strange.f32 %p, %f;",
    "bfe.u16 %h, %h, %r, %r;",
    "atom.global.add.f128 %r, [%d], %r;",
    "atom.global.mangle.u32 %r, [%d], %r;",
    "red.async.relaxed.cluster.mangle [%r], %r, [%r];",
    "mbarrier.mangle.b64 %d, [%r];",
    "barrier.cluster.mangle;",
    "bar.mangle 0;",
    "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r, %r}, [%r];",
    "stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%r], {%r};",
    "prmt.b32.mangle %r, %r, %r, %r;",
    "wgmma.mangle.sync.aligned;",
    "setmaxnreg.mangle.sync.aligned.u32 40;",
    "bra nowhere;",
]  # fmt: skip


def text_with(line: str) -> str:
    registers = "\n".join(
        (".reg .b32 %r;", ".reg .b64 %d;", ".reg .b16 %h;", ".reg .f32 %f;", ".reg .pred %p;")
    )
    starts = "mov.b32 %r, 0; mov.b64 %d, 0; mov.b16 %h, 0; mov.f32 %f, 0f00000000; setp.eq.b32 %p, %r, 0;"
    head = ".version 8.6\n.target sm_90a\n.address_size 64\n.visible .entry k()\n{"
    return f"{head}\n{registers}\n{starts}\n{line}\nret;\n}}\n"


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_not_modelled_is_refused_in_one_line(line):
    text = text_with(line)
    number = text.split("\n").index(line) + 1
    with pytest.raises(PtxError) as met:
        run(text, Launch((1, 1, 1), (128, 1, 1)))
    said = str(met.value)
    assert "\n" not in said and f"PTX line {number}:" in said
    guard, _, rest = line.partition(" ")
    opcode = (rest if guard.startswith("@") else line).split()[0].rstrip(";")
    named = opcode in said or any(word in said for word in ("nowhere", "nosuch", ".q32", ".f128"))
    assert named, said
    assert "mistake of its own" not in said
