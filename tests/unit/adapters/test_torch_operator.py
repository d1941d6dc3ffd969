"""Operators of PyTorch made of array code, as far as they go without a GPU.

Fake tensors have shapes, types and a device; float64 tensors on the CPU get the program's meaning.
"""

from __future__ import annotations

import contextlib
import copy
import io
import shutil

import pytest

import polygen as pg
from polygen.errors import ArgumentError, DTypeError, ShapeError, SignatureError, TraceError

torch = pytest.importorskip("torch")
pgt = pytest.importorskip("polygen.adapters.torch")
fake_tensor = pytest.importorskip("torch._subclasses.fake_tensor")

BF16 = torch.bfloat16


@pgt.op
def up(x, w, b):
    return pg.gelu(x @ w.T + b)


@pgt.op(scalars=("alpha",), outputs=2)
def scaled(x, u, v, alpha):
    return alpha * (x @ u.T), pg.relu(x @ v.T).astype("f32")


def meta(*shape, dtype=BF16):
    return torch.empty(shape, dtype=dtype, device="meta")


def exact(*shape, seed=0):
    made = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=made)


@contextlib.contextmanager
def autocast(dtype):
    """What `torch.autocast("cuda")` sets; that itself does nothing where there is no GPU."""
    torch.set_autocast_dtype("cuda", dtype)
    torch.set_autocast_enabled("cuda", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)


# --- what it is
def test_the_schema_follows_from_the_parameters():
    assert str(up.overload._schema) == "polygen::up(Tensor x, Tensor w, Tensor b) -> Tensor"
    wanted = "polygen::scaled(Tensor x, Tensor u, Tensor v, float alpha) -> (Tensor, Tensor)"
    assert str(scaled.overload._schema) == wanted
    assert repr(up) == "<operator polygen::up(x, w, b)>"


def test_names_that_are_taken_get_a_number():
    first, second = (pgt.op(lambda x, w: x @ w, name="twice") for _ in range(2))
    assert [first.name, second.name] == ["twice", "twice_2"]
    assert pgt.op(pg.fuse(lambda x, w: x @ w, name="fused_one")).name == "fused_one"


def test_copies_of_modules_share_it():
    assert copy.deepcopy({"up": up})["up"] is up


# --- shapes and types
def test_shapes_and_types_come_from_the_program():
    y = up(meta(5, 8), meta(7, 8), meta(7))
    assert (y.shape, y.dtype, y.is_contiguous()) == ((5, 7), BF16, True)
    y = up(meta(2, 1, 5, 8), meta(7, 8), meta(7, dtype=torch.float32))
    assert (y.shape, y.dtype) == ((2, 1, 5, 7), BF16)
    half = torch.float16
    a, b = scaled(meta(5, 8, dtype=half), meta(7, 8, dtype=half), meta(7, 8, dtype=half), 2.0)
    assert (a.dtype, b.dtype, a.shape) == (half, torch.float32, (5, 7))


def test_f32_matrices_are_tf32_where_that_is_allowed():
    single = torch.float32
    product = pgt.op(lambda x, w: x @ w, name="tf32_product", allow_tf32=True)
    y = product(meta(5, 8, dtype=single), meta(8, 7, dtype=single))
    assert (y.shape, y.dtype) == ((5, 7), single)
    fused = pgt.op(pg.fuse(lambda x, w: x @ w, name="tf32_fused", allow_tf32=True))
    assert fused(meta(5, 8, dtype=single), meta(8, 7, dtype=single)).dtype == single
    with pytest.raises(DTypeError, match=r"x is f32.*op\(f, allow_tf32=True\)"):
        up(meta(5, 8, dtype=single), meta(7, 8), meta(7))


def test_output_types_are_those_asked_for():
    wide = pgt.op(lambda x, w: x @ w, name="wide", out_dtype="f32")
    assert wide(meta(5, 8), meta(8, 7)).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_what_products_multiply(dtype):
    single = torch.float32
    seen = []
    with fake_tensor.FakeTensorMode():
        given = [
            torch.empty(s, dtype=d, device="cuda")
            for s, d in (((5, 8), single), ((7, 8), BF16), ((7,), single))
        ]
        run = up._runner._program_for
        try:
            up._runner._program_for = lambda o: (seen.append([t.dtype for t in o]), run(o))[1]
            with autocast(dtype):
                assert up(*given).dtype == dtype
        finally:
            up._runner._program_for = run
    assert seen == [[dtype, dtype, single]]


# --- meaning
def test_float64_on_the_cpu_is_the_program_s_meaning():
    x, w, b = exact(2, 5, 8), exact(7, 8), exact(7)
    wanted = torch.nn.functional.gelu(x @ w.T + b)
    torch.testing.assert_close(up(x, w, b), wanted, rtol=1e-12, atol=1e-12)
    u = exact(7, 8, seed=1)
    a, c = scaled(x[0], u, w, 3.0)
    torch.testing.assert_close(a, 3 * (x[0] @ u.T), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(c, torch.relu(x[0] @ w.T), rtol=1e-12, atol=1e-12)


def test_torch_s_own_checks_of_an_operator():
    operands = exact(5, 8), exact(7, 8), exact(7)
    torch.library.opcheck(up.overload, operands, test_utils=["test_schema", "test_faketensor"])


# --- torch.compile
def compiled(function, **options):
    graphs = []

    def keep(graph, _):
        graphs.append([str(n.target) for n in graph.graph.nodes if n.op == "call_function"])
        return graph.forward

    torch._dynamo.reset()
    return torch.compile(function, backend=keep, fullgraph=True, **options), graphs


def test_it_stays_in_one_graph_and_serves_every_batch():
    w, b = exact(7, 8), exact(7)
    call, graphs = compiled(lambda x: torch.sin(up(torch.cos(x), w, b)))
    for batch in (5, 6, 7, 8, 9, 33):  # 7 and 8 are other sizes of the problem, too
        x = exact(batch, 8)
        wanted = torch.sin(torch.nn.functional.gelu(torch.cos(x) @ w.T + b))
        torch.testing.assert_close(call(x), wanted, rtol=1e-12, atol=1e-12)
    assert len(graphs) == 2, "one for the first size, and one for all others"
    assert all("polygen.up.default" in nodes for nodes in graphs)


def test_sizes_that_have_to_be_numbers_leave_the_others_dynamic():
    gated = pgt.op(lambda x, w: (x @ w.T)[:, ::2] * (x @ w.T)[:, 1::2], name="interleaved")
    call, graphs = compiled(lambda x, w: gated(x, w), dynamic=True)
    for m, n in ((5, 14), (6, 14), (14, 14), (5, 16)):
        x, w = exact(m, 8), exact(n, 8)
        torch.testing.assert_close(call(x, w), (x @ w.T)[:, ::2] * (x @ w.T)[:, 1::2])
    assert len(graphs) == 2, "one for each number of columns, of which every second is taken"


def test_dynamic_from_the_start_is_one_graph():
    call, graphs = compiled(lambda x, w, b: up(x, w, b), dynamic=True)
    for m, n, k in ((5, 7, 8), (6, 7, 8), (8, 8, 8), (12, 3, 4)):
        assert call(exact(m, k), exact(n, k), exact(n)).shape == (m, n)
    assert len(graphs) == 1


class Layer(torch.nn.Module):
    """A layer of an operator between PyTorch's own."""

    def __init__(self):
        super().__init__()
        self.w, self.b = torch.nn.Buffer(exact(7, 8)), torch.nn.Buffer(exact(7))

    def forward(self, x):
        return torch.sin(up(torch.cos(x), self.w, self.b))


def exported_layer():
    layer, batch = Layer(), torch.export.Dim("batch", min=2)
    return layer, torch.export.export(layer, (exact(5, 8),), dynamic_shapes=({0: batch},))


def test_exported_programs_hold_it():
    layer, exported = exported_layer()
    called = [node.target for node in exported.graph.nodes if node.op == "call_function"]
    assert called == [torch.ops.aten.cos.default, up.overload, torch.ops.aten.sin.default]
    for rows in (2, 5, 11):
        x = exact(rows, 8)
        torch.testing.assert_close(exported.module()(x), layer(x), rtol=0, atol=0)


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_keep_nothing_for_a_backward_pass(strict):
    layer = Layer()
    layer.w = torch.nn.Parameter(exact(7, 8))
    exported = torch.export.export(layer, (exact(5, 8),), strict=strict)
    assert up.overload in [node.target for node in exported.graph.nodes]


def test_exported_programs_are_written_and_read():
    layer, exported = exported_layer()
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    back = torch.export.load(file)
    assert up.overload in [node.target for node in back.graph.nodes]
    x = exact(11, 8)
    torch.testing.assert_close(back.module()(x), layer(x), rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="AOTInductor needs a C++ compiler")
def test_exported_programs_are_compiled_ahead_of_time(tmp_path):
    layer, exported = exported_layer()
    inductor = pytest.importorskip("torch._inductor")
    package = inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "layer.pt2"))
    compiled = inductor.aoti_load_package(package)
    for rows in (2, 11):
        x = exact(rows, 8)
        torch.testing.assert_close(compiled(x), layer(x), rtol=1e-12, atol=1e-12)


# --- launches, with a stand-in for the kernel
class Launches:
    """Takes the place of kernels, and of a device."""

    def __init__(self, monkeypatch):
        self.made, self.ran, self.read = [], [], 0
        monkeypatch.setattr("polygen.adapters.torch.running.KERNELS", self)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: -1)

    def find(self, program, sizes, schedule):
        self.made.append((program, sizes, schedule))

        def kernel(*operands):
            self.ran.append(operands)
            return operands[0]

        def launched(operands, found):
            assert found[0] == [one.data_ptr() for one in operands]
            self.read += 1
            return kernel(*operands)

        kernel.launched = launched
        return kernel


def test_a_kernel_is_looked_for_once_per_shape_stride_and_type(monkeypatch):
    launches = Launches(monkeypatch)
    run = pgt.op(lambda x, w: x @ w.T, name="looked_for")._runner.on_gpu
    x, w = torch.zeros(6, 8, dtype=BF16), torch.zeros(4, 8, dtype=BF16)
    for given in (x, x.clone(), x[:5], x.t().contiguous().t(), x.half().bfloat16(), x):
        assert run((given, w)) is given
    assert len(launches.made) == 3
    assert [program.inputs[0].order for program, *_ in launches.made] == [(0, 1), (0, 1), (1, 0)]
    assert launches.made[1][1] == {"D0": 5, "D1": 8, "D2": 4}


def test_what_a_call_reads_of_its_tensors_is_read_once(monkeypatch):
    from polygen.adapters.torch import running
    from polygen.runtime import arrays

    arrays.library(torch.Tensor)
    launches = Launches(monkeypatch)
    monkeypatch.setattr(running, "_has_several_devices", lambda: False)
    run = pgt.op(lambda x, w: x @ w.T, name="read_once")._runner.on_gpu
    x, w = torch.zeros(6, 8, dtype=BF16), torch.zeros(4, 8, dtype=BF16)
    counts = []
    for given in (x, x, x.clone(), x[:5], x[:5], x[:5], x):
        assert run((given, w)) is given
        counts.append(launches.read)
    assert counts == [0, 0, 1, 1, 1, 2, 2] and len(launches.made) == 2
    strided = torch.zeros(6, 16, dtype=BF16)[:, ::2]
    for _ in range(3):
        run((strided, w))
    assert launches.read == 2, "copies have forms of their own"


def test_strides_that_no_kernel_reads_are_copied(monkeypatch):
    launches = Launches(monkeypatch)
    run = pgt.op(lambda x, w: x @ w.T, name="strided")._runner.on_gpu
    w = torch.zeros(4, 8, dtype=BF16)
    for x in (torch.zeros(6, 16, dtype=BF16)[:, ::2], torch.zeros(1, 8, dtype=BF16).expand(6, 8)):
        run((x, w))
        assert launches.ran[-1][0].is_contiguous() and launches.ran[-1][1] is w
    sliced = torch.zeros(6, 64, dtype=BF16)[:, 16:24]
    run((sliced, w))
    assert launches.ran[-1][0] is sliced


# --- refusals
def test_tensors_on_the_cpu_are_refused():
    given = [torch.zeros(s, dtype=BF16) for s in ((5, 8), (7, 8), (7,))]
    with pytest.raises(ArgumentError, match=r"on the CPU .*x\.cuda\(\)"):
        up(*given)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64])
def test_types_that_no_kernel_reads_are_refused(dtype):
    name = str(dtype).rpartition(".")[2]
    with pytest.raises(DTypeError, match=rf"w: the tensor is {name} .*w\.to\(torch\.bfloat16\)"):
        up(meta(5, 8), meta(7, 8, dtype=dtype), meta(7))


@pytest.mark.parametrize(
    ("dtype", "match"),
    [
        (torch.float64, r"x is bf16, w\.T is f64"),
        (torch.int32, r"w\.T is s32 .*w\.T\.astype\(\"bf16\"\)"),
        (torch.bool, r"w\.T is bool .*w\.T\.astype\(\"bf16\"\)"),
    ],
)
def test_types_that_do_not_meet_are_refused(dtype, match):
    with pytest.raises(DTypeError, match=match):
        up(meta(5, 8), meta(7, 8, dtype=dtype), meta(7))


def test_sizes_that_do_not_fit_are_named():
    with pytest.raises(ShapeError, match=r"x has inner dim 8, w\.T has inner dim 9"):
        up(meta(5, 8), meta(7, 9), meta(7))


def test_tensors_without_axes_are_refused():
    with pytest.raises(ArgumentError, match=r"b: the tensor has no axes .*scalars=\(.b.,\)"):
        up(meta(5, 8), meta(7, 8), meta())


def test_another_number_of_results_is_refused():
    pair = pgt.op(lambda x, w: (x @ w, pg.relu(x @ w)), name="undeclared_pair")
    with pytest.raises(TraceError, match=r"returns 2 values, not 1 .*outputs=2"):
        pair(meta(5, 8), meta(8, 7))


def test_scalars_that_are_no_parameters_are_refused():
    with pytest.raises(SignatureError, match=r"scalars: no parameter is called c\. Parameters: x,"):
        pgt.op(lambda x, w: x @ w, scalars=("c",))
    with pytest.raises(TraceError, match="name"):
        pgt.op(lambda x, w: x @ w, name="not a name")


@pytest.fixture
def at_once(monkeypatch):
    """Operands of calls that go past PyTorch's dispatcher, with tensors on the CPU for a GPU's."""
    from polygen.adapters.torch import running, watching

    seen = []

    def on_gpu(runner, operands):
        seen.append(operands)
        return runner.on_cpu(operands)[0]

    monkeypatch.setattr(watching, "_is_there", lambda _: True)
    monkeypatch.setattr(running.Runner, "on_gpu", on_gpu)
    return seen


def test_calls_that_nobody_watches_go_past_the_dispatcher(at_once):
    operands = exact(3, 4), exact(5, 4), exact(5)
    found = up(*operands)
    assert len(at_once) == 1
    torch.testing.assert_close(found, up.overload(*operands))
    kept = torch.nn.Parameter(operands[2])
    with torch.no_grad():
        up(*operands[:2], kept)
    assert len(at_once) == 2


@pytest.mark.parametrize("watched", ["grad", "mode", "device", "autocast", "profiler", "vmap"])
def test_calls_that_somebody_watches_do_not(at_once, watched):
    from torch.utils._python_dispatch import TorchDispatchMode

    from polygen.adapters.torch import watching

    names = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(function.name())
            return function(*args, **(kwargs or {}))

    x, w, b = exact(3, 4), exact(5, 4), exact(5)
    if watched == "grad":
        assert up(x.requires_grad_(), w, b).requires_grad
    elif watched == "mode":
        with Watching():
            up(x, w, b)
        assert any(name.startswith("polygen::up") for name in names)
    elif watched == "device":
        with torch.device("cpu"):
            up(x, w, b)
    elif watched == "autocast":
        with autocast(BF16):
            assert torch.is_autocast_enabled("cuda")
            assert watching.is_watched()
    elif watched == "profiler":
        with torch.profiler.profile() as profile:
            up(x, w, b)
        assert any(event.name.startswith("polygen::up") for event in profile.events())
    else:
        many = exact(2, 3, 4)
        found = torch.func.vmap(up, in_dims=(0, None, None))(many, w, b)
        torch.testing.assert_close(found[1], up.overload(many[1], w, b))
    assert not at_once


def test_results_go_where_they_are_asked_for_however_often(monkeypatch):
    """Calls that are launched at once make results of their own; these do not."""
    from polygen.adapters.torch import running

    class Kernel:
        launched = staticmethod(lambda operands, found: "new")

        def __call__(self, *operands, out=None):
            if out is not None:
                out[0].fill_(operands[0].item())
            return out

    monkeypatch.setattr(running, "READS", {torch.Tensor: lambda operands: ([0], ["a form"])})
    runner = running.Runner(lambda operands: ("program", {}))
    monkeypatch.setattr(runner, "_prepare", lambda *given: (Kernel(), ()))
    x = torch.ones(1)
    place = torch.zeros(1)
    key = ((x.shape, x.stride(), x.dtype),)
    runner._ready.put((x.get_device(), key), (Kernel(), ()))
    for number in (3.0, 4.0, 5.0):
        runner.on_gpu((torch.full((1,), number),), (place,))
        assert place.item() == number
    assert runner.on_gpu((x,)) == "new"
