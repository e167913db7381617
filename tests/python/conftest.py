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
    # A change waits for these (`make test`): the same examples for the same commit.
    settings.register_profile("quick", deadline=None, max_examples=30, derandomize=True)
    settings.load_profile("octofold")
else:
    files = Path(__file__).parent.glob("test_*.py")
    collect_ignore = [file.name for file in files if "from hypothesis" in file.read_text()]

# These folders are about torch's layers and models, and hold FP8 in torch's tensors.
OF_TORCH = ["checkpoints", "distributed", "models", "nn"]
collect_ignore_glob = [] if importlib.util.find_spec("torch") else OF_TORCH
if not (importlib.util.find_spec("jax") and importlib.util.find_spec("jax_tvm_ffi")):
    collect_ignore_glob.append("test_jax*.py")


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    """On older GPUs a test that comes upon what these have no kernels for is skipped."""
    try:
        return (yield)
    except Exception as error:
        is_older = devices.on_gpu() and devices.gpu() == "cuda" and not devices.is_hopper()
        if is_older and (
            isinstance(error, octofold.UnsupportedError) or "expected a GPU" in str(error)
        ):
            pytest.skip(str(error))
        raise


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
    with jax.default_device(place), jax.default_matmul_precision("highest"):
        yield


@pytest.fixture(autouse=True)
def _needs_hopper(request):
    is_needed = request.node.get_closest_marker("needs_hopper") and devices.on_gpu()
    if is_needed and devices.gpu() == "cuda" and not devices.is_hopper():
        pytest.skip("Hopper's own kernels")


@pytest.fixture
def opcheck(monkeypatch):
    """check(call): torch.library.opcheck of each op that a call takes, and with the same arguments
    of the overload that writes into memory.

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
    from octofold._core.torch import TorchFramework
    from torch.utils._python_dispatch import TorchDispatchMode

    def zeroed(*arguments, **options):
        """For what no group has, and is left as the memory was."""
        return torch.empty_strided(*arguments, **options).zero_()

    monkeypatch.setattr(octofold._core.torch, "_empty_strided", zeroed)

    class Recorder(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.calls = []

        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            if op.namespace == "octofold":
                self.calls.append((op, args))
            return op(*args, **(kwargs or {}))

    def into_memory(row, arguments):
        """The arguments of the overload that writes."""
        count = len(row.inputs)
        inputs, options, dtype = arguments[:count], arguments[count:-1], arguments[-1]
        results = row.allocate(TorchFramework(inputs[0]), inputs, options, dtype)
        zeros = (None if result is None else result.zero_() for result in results)
        return *inputs, *zeros, *options, *([False] if row.in_place is not None else [])

    def check(call):
        with Recorder() as recorder:
            call()
        assert recorder.calls
        for op, arguments in recorder.calls:
            torch.library.opcheck(op, arguments)
            row = TABLE[op._schema.name.partition("::")[2]]
            if op._overloadname != "out":
                out = getattr(torch.ops.octofold, row.name).out
                torch.library.opcheck(out, into_memory(row, arguments))

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
