"""How hypothesis runs, where there is one: machines for the GPU tests need not have it. On which
devices tests run, and how torch's ops are checked."""

import importlib.util
from pathlib import Path

import octofold
import pytest

from tests.python import devices, gpu_fakes

if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    settings.register_profile("octofold", deadline=None, max_examples=200)
    settings.register_profile("quick", deadline=None, max_examples=30)  # of `make test`
    settings.load_profile("octofold")
else:
    files = Path(__file__).parent.glob("test_*.py")
    collect_ignore = [file.name for file in files if "from hypothesis" in file.read_text()]


def pytest_generate_tests(metafunc):
    if "each_device" in metafunc.fixturenames:
        names = ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)]
        metafunc.parametrize("each_device", names[: 1 + bool(devices.gpu())], indirect=True)


def pytest_collection_modifyitems(items):
    """Tests and parameters for the CPU only are none for a GPU, and the other way round."""

    def is_wanted(item):
        absent = "cpu_only" if item.get_closest_marker("gpu") else "gpu_only"
        return not item.get_closest_marker(absent)

    items[:] = filter(is_wanted, items)


@pytest.fixture(scope="module")
def each_device(request):
    """Computes the operations of tests.python.devices on the "cpu" or the "gpu"."""
    devices.Current.on_gpu = request.param == "gpu"
    yield request.param
    devices.Current.on_gpu = False


@pytest.fixture
def tensors_there(each_device):
    """New tensors are on the device of the test."""
    torch = pytest.importorskip("torch")
    with torch.device(devices.device()):
        yield


@pytest.fixture
def programs_there(each_device):
    """JAX's programs run on the device of the test, where its own products are not rounded to
    TF32."""
    jax = pytest.importorskip("jax")
    platform = "gpu" if devices.on_gpu() and devices.gpu() == "cuda" else "cpu"
    try:
        place = jax.devices(platform)[0]
    except RuntimeError as error:
        pytest.skip(f"JAX has no {platform}: {error}")
    if platform == "gpu" and not octofold.info().gpus[0].operations["products"].available:
        pytest.skip("no products")
    with jax.default_device(place), jax.default_matmul_precision("highest"):
        yield


@pytest.fixture(autouse=True)
def _needs_hopper(request):
    is_needed = request.node.get_closest_marker("needs_hopper") and devices.on_gpu()
    if is_needed and devices.gpu() == "cuda" and not devices.is_hopper():
        pytest.skip("Hopper's own kernels")


@pytest.fixture
def opcheck(monkeypatch):
    """check(op, arguments, dtype): torch.library.opcheck of an op by the arguments of its overload
    `out` (inputs, results, options), and of the one that returns its results by theirs; dtype: of
    the results, None: that of the first.

    opcheck compares inputs before and after by torch.allclose: that has no FP8, so here it compares
    FP8 by bytes."""
    torch = pytest.importorskip("torch")
    allclose = torch.allclose

    def allclose_with_fp8(left, right, **options):
        if left.dtype.itemsize == 1:
            return torch.equal(left.view(torch.uint8), right.view(torch.uint8))
        return allclose(left, right, **options)

    monkeypatch.setattr(torch, "allclose", allclose_with_fp8)
    octofold.ops.convert_dtype(
        torch.zeros(1), "e4m3"
    )  # the first call with a tensor registers the ops
    from octofold._core.ops import TABLE
    from octofold._core.torch import DTYPES

    names = {dtype: name for name, dtype in DTYPES.items()}

    def zeroed(*arguments, **options):
        """For what no group has, and is left as the memory was."""
        return torch.empty_strided(*arguments, **options).zero_()

    monkeypatch.setattr(octofold._core.torch, "_empty_strided", zeroed)

    def check(op, arguments, dtype=None):
        row = TABLE[op.__name__]
        first, last = len(row.inputs), len(row.inputs) + len(row.results)
        inputs, results = arguments[:first], arguments[first:last]
        options = arguments[last : last + len(row.options)]
        torch.library.opcheck(op.out, arguments)
        if dtype is None:
            dtype = names[next(result for result in results if result is not None).dtype]
        torch.library.opcheck(op.default, (*inputs, *options, dtype))
        returned = op.default(*inputs, *options, dtype)
        returned = returned if isinstance(returned, tuple) else (returned,)
        for index, new in zip(row.returned, returned, strict=True):
            given = results[index]
            if given is None:
                assert new.dtype == torch.bool
            else:
                assert (new.shape, new.dtype) == (given.shape, given.dtype)

    return check


@pytest.fixture
def pretend(monkeypatch):
    """pretend("8.0"): layers choose from now on as on a GPU of this compute capability."""
    yield lambda name: gpu_fakes.pretend(monkeypatch, name)
    gpu_fakes.forget()


@pytest.fixture
def log():
    """The messages of the library's log so far."""
    messages = []
    octofold.set_log_handler(lambda level, message: messages.append(message))
    yield messages
    octofold.set_log_handler(None)
