"""octofold tune, as far as it goes without a GPU: all but CUDA's graphs and events."""

import argparse
import json
from dataclasses import asdict

import octofold
import pytest
from octofold import tuning
from octofold._core.library import library
from octofold.kernel_cache import GemmProblem
from octofold_tool import tune

torch = pytest.importorskip("torch")

from octofold_tool.gpu import tune as gpu_tune  # noqa: E402
from octofold_tool.products import GemmOptions  # noqa: E402
from octofold_tool.report import ToolError  # noqa: E402

CPU = torch.device("cpu")
OPTIONS = GemmOptions(("e4m3", "e4m3"), ("1x128", "128x128"), "bfloat16", rounds=5)
WANTED = gpu_tune.Wanted(OPTIONS)
SHAPE = (64, 256, 512)


def key_of(problem):
    return str(library.tuning_key(asdict(problem)))


class FakeMethod:
    """Each candidate takes the seconds that it is given by its name."""

    def __init__(self, seconds):
        self.seconds, self.names = seconds, []

    def new_call(self, case, name):
        def call():
            case.call(None)  # the CPU's one way

        call.candidate = name
        return call

    def sampler(self, calls):
        name = calls[0].candidate
        self.names.append(name)
        return lambda: self.seconds.get(name, 10e-6)


def tuned(seconds, shape=SHAPE):
    method = FakeMethod(seconds)
    result = gpu_tune.tune(shape, WANTED, 132, method, CPU, method.new_call, min_bytes=400_000)
    return result, method


def test_the_fastest_is_found():
    planned = tuning.planned(WANTED.problem(SHAPE))
    result, method = tuned({"128x64.w2.c1x1x1.b1.early": 4e-6, planned: 5e-6})
    assert result.candidate == "128x64.w2.c1x1x1.b1.early"
    assert (result.planned, result.microseconds) == (planned, pytest.approx(4.0))
    assert result.gain == pytest.approx(5 / 4)
    assert result.timed == len(method.names) == len(set(method.names))
    assert set(method.names) <= set(tuning.candidates(WANTED.problem(SHAPE)))
    choice = result.choice(WANTED, planned=False)
    assert (choice.candidate, choice.microseconds) == (result.candidate, result.microseconds)
    assert (choice.problem.m, choice.problem.b_granularity) == (64, "128x128")


def test_what_is_planned_is_always_timed():
    planned = tuning.planned(WANTED.problem(SHAPE))
    result, _ = tuned({planned: 50e-6})  # the slowest: no finalist by itself
    assert result.planned_microseconds == pytest.approx(50)
    assert result.candidate != planned
    unchanged, _ = tuned({planned: 1e-6})
    assert (unchanged.candidate, unchanged.gain) == (planned, 1.0)


def test_the_last_rounds_may_be_of_what_lasts():
    """The planned one is slower in bursts, and faster back to back."""
    planned, other = tuning.planned(WANTED.problem(SHAPE)), "128x64.w2.c1x1x1.b1.early"
    bursts, lasting = FakeMethod({other: 4e-6, planned: 5e-6}), FakeMethod({planned: 6e-6})
    arguments = SHAPE, WANTED, 132, bursts, CPU, bursts.new_call, 400_000
    result = gpu_tune.tune(*arguments, last=lasting)
    assert (result.candidate, result.microseconds) == (planned, pytest.approx(6.0))
    assert {other, planned} <= set(lasting.names)
    assert len(lasting.names) < len(bursts.names)


def test_a_wrong_candidate_is_a_fault(monkeypatch):
    method = FakeMethod({})

    def wrong(case, name):
        def call():
            case.call(None)
            if name.startswith("128x64"):
                case.arrays[-1][0, 0] = torch.nan

        return call

    with pytest.raises(ToolError, match="a fault of ours"):
        gpu_tune.tune(SHAPE, WANTED, 132, method, CPU, wrong, min_bytes=1)


@pytest.mark.parametrize("product", tune.PRODUCTS)
def test_every_kind_of_product_is_right_and_has_a_key(product):
    """By the CPU's one way, and by the planner's names."""
    groups = 4 if product in ("rows", "masked", "depth", "gated") else 1
    wanted = gpu_tune.Wanted(OPTIONS, product, groups)
    case = wanted.prepare((128, 256, 1024), CPU, 1)[0]
    assert case.error(lambda: case.call(None)) <= case.limit
    problem = wanted.problem((128, 256, 1024))
    assert tuning.planned(problem) in tuning.candidates(problem)
    key = key_of(problem)
    assert (f", groups {groups}" in key) == (groups > 1)


@pytest.mark.parametrize("product", ["gemm", "weight-only"])
def test_batch_invariant_products_have_a_table_of_their_own(product):
    wanted = gpu_tune.Wanted(OPTIONS, product)
    plain = wanted.problem(SHAPE)
    octofold.set_batch_invariant(True)
    try:
        invariant = wanted.problem(SHAPE)
    finally:
        octofold.set_batch_invariant(False)
    assert key_of(invariant) == f"{key_of(plain)}, batch-invariant"
    assert set(tuning.candidates(invariant)) != set(tuning.candidates(plain))


def test_sensible_candidates_are_some_of_all():
    names = tuning.candidates(WANTED.problem(SHAPE))
    for m in (1, 64, 4096):
        some = [name for name in names if gpu_tune.is_sensible(name, m)]
        assert 5 < len(some) < len(names)
    assert all(".swapped" in name for name in names if gpu_tune.is_sensible(name, 1))
    assert not any(".swapped" in name for name in names if gpu_tune.is_sensible(name, 4096))


@pytest.fixture
def one_gpu(monkeypatch, tmp_path):
    """A machine with an H200 whose products are the CPU's."""
    gpu = octofold.Gpu(0, "NVIDIA H200", 9, 0, 132, 1 << 37, octofold.Component(True, ""))
    file = tmp_path / "NVIDIA_H200.json"

    def table(gpu=0):
        products = len(json.loads(file.read_text())["products"]) if file.exists() else 0
        return tuning.Table(file, "", products, 45)

    def measure(shapes, wanted, sustained):
        planned = [tuning.planned(wanted.problem(shape)) for shape in shapes]
        other = "256x128.w2.c1x1x1.b1.early"
        return [
            gpu_tune.Tuned(*shape, other, 10.0, 0.01, name, 10.0 if m == 0 else 12.0, 0.01, 30)
            for m, (shape, name) in enumerate(zip(shapes, planned, strict=True))
        ]

    monkeypatch.setattr(tune, "why_not", lambda: None)
    monkeypatch.setattr(tune, "measure", measure)
    monkeypatch.setattr(tuning, "table", table)
    monkeypatch.setattr(tuning, "_gpu", lambda index: gpu)
    return file


def test_what_gains_is_kept(run, one_gpu, tmp_path):
    shapes = ("--shape", "64,256,512", "--shape", "300,4096,7168")
    code, out, _ = run("tune", *shapes, "--json", str(tmp_path / "x.json"))
    assert code == 0
    assert f"2 products in {one_gpu}, 1 by another kernel than planned" in out
    assert "as planned" in out
    assert "1.200" in out

    def names():
        products = json.loads(one_gpu.read_text())["products"]
        return [products[key]["candidate"] for key in sorted(products)]

    planned = tuning.planned(GemmProblem(64, 256, 512))
    assert names() == ["256x128.w2.c1x1x1.b1.early", planned]  # of 300 rows, and 64
    results = json.loads((tmp_path / "x.json").read_text())["results"]
    assert [result["m"] for result in results] == [64, 300]
    # Measured again, and no gain any more: it is planned as before, whatever other tables say.
    code, out, _ = run("tune", *shapes, "--least-gain", "0.5")
    assert names() == [tuning.planned(GemmProblem(300, 4096, 7168)), planned]

    shipped, own = run("tune", "--show")[1].splitlines()
    assert shipped == "45 products of this GPU come with octofold"
    assert own.startswith(f"2 products in {one_gpu}, written 20")
    assert run("tune", "--clear")[1] == f"removed {one_gpu}\n"
    assert run("tune", "--clear")[1] == "there is no table\n"
    assert f"no table: {one_gpu} does not exist\n" in run("tune", "--show")[1]


def test_a_dry_run_writes_nothing(run, one_gpu):
    code, _, _ = run("tune", "--shape", "300,4096,7168", "--dry-run")
    assert code == 0
    assert not one_gpu.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name what to measure"),
        (("--show", "--suite", "square"), "measure nothing"),
        (("--shape", "1,2"), "expected M,N,K"),
        (("--shape", "1,2,3", "--least-gain", "two"), "a share from 0 to 1"),
        (("--shape", "1,2,3", "--rounds", "2"), "a whole number"),
    ],
)
def test_bad_arguments(run, arguments, message):
    code, _, err = run("tune", *arguments)
    assert code == 2
    assert message in err


def test_shares_are_numbers():
    assert tune.parse_share("0.02") == 0.02
    with pytest.raises(argparse.ArgumentTypeError):
        tune.parse_share("1")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(run):
    code, _, err = run("tune", "--shape", "64,256,512")
    assert code == 2
    assert "no GPU to measure on" in err
