"""octofold bench on a GPU, as far as it goes without one: all but CUDA's graphs and events."""

import math
import sys
import time
import types

import octofold
import pytest
from octofold._timing import CPU as BY_CLOCK
from octofold._timing import Method

torch = pytest.importorskip("torch")

from octofold_tool.gpu import bench, gemm, host, measuring, peers  # noqa: E402
from octofold_tool.products import GemmOptions  # noqa: E402
from octofold_tool.report import ToolError, write_json, write_png  # noqa: E402

CPU = torch.device("cpu")
PAIRS = (("tensor", "tensor"), ("channel", "channel"), ("1x128", "128x128"), ("1x128", "1x128"))
LIMITS = gemm.Limits(bytes_per_second=1e12, flops=1e15)


def options(pair=("1x128", "128x128"), out_dtype="bfloat16"):
    return GemmOptions(("e4m3", "e4m3"), pair, out_dtype, rounds=5)


def measure(shape, options, **arguments):
    return gemm.measure(shape, options, LIMITS, BY_CLOCK, CPU, **arguments)


@pytest.mark.parametrize("pair", PAIRS, ids=",".join)
@pytest.mark.parametrize("out_dtype", ["bfloat16", "float32", "float16"])
def test_measures_every_kind(pair, out_dtype):
    shape = (16, 128, 512)
    result = measure(shape, options(pair, out_dtype), min_bytes=100_000)
    codes = 16 * 512 + 128 * 512
    out = 16 * 128 * (4 if out_dtype == "float32" else 2)
    assert codes + out < result.bytes < codes + out + 10_000  # scales are few
    assert result.sets == 100_000 // result.bytes + 1
    assert result.octofold.relative_error < 3e-3
    assert result.share_of_limit == pytest.approx(
        max(result.bytes / 1e12, 2 * 16 * 128 * 512 / 1e15) * 1e6 / result.octofold.microseconds
    )
    # Peers that this torch cannot run on a CPU are named, BF16 it can.
    assert {*result.peers, *result.missing} == {peer.name for peer in peers.PEERS}
    assert result.peers["bfloat16"].relative_error < 3e-3
    assert result.ratios["bfloat16"] == pytest.approx(
        result.peers["bfloat16"].microseconds / result.octofold.microseconds
    )


@pytest.mark.parametrize("pair", PAIRS, ids=",".join)
def test_reference_is_the_product_of_all_dequantized_values(pair):
    x, w = torch.randn(30, 300), torch.randn(200, 300)
    product = peers.prepare_octofold(x, w, options(pair))
    for operand in (product.a, product.b):
        assert isinstance(operand, octofold.ScaledTensor)
        everything = operand.dequantize().double()
        rows = torch.randperm(len(everything))
        torch.testing.assert_close(
            measuring.float64_rows(operand, rows), everything[rows], rtol=1e-6, atol=0
        )


@pytest.mark.parametrize(
    ("fault", "message"), [(100.0, r"4,8,64: relative error"), (float("nan"), "relative error nan")]
)
def test_a_wrong_product_is_not_timed(monkeypatch, fault, message):
    true_gemm = octofold.gemm

    def one_element_off(*args, **kwargs):
        result = true_gemm(*args, **kwargs)
        result[0, 0] += fault
        return result

    monkeypatch.setattr(octofold, "gemm", one_element_off)
    with pytest.raises(ToolError, match=message):
        measure((4, 8, 64), options(), min_bytes=0)


def test_a_peer_that_is_wrong_is_left_out(monkeypatch):
    def zeros(a, b, out):
        out.zero_()

    monkeypatch.setattr(torch, "mm", zeros)
    result = measure((16, 16, 128), options(), min_bytes=0)
    assert "bfloat16" not in result.peers
    assert result.missing["bfloat16"] == "wrong here: relative error 1.0e+00 exceeds 5.0e-02"


@pytest.mark.parametrize(("pair", "m"), [(PAIRS[2], 8), (PAIRS[3], 8), (PAIRS[2], 1)])
def test_scales_as_torch_wants_them(pair, m):
    """aten's is_blockwise_1x128_scaling and is_blockwise_128x128_scaling check these strides."""
    a, b = (
        octofold.quantize(torch.randn(rows, 1024), granularity)
        for rows, granularity in zip((m, 272), pair, strict=True)
    )
    scale_a, scale_b = peers.torch_scale(a), peers.torch_scale(b)
    assert scale_a.shape == (m, 8)
    assert scale_a.stride(1) == m  # no matter what strides belong to a single row
    assert scale_b.stride() == ((8, 1) if pair[1] == "128x128" else (1, 272))
    torch.testing.assert_close(scale_b, b.scale)


def test_128x128_scales_that_cublaslt_would_pad_are_left_out():
    result = measure((16, 128, 640), options(), min_bytes=0)
    assert "pads rows" in result.missing["cublaslt_same_scales"]


def test_report(capsys, tmp_path):
    results = [measure(shape, options(), min_bytes=0) for shape in ((8, 128, 512), (64, 64, 256))]
    report = bench.GpuReport(options(), "a title", LIMITS, results)
    report.show()
    out = capsys.readouterr().out
    assert "8,128,512" in out
    assert "geometric mean" in out
    assert "1000 GB/s" in out
    assert "Missing: " in out
    write_json(tmp_path / "a.json", report.document())
    write_png(tmp_path / "a.png", report.chart())


def test_sweeps_are_lines(tmp_path):
    weights = ((128, 512), (64, 256))
    shapes = [(m, n, k) for n, k in weights for m in (1, 2, 4, 8, 16)]
    results = [measure(shape, options(), min_bytes=0) for shape in shapes]
    figure = bench.GpuReport(options(), "a title", LIMITS, results).chart()
    assert [axis.get_title() for axis in figure.axes] == ["N = 128, K = 512", "N = 64, K = 256"]
    for axis in figure.axes:
        labels = [line.get_label() for line in axis.lines]
        assert labels == list(bench.rates_of(results))  # those that could compute nothing are out
        assert list(axis.lines[0].get_xdata()) == [1, 2, 4, 8, 16]
        bfloat16 = axis.lines[labels.index("BF16")]
        assert list(bfloat16.get_ydata()) == [1.0] * 5
    ours = figure.axes[0].lines[0].get_ydata()
    assert list(ours) == pytest.approx([result.ratios["bfloat16"] for result in results[:5]])
    write_png(tmp_path / "rows.png", figure)
    rates = bench.rates_of(results[:5])
    assert rates["Octofold"] == [result.octofold.tflops for result in results[:5]]
    # One that is missing somewhere has a gap there.
    del results[1].peers["bfloat16"]
    assert [math.isnan(rate) for rate in bench.rates_of(results[:5])["BF16"]] == [
        *(False, True, False, False, False)
    ]


def test_deepgemm_is_a_peer_where_it_is_installed(monkeypatch):
    """A module of its name, which multiplies as it says, on the CPU."""
    x, w = torch.randn(14, 512), torch.randn(128, 512)

    def aligned(scale):  # columns begin at multiples of 16 bytes
        return torch.empty_strided(scale.shape, (1, 16)).copy_(scale)

    def fp8_gemm_nt(left, right, out):
        (a, scale_a), (b, scale_b) = left, right
        assert scale_a.stride() == (1, 16)
        assert scale_b.is_contiguous()
        wide = [
            octofold.ScaledTensor(a, scale_a, "1x128").dequantize(),
            octofold.ScaledTensor(b, scale_b, "128x128").dequantize(),
        ]
        out.copy_(wide[0] @ wide[1].T)

    module = types.ModuleType("deep_gemm")
    module.fp8_gemm_nt, module.get_mn_major_tma_aligned_tensor = fp8_gemm_nt, aligned
    monkeypatch.setitem(sys.modules, "deep_gemm", module)
    product = peers.prepare_deepgemm(x, w, options())
    assert measuring.error_of(product) < 3e-3
    with pytest.raises(ValueError, match="takes e4m3"):
        peers.prepare_deepgemm(x, w, options(("channel", "channel")))
    assert all(peer.name != "deepgemm" for peer in peers.PEERS)  # it is not installed here


def test_limits_are_measured():
    measured = gemm.measure_limits(BY_CLOCK, CPU, read_bytes=1 << 20, size=64)
    assert measured.bytes_per_second > 0
    assert measured.flops > 0
    assert LIMITS.seconds((10, 10, 10), 2_000_000) == pytest.approx(2e-6)
    assert LIMITS.seconds((1000, 1000, 1000), 1) == pytest.approx(2e-6)


def test_host_time(capsys):
    named = {"a": lambda: None, "b": lambda: time.sleep(1e-3)}
    times = host.measure(named, Method("host", rest=0.0, passes=2))
    assert times["a"].microseconds < 500 < times["b"].microseconds < 1e5
    host.show(times)
    assert "Host time" in capsys.readouterr().out


def test_host_time_of_layers(monkeypatch):
    times = host.measure(host.layer_calls(CPU), Method("host", rest=0.0, passes=1))
    assert all(time.microseconds > 0 for time in times.values())
    monkeypatch.setattr(host, "_MOST_ERROR", 1e-6)
    with pytest.raises(ToolError, match=r"Linear: relative error 0\.0"):
        host.layer_calls(CPU)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", [["gemm", "--device", "cuda"], ["host"]])
def test_no_gpu_is_said(command, run):
    code, _, err = run("bench", *command)
    assert code == 2
    assert "no GPU to measure on: " in err
