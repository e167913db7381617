"""Octofold as a local kernel of Hugging Face's `kernels`, with the real package: each test loads
the folder in a process of its own, where Octofold is not loaded otherwise."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("kernels.layer")  # `kernels` alone is a folder of the repository, too

import hf_kernel
import octofold

PACKAGE = Path(octofold.__file__).parent
BEGIN = """
import sys, pathlib, torch, kernels
folder = pathlib.Path(sys.argv[1])
torch.manual_seed(0)
def error(y, expected):
    return float((y.detach().double() - expected).norm() / expected.norm())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("kernels") / "octofold"
    hf_kernel.lay_out(PACKAGE, octofold.__version__, made)
    return made


def run(folder, code, check=True):
    command = [sys.executable, "-c", BEGIN + code, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, done.stderr
    return done


def test_a_product(folder):
    code = """
kernel = kernels.get_local_kernel(folder)
x, w = torch.randn(4, 256), torch.randn(128, 256)
a, b = kernel.quantize(x), kernel.quantize(w, "128x128")
y = kernel.gemm(a, b, out_dtype="float32")
exact = a.dequantize().double() @ b.dequantize().double().T
assert error(y, exact) < 1e-6, error(y, exact)
y = kernel.gemm_weight_only(x.bfloat16(), b)
assert error(y, x.bfloat16().double() @ b.dequantize().double().T) < 4e-3
import octofold
assert octofold.gemm is kernel.gemm
assert pathlib.Path(octofold.__file__).is_relative_to(folder)
"""
    run(folder, code)


def test_its_api(folder):
    code = """
kernel = kernels.get_local_kernel(folder)
assert set(kernel.__all__) <= set(dir(kernel))
for name in kernel.__all__:
    getattr(kernel, name)
print(*sorted(set(kernel.__all__) - {"layers"}))
"""
    assert run(folder, code).stdout.split() == sorted(octofold.__all__)


@pytest.mark.parametrize("mode", ["TRAINING", "TRAINING | kernels.Mode.TORCH_COMPILE"])
def test_a_layer_of_kernelize(folder, mode):
    code = f"""
@kernels.use_kernel_forward_from_hub("Projection")
class Projection(torch.nn.Linear):
    def forward(self, input):
        raise AssertionError("the layer's own forward")

model = torch.nn.Sequential(Projection(256, 128), torch.nn.ReLU(), Projection(128, 64))
layer = kernels.LocalLayerRepository(folder, layer_name="Linear")
with kernels.use_kernel_mapping({{"Projection": {{"cpu": layer}}}}):
    model = kernels.kernelize(model, mode=kernels.Mode.{mode}, device="cpu", use_fallback=False)
x = torch.randn(8, 256, requires_grad=True)
y = (torch.compile(model, fullgraph=True) if "COMPILE" in "{mode}" else model)(x)
y.sum().backward()
hidden = torch.nn.functional.linear(x, model[0].weight, model[0].bias).relu()
exact = torch.nn.functional.linear(hidden, model[2].weight, model[2].bias)
assert 0.01 < error(y, exact.detach().double()) < 0.1
assert model[0].weight.grad.abs().max() > 0 and x.grad.abs().max() > 0
"""
    run(folder, code)


def test_a_layer_with_an_fp8_weight(folder):
    code = """
@kernels.use_kernel_forward_from_hub("Frozen")
class Frozen(torch.nn.Module):
    def __init__(self, weight, scale):
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("weight_scale_inv", scale)
        self.bias = torch.nn.Parameter(torch.randn(200))

    def forward(self, x):
        raise AssertionError("the layer's own forward")

codes, scale = torch.randn(200, 256).to(torch.float8_e4m3fn), torch.rand(2, 2)
model = torch.nn.Sequential(Frozen(codes, scale))
layer = kernels.LocalLayerRepository(folder, layer_name="Fp8Linear")
with kernels.use_kernel_mapping({"Frozen": {"cpu": layer}}):
    model = kernels.kernelize(model, mode=kernels.Mode.TRAINING, device="cpu", use_fallback=False)
x = torch.randn(8, 256).bfloat16().requires_grad_()
y = model(x)
weight = codes.double() * scale.double().repeat_interleave(128, 0)[:200].repeat_interleave(128, 1)
assert error(y, x.detach().double() @ weight.T + model[0].bias.detach().double()) < 4e-3
y.sum().backward()
assert error(x.grad, torch.ones(8, 200).double() @ weight) < 4e-3
"""
    run(folder, code)


def test_the_digest_is_of_the_files(folder):
    code = """
from kernels._rust import Digest, DigestAlgorithm, Metadata
variants = sorted((folder / "build").iterdir())
for variant in variants:
    metadata = Metadata.read_from_file(variant / "metadata.json")
    metadata.digest.validate(Digest.hash_variant(DigestAlgorithm.SHA256, variant))
    print(variant.name.split("-")[2], metadata.backend.backend_type, metadata.backend.archs)
"""
    assert run(folder, code).stdout.splitlines() == [
        "cpu cpu None",
        "cu126 cuda ['7.5+PTX']",
        "cu130 cuda ['7.5+PTX']",
    ]


def test_the_variants_are_on_the_disk_once(folder):
    cpu, *others = sorted((folder / "build").iterdir())
    for other in others:
        library = other / "octofold" / "octofold_ffi.so"
        assert library.samefile(cpu / "octofold" / "octofold_ffi.so")
        assert not (other / "metadata.json").samefile(cpu / "metadata.json")


def test_beside_the_same_octofold(folder):
    code = """
import octofold
kernel = kernels.get_local_kernel(folder)
assert kernel.gemm is octofold.gemm
assert not pathlib.Path(octofold.__file__).is_relative_to(folder)
"""
    run(folder, code)


def test_beside_another_octofold(folder):
    code = """
import types
sys.modules["octofold"] = types.SimpleNamespace(__version__="9.9.9")
kernels.get_local_kernel(folder)
"""
    done = run(folder, code, check=False)
    sentence = (
        f"this kernel is octofold {octofold.__version__}, and octofold 9.9.9 is loaded already"
    )
    assert f"ImportError: {sentence}" in done.stderr


def test_from_a_wheel(tmp_path):
    wheel = tmp_path / "octofold-7.8.9-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in sorted(PACKAGE.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, Path("octofold") / path.relative_to(PACKAGE))
    script = [sys.executable, hf_kernel.__file__]
    command = [*script, str(wheel), str(tmp_path / "kernel")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"hf_kernel: {tmp_path / 'kernel'}, octofold 7.8.9\n"
    run(tmp_path / "kernel", "print(kernels.get_local_kernel(folder).gemm)")
    command = [*script, str(tmp_path / "no.whl")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"{tmp_path / 'no.whl'} is not there: make wheel" in done.stderr
