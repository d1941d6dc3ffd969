from __future__ import annotations

import itertools
import sys
from types import ModuleType, SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from runtime_samples import Device, cupy_array

from polygen.errors import ArgumentError
from polygen.frontend import dtypes
from polygen.runtime import dlpack, outputs
from polygen.runtime.arrays import READS, accepts, describe, in_order, library, numpy_dtype, read
from polygen.runtime.driver import foreign_stream

cupy = pytest.importorskip("cupy")


class Tensor:
    """What `describe` reads of a torch.Tensor."""

    def __init__(self, shape, strides, dtype="bfloat16", device="cuda", index=0, pointer=4096):
        self.shape, self._strides, self._pointer = shape, strides, pointer
        self.requires_grad, self.negated = False, False
        self.dtype, self.device = f"torch.{dtype}", SimpleNamespace(type=device, index=index)

    def stride(self):
        return self._strides

    def data_ptr(self):
        return self._pointer

    def is_neg(self):
        return self.negated


Tensor.__module__ = "torch"


def test_a_cupy_array():
    view = describe(cupy_array((4, 6), strides=(40, 4), device=1))
    assert (view.pointer, view.shape, view.strides) == (0x10000, (4, 6), (10, 1))
    assert (view.dtype, view.device, view.library) == (dtypes.F32, 1, "cupy")


def test_a_cupy_bfloat16_array():
    assert describe(cupy_array((4,), dtype=ml_dtypes.bfloat16)).dtype is dtypes.BF16


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bfloat16", dtypes.BF16),
        ("float8_e4m3fn", dtypes.E4M3),
        ("uint8", dtypes.U8),
        ("int16", "int16"),
    ],
)
def test_a_torch_tensor(name, expected):
    view = describe(Tensor((4, 6), (1, 4), name, index=2))
    assert (view.pointer, view.shape, view.strides) == (4096, (4, 6), (1, 4))
    assert (view.dtype, view.device, view.library) == (expected, 2, "torch")


def test_a_torch_parameter_goes_the_same_way():
    class Parameter(Tensor):
        pass

    assert library(Parameter) == "torch" and Parameter in READS


def test_parameters_among_tensors_are_read_at_once():
    class Parameter(Tensor):
        pass

    library(Tensor)
    mixed = (Parameter((4, 6), (6, 1)), Tensor((4, 6), (6, 1), pointer=8192))
    assert READS[Tensor](mixed[::-1]) is None, "nobody has met such a parameter"
    library(Parameter)
    for kind, arrays in ((Parameter, mixed), (Tensor, mixed[::-1])):
        pointers, forms = READS[kind](arrays)
        assert pointers == [one._pointer for one in arrays] and forms == read(arrays)[1]
    assert READS[Tensor]((mixed[1], cupy_array((4, 6)))) is None


def test_the_cuda_array_interface():
    device = Device()
    array = SimpleNamespace(
        __cuda_array_interface__={
            "shape": (3, 5), "typestr": "<f2", "data": (64, True), "strides": (16, 2), "version": 3,
            "stream": 9,
        }
    )  # fmt: skip
    view = describe(array, stream=5, driver=device.driver)
    assert (view.pointer, view.strides, view.dtype, view.readonly) == (64, (8, 1), dtypes.F16, True)
    assert device.waits == [(9, 5)] and view.keepalive is array
    array.__cuda_array_interface__ |= {"strides": None, "stream": 1}
    assert describe(array, stream=0, driver=device.driver).strides == (5, 1)
    assert device.waits == [(9, 5)]  # 1 names the same stream as 0


class OnDevice:
    """A NumPy array that claims to be on CUDA device 3."""

    def __init__(self, array):
        self.array, self.asked = array, []

    def __dlpack__(self, stream=None):
        self.asked.append(stream)
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return (2, 3)


@pytest.mark.parametrize(("stream", "asked"), [(None, None), (0, 1), (77, 77)])
def test_dlpack(stream, asked):
    array = np.arange(24, dtype=np.float16).reshape(4, 6)[1:, ::2]
    given = OnDevice(array)
    view = describe(given, stream=stream)
    assert view.pointer == array.ctypes.data
    assert (view.shape, view.strides, view.dtype) == ((3, 3), (6, 2), dtypes.F16)
    assert given.asked == [asked] and type(view.keepalive).__name__ == "PyCapsule"


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (2, 0, 3, 1), (3, 2, 1, 0)])
def test_arrays_of_rank_4(axes):
    array = np.zeros((3, 5, 7, 9), np.float16)[:, 1::2, :, 2:].transpose(axes)
    wanted = (array.shape, tuple(step // 2 for step in array.strides))
    for view in (
        describe(OnDevice(array)),
        describe(cupy_array(array.shape, strides=array.strides, dtype="f2")),
        describe(Tensor(array.shape, wanted[1])),
    ):
        assert (view.shape, view.strides) == wanted
    assert describe(OnDevice(np.zeros((2, 3, 4, 5), "f4"))).strides == (60, 20, 5, 1)


def test_reading_a_capsule_does_not_consume_it():
    array = np.ones(3, np.float32)
    before = sys.getrefcount(array)
    found = dlpack.read(OnDevice(array), None)
    assert sys.getrefcount(array) > before
    del found
    assert sys.getrefcount(array) == before


def test_dlpack_names_unknown_types_instead_of_guessing():
    assert describe(OnDevice(np.ones(2, np.complex64))).dtype == "complex64"


def test_storage_decides_what_is_accepted():
    assert accepts(dtypes.TF32, dtypes.F32) and accepts(dtypes.F32, dtypes.F32)
    assert accepts(dtypes.E4M3, "uint8") and accepts(dtypes.E5M2, "uint8")
    assert accepts(dtypes.E4M3, dtypes.E4M3) and not accepts(dtypes.E4M3, dtypes.E5M2)
    assert not accepts(dtypes.S8, "uint8") and not accepts(dtypes.BF16, "uint16")
    assert not accepts(dtypes.F16, dtypes.BF16)


def test_how_cupy_keeps_each_dtype():
    assert numpy_dtype(dtypes.E4M3) == np.uint8
    assert numpy_dtype(dtypes.BF16) == ml_dtypes.bfloat16
    assert numpy_dtype(dtypes.TF32) == np.float32


@pytest.mark.parametrize(
    "array",
    [
        np.ones(3),
        Tensor((3,), (1,), device="cpu", index=None),
        SimpleNamespace(__dlpack__=lambda: None, __dlpack_device__=lambda: (1, 0)),
    ],
)
def test_host_memory_is_refused(array):
    with pytest.raises(ArgumentError, match=r"x: the array is in host memory.*cupy\.asarray"):
        describe(array, name="x")


def test_other_objects_are_refused():
    with pytest.raises(ArgumentError, match="list is not an array in device memory"):
        describe([1, 2], name="x")


def test_a_refused_export_says_why():
    class Refuses(OnDevice):
        def __dlpack__(self, stream=None):
            raise BufferError("sparse")

    with pytest.raises(ArgumentError, match=r"through DLPack \(sparse\)"):
        describe(Refuses(None))


@pytest.mark.parametrize(
    ("stream", "pointer"),
    [
        (None, 55),
        (7, 7),
        (SimpleNamespace(ptr=8), 8),
        (SimpleNamespace(cuda_stream=9), 9),
        (SimpleNamespace(__cuda_stream__=lambda: (0, 10)), 10),
        (SimpleNamespace(__cuda_stream__=(0, 11)), 11),
    ],
)
def test_streams(stream, pointer):
    assert outputs.stream_pointer(stream, driver=Device().driver) == pointer


@pytest.mark.parametrize("stream", ["main", True, 1.5])
def test_what_is_no_stream_is_refused(stream):
    with pytest.raises(ArgumentError, match="not a CUDA stream"):
        outputs.stream_pointer(stream, driver=Device().driver)


def test_torch_outputs_and_stream(monkeypatch):
    made = []

    class Made(SimpleNamespace):
        def permute(self, axes):
            return ("permuted", axes)

    def empty(shape, *, dtype, device):
        made.append((shape, dtype, device))
        return Made()

    fake = ModuleType("torch")
    fake.empty, fake.bfloat16 = empty, "bf16"
    fake.device = lambda kind, index: f"{kind}:{index}"
    fake._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda device: 100 + device)
    monkeypatch.setitem(sys.modules, "torch", fake)
    outputs.allocator("torch", 1, (4, 8), dtypes.BF16, (0, 1))()
    assert made == [((4, 8), "bf16", "cuda:1")]
    turned = outputs.allocator("torch", 0, (4, 8), dtypes.BF16, (1, 0))()
    assert made[-1][0] == (8, 4) and turned == ("permuted", (1, 0))
    assert outputs.stream_pointer(None, "torch", 1, Device().driver) == 101


def test_torch_outputs_are_made_as_its_generated_code_makes_them(monkeypatch):
    made = []
    fake = ModuleType("torch")
    fake.float16 = "f16"
    fake.Tensor = SimpleNamespace(data_ptr=lambda array: array + 1)
    guards = SimpleNamespace(_empty_strided_cuda=lambda *args: made.append(args) or 41)
    fake._C = SimpleNamespace(_dynamo=SimpleNamespace(guards=guards))
    monkeypatch.setitem(sys.modules, "torch", fake)
    for order in ((0, 1, 2), (2, 0, 1)):
        array = outputs.allocator("torch", 0, (2, 3, 5), dtypes.F16, order)()
        assert outputs.address_reader("torch")(array) == 42
    assert made == [((2, 3, 5), (15, 5, 1), "f16"), ((2, 3, 5), (3, 1, 6), "f16")]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::3])
@pytest.mark.parametrize("library", ["cupy", "numba"])
def test_outputs_of_rank_4_in_any_order(monkeypatch, order, library):
    monkeypatch.setattr(cupy, "empty", lambda shape, dtype: np.empty(shape, dtype))
    made = outputs.allocator(library, 0, (2, 3, 5, 7), dtypes.F16, order)()
    assert made.shape == (2, 3, 5, 7) and made.dtype == np.float16
    assert made.transpose(order).flags.c_contiguous


def test_arrays_in_an_order():
    array = np.arange(120).reshape(2, 3, 4, 5)
    for order in itertools.permutations(range(4)):
        found = in_order(array, order)
        assert found.transpose(order).flags.c_contiguous
        np.testing.assert_array_equal(found, array)
        apart = in_order(array, order, 8)
        np.testing.assert_array_equal(apart, array)
        assert apart.strides[order[-1]] == 8 and apart.strides[order[-2]] == 8 * 8
        between = apart.base.view(array.dtype)[..., array.shape[order[-1]] :]
        assert (between == -1).all(), "all bits are set"
        assert in_order(array, order, 2).strides == found.strides
    assert np.shares_memory(in_order(array.T, (3, 2, 1, 0)), array)


def test_streams_of_others_are_cupys_the_way_its_version_documents(recwarn):
    found = foreign_stream(cupy, 0x1230)
    assert found.ptr == 0x1230
    assert not recwarn.list, "nothing that CuPy is going to remove"
    older = SimpleNamespace(cuda=SimpleNamespace(Stream=object, ExternalStream=lambda at: at + 1))
    assert foreign_stream(older, 4) == 5


class TorchLike(Tensor):
    """A tensor of a library that records gradients."""

    def __init__(self, *arguments, requires_grad, **options):
        super().__init__(*arguments, **options)
        self.requires_grad = requires_grad


def test_a_view_with_the_other_sign_is_refused_and_has_forms_of_its_own():
    plain, other = (Tensor((4, 6), (6, 1)) for _ in range(2))
    other.negated = True
    with pytest.raises(ArgumentError, match=r"x: .*the other sign.*x\.resolve_neg\(\)"):
        describe(other, name="x")
    describe(plain)
    assert read([plain]) != read([other]) and read([plain])[0] == read([other])[0]


@pytest.fixture
def recording(monkeypatch):
    """Whether the stand-in for PyTorch records gradients; nothing imports the real one."""
    state, fake = {"on": True}, ModuleType("torch")
    fake.is_grad_enabled = lambda: state["on"]
    monkeypatch.setitem(sys.modules, "torch", fake)
    return state


def test_a_tensor_without_gradients_never_asks_pytorch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    describe(TorchLike((4, 6), (6, 1), requires_grad=False))


def test_under_no_grad_a_parameter_is_an_array_like_others(recording):
    recording["on"] = False
    assert describe(TorchLike((4, 6), (6, 1), requires_grad=True)).shape == (4, 6)


def test_forms_tell_tensors_that_record_gradients(recording):
    library(TorchLike)
    forms = {}
    for requires in (False, True):
        forms[requires] = read([TorchLike((4, 6), (6, 1), requires_grad=requires)])[1]
    assert forms[True] != forms[False], "a prepared launch is no way around the refusal"
    recording["on"] = False
    without = read([TorchLike((4, 6), (6, 1), requires_grad=True)])[1]
    assert without == forms[False]
