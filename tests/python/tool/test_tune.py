"""octofold tune, as far as it goes without a GPU: all but CUDA's graphs and events."""

import argparse
import json

import octofold
import pytest
from octofold import tuning
from octofold._sample_product import sample_product
from octofold_tool import tune

torch = pytest.importorskip("torch")

from octofold_tool.gpu import tune as gpu_tune  # noqa: E402
from octofold_tool.report import ToolError  # noqa: E402

CPU = torch.device("cpu")
PROBLEM = tuning.complete("gemm: m 64, n 256, k 512")
LARGE = tuning.complete("gemm: m 300, n 4096, k 7168")


class FakeMethod:
    """Each candidate takes the seconds that it is given by its name."""

    def __init__(self, seconds):
        self.seconds, self.names = seconds, []

    def new_call(self, product, name):
        def call():
            product.call()  # the CPU's one way

        call.candidate = name
        return call

    def sampler(self, calls):
        name = calls[0].candidate
        self.names.append(name)
        return lambda: self.seconds.get(name, 10e-6)


def tuned(seconds):
    method = FakeMethod(seconds)
    result = gpu_tune.tune(PROBLEM, 5, 132, method, CPU, method.new_call, min_bytes=400_000)
    return result, method


def test_the_fastest_is_found():
    planned = tuning.planned(PROBLEM)
    result, method = tuned({"128x64.w2.c1x1x1.b1.early": 4e-6, planned: 5e-6})
    assert result.candidate == "128x64.w2.c1x1x1.b1.early"
    assert (result.planned, result.microseconds) == (planned, pytest.approx(4.0))
    assert result.gain == pytest.approx(5 / 4)
    assert len(result.screened) == len(method.names) == len(set(method.names))
    assert set(method.names) <= set(tuning.candidates(PROBLEM))
    choice = result.choice(planned=False)
    assert (choice.candidate, choice.microseconds) == (result.candidate, result.microseconds)
    assert choice.problem == PROBLEM


def test_what_is_planned_is_always_timed():
    planned = tuning.planned(PROBLEM)
    result, _ = tuned({planned: 50e-6})  # the slowest: no finalist by itself
    assert result.planned_microseconds == pytest.approx(50)
    assert result.candidate != planned
    unchanged, _ = tuned({planned: 1e-6})
    assert (unchanged.candidate, unchanged.gain) == (planned, 1.0)


def test_the_last_rounds_may_be_of_what_lasts():
    """The planned one is slower in bursts, and faster back to back."""
    planned, other = tuning.planned(PROBLEM), "128x64.w2.c1x1x1.b1.early"
    bursts, lasting = FakeMethod({other: 4e-6, planned: 5e-6}), FakeMethod({planned: 6e-6})
    arguments = PROBLEM, 5, 132, bursts, CPU, bursts.new_call, 400_000
    result = gpu_tune.tune(*arguments, last=lasting)
    assert (result.candidate, result.microseconds) == (planned, pytest.approx(6.0))
    assert {other, planned} <= set(lasting.names)
    assert len(lasting.names) < len(bursts.names)


def test_a_wrong_candidate_is_a_fault(monkeypatch):
    method = FakeMethod({})

    def wrong(product, name):
        def call():
            product.call()
            if name.startswith("128x64"):
                product.out[0, 0] = torch.nan

        return call

    with pytest.raises(ToolError, match="a fault of ours"):
        gpu_tune.tune(PROBLEM, 5, 132, method, CPU, wrong, min_bytes=1)


@pytest.mark.parametrize(
    "problem",
    [
        "gemm: m 130, n 256, k 1024",
        "gemm: m 130, n 64, k 300, c float32, bias bfloat16",
        "gemm: m 130, n 64, k 320, a e5m2 tensor, b e4m3 channel, fast_accumulation, out float16",
        "gemm: m 130, n 64, k 1024, cast_from float32",
        "gemm: m 130, n 64, k 256, arriving_rows",
        "gated_gemm: m 130, n 256, k 1024, activation geglu",
        "gated_gemm: m 130, n 256, k 1024, groups 4 of rows, out e5m2",
        "grouped_gemm: m 130, n 64, k 1024, groups 4 of rows, bias float32",
        "grouped_gemm: m 130, n 64, k 256, groups 4 of rows, a e4m3 channel, b e4m3 channel, "
        "fast_accumulation",
        "grouped_gemm: m 130, n 64, k 256, groups 4 of masked rows, expected 70, bias bfloat16",
        "grouped_gemm: m 130, n 64, k 1536, groups 4 of k, b e4m3 1x128, out float32, c float32",
        "gemm_weight_only: m 130, n 64, k 1040, w e5m2 channel",
        "gemm_weight_only: m 9, n 64, k 1040, x e4m3 1x128, out float32, batch_invariant",
        "gemm_weight_only_gradient: m 130, n 64, k 256, w e4m3 1x128",
        "grouped_gemm_weight_only: m 130, n 64, k 256, groups 4 of rows, gathered, x float16, "
        "out float16",
        "grouped_gemm_weight_only: m 130, n 64, k 256, groups 4 of masked rows, expected 70",
        "grouped_gemm_weight_only_gradient: m 130, n 64, k 256, groups 4 of rows",
    ],
)
def test_every_kind_of_product_is_right(problem):
    """By the CPU's one way, and by the planner's names. What the call notes is the problem."""
    product = sample_product(problem, CPU)
    error, limit = gpu_tune.check_of(problem, product)
    with tuning.recording() as noted:
        assert error(product.call) <= limit
    assert noted == [tuning.complete(problem)]
    assert tuning.planned(problem) in tuning.candidates(problem)
    poisoned = product.out.data if isinstance(product.out, octofold.ScaledTensor) else product.out
    assert not error(lambda: poisoned.zero_()) <= limit


@pytest.mark.parametrize("problem", [PROBLEM, "gemm_weight_only: m 64, n 256, k 512"])
def test_batch_invariant_products_have_a_table_of_their_own(problem):
    plain = tuning.complete(problem), tuning.candidates(problem)
    octofold.set_batch_invariant(True)
    try:
        assert tuning.complete(problem) == f"{plain[0]}, batch_invariant"
        assert set(tuning.candidates(problem)) != set(plain[1])
    finally:
        octofold.set_batch_invariant(False)


def test_sensible_candidates_are_some_of_all():
    names = tuning.candidates(PROBLEM)
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

    def write(choices, gpu=0):
        chosen = {tuning.complete(each.problem): {"candidate": each.candidate} for each in choices}
        file.write_text(json.dumps({"products": chosen}))
        return file

    def measure(problems, rounds, sustained):
        other = "256x128.w2.c1x1x1.b1.early"
        times = (10.0, 12.0)
        return [
            gpu_tune.Tuned(
                problem, other, 10.0, 0.01, tuning.planned(problem), planned, 0.01, rounds
            )
            for problem, planned in zip(problems, times, strict=False)
        ]

    monkeypatch.setattr(tune, "choose_device", lambda name: name)
    monkeypatch.setattr(tune, "measure", measure)
    monkeypatch.setattr(tuning, "table", table)
    monkeypatch.setattr(tuning, "write", write)
    monkeypatch.setattr(tuning, "_gpu", lambda index: gpu)
    return file


def test_what_gains_is_kept(run, one_gpu, tmp_path):
    (tmp_path / "noted.txt").write_text(f"{PROBLEM}\n{LARGE}\n")
    problems = ("--problem", "gemm: n 256, m 64, k 512", "--problems", str(tmp_path / "noted.txt"))
    code, out, _ = run("tune", *problems, "--json", str(tmp_path / "x.json"))
    assert code == 0
    assert f"2 products in {one_gpu}, 1 by another kernel than planned" in out
    assert "as planned" in out
    assert "1.200" in out

    def names():
        products = json.loads(one_gpu.read_text())["products"]
        return [products[key]["candidate"] for key in sorted(products)]

    planned = tuning.planned(PROBLEM)
    assert names() == ["256x128.w2.c1x1x1.b1.early", planned]  # of 300 rows, and 64
    results = json.loads((tmp_path / "x.json").read_text())["results"]
    assert [result["problem"] for result in results] == [PROBLEM, LARGE]
    # Measured again, and no gain any more: it is planned as before, whatever other tables say.
    code, out, _ = run("tune", *problems, "--least-gain", "0.5")
    assert names() == [tuning.planned(LARGE), planned]

    shipped, own = run("tune", "--show")[1].splitlines()
    assert shipped == "45 products of this GPU come with octofold"
    assert own.startswith(f"2 products in {one_gpu}, written 20")
    assert run("tune", "--clear")[1] == f"removed {one_gpu}\n"
    assert run("tune", "--clear")[1] == "there is no table\n"
    assert f"no table: {one_gpu} does not exist\n" in run("tune", "--show")[1]


def test_a_dry_run_writes_nothing(run, one_gpu):
    code, _, _ = run("tune", "--problem", LARGE, "--dry-run")
    assert code == 0
    assert not one_gpu.exists()


def test_shares_are_numbers():
    assert tune.parse_share("0.02") == 0.02
    with pytest.raises(argparse.ArgumentTypeError):
        tune.parse_share("1")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(run):
    code, _, err = run("tune", "--problem", PROBLEM)
    assert code == 2
    assert "no GPU to measure on" in err
