"""Casts on the GPU whose units' largest magnitudes are given: parts have the bits of the whole's
cast there, and of the CPU."""

import itertools

import octofold
import pytest
from octofold.ops import Activated, ActivationGradient, Gathered, Normed, Target, cast

from tests.gpu.gpu_support import DEVICE, ON_GPU, bits, needs_gpu, normal, surrounded_copy, torch
from tests.gpu.test_casts import RULES, SOURCES, assert_same_cast, spread_out, without_nans
from tests.python.casting import cast_side, sides_of

LONG = ("tensor", "channel")
SIZES = ((256, 512), (264, 400), (129, 77), (1, 1), (1000, 24), (40, 20_000))
every_rule = pytest.mark.parametrize("rule", RULES)
every_source = pytest.mark.parametrize("source", SOURCES)
every_unit = pytest.mark.parametrize("granularity", LONG)
both_ways = pytest.mark.parametrize("transpose", [False, True], ids=["rows", "transposed"])


def amax_of(x, granularity, transpose=False):
    """float32, NaN where there is one."""
    sizes = x.float().abs()
    if granularity == "tensor":
        return sizes.flatten().amax(0, keepdim=True)
    return sizes.amax(0 if transpose else 1)


def hostile(generator, units):
    """Largest magnitudes of which values are any multiple."""
    amax = torch.exp2(200 * torch.rand(units, generator=generator, device=DEVICE) - 120)
    specials = (0.0, -0.0, 1e-42, 1e-38, -3.0, 3e38, torch.inf, -torch.inf, torch.nan)
    for index, special in enumerate(specials[:units]):
        amax[index * units // len(specials)] = special
    return amax


def on_cpu(wanted):
    return {
        side: Target(target.format, amax=target.amax.cpu())
        if isinstance(target, Target)
        else target
        for side, target in wanted.items()
    }


def check(source, copy, wanted, **options):
    """Asserts that a cast is as on the CPU, where `copy` is the source."""
    actual, expected = cast(source, **wanted, **options), cast(copy, **on_cpu(wanted), **options)
    for (left, _), (right, _) in zip(sides_of(actual), sides_of(expected), strict=True):
        assert_same_cast(left, right)
    return actual


def assert_part(part, whole, place):
    """Asserts that a part has the whole's codes at `place`, and its scales (any NaN is a NaN)."""
    assert torch.equal(bits(part.data), bits(whole.data[place].contiguous()))
    assert torch.equal(bits(without_nans(part.scale)), bits(without_nans(whole.scale)))


@every_source
@every_rule
@both_ways
def test_parts_are_those_of_the_whole(rule, source, transpose, generator):
    for (rows, cols), granularity in itertools.product(SIZES, LONG):
        x = spread_out(generator, rows, cols, source)
        format = octofold.Format(
            granularity=granularity,
            rule=rule,
            dtype=("e4m3", "e5m2")[rows % 2],
            overflow=("saturate", "nan")[cols % 2],
            power_of_two=(None, True)[rows // 8 % 2],
        )
        whole = cast_side(x, format, transpose)
        amax = amax_of(x, granularity, transpose)
        by_columns = granularity == "channel" and not transpose
        size = cols if by_columns else rows
        for begin, end in itertools.pairwise((0, size // 16 * 8, size)):
            part = x[:, begin:end] if by_columns else x[begin:end]
            place = (
                (slice(None), slice(begin, end)) if by_columns or transpose else slice(begin, end)
            )
            assert_part(cast_side(part, format, transpose, amax=amax), whole, place)


@every_source
@every_rule
def test_any_amax_as_on_the_cpu(rule, source, generator):
    """Values far beyond it, whatever the granularity and the targets."""
    for (rows, cols), padding in itertools.product(((256, 384), (131, 77)), (0, 3)):
        x = surrounded_copy(spread_out(generator, rows, cols, source), padding)
        for overflow in ("saturate", "nan"):
            format = octofold.Format(granularity="channel", rule=rule, overflow=overflow)
            of_rows, of_columns = (Target(format, amax=hostile(generator, n)) for n in (rows, cols))
            blocks = octofold.Format(rule=rule, overflow=overflow)
            for wanted in (
                {"rows": of_rows},
                {"transposed": of_columns},
                {"rows": of_rows, "transposed": of_columns},
                {"rows": blocks, "transposed": of_columns},
            ):
                check(x, x.cpu(), wanted)
            format = octofold.Format(granularity="tensor", rule=rule, overflow=overflow)
            for one in hostile(generator, 12).split(1):
                both = Target(format, amax=one), Target(format, amax=one * 3)
                check(x, x.cpu(), dict(zip(("rows", "transposed"), both, strict=True)))
                check(x, x.cpu(), {"rows": both[0]})
                check(x, x.cpu(), {"transposed": both[1]})


@every_source
@pytest.mark.parametrize("rule", ["torchao", "vllm-per-token", "te"])
def test_beside_rows_of_blocks(rule, source, generator):
    """The casts of training: parts of tokens, whose columns have a scale over all."""
    x = spread_out(generator, 1032, 648, source)
    whole = cast(x, rows=rule, transposed=f"channel {rule}")
    amax = amax_of(x, "channel", True)
    for begin, end in itertools.pairwise((0, 128, 136, 1032)):
        wanted = {"rows": rule, "transposed": Target(f"channel {rule}", amax=amax)}
        casts = check(x[begin:end], x[begin:end].cpu(), wanted)
        assert_part(casts.transposed, whole.transposed, (slice(None), slice(begin, end)))
        assert torch.equal(bits(casts.rows.data), bits(whole.rows.data[begin:end]))


@every_source
@every_unit
@pytest.mark.parametrize("rule", ["torchao", "vllm-per-token"])
def test_columns(rule, granularity, source, generator):
    """Reduced by the kernel of codes, which is the one that reads."""
    x = normal(generator, 300, 392, dtype=source)
    amax = 2 * amax_of(x, granularity, True)
    rows = rule if granularity == "channel" else Target(f"tensor {rule}", amax=amax)
    wanted = {"rows": rows, "transposed": Target(f"{granularity} {rule}", amax=amax)}
    actual = check(x, x.cpu(), wanted, columns="both")
    expected = cast(x, rows=rule, columns="both")
    assert torch.equal(actual.sums, expected.sums)
    assert torch.equal(actual.amax, expected.amax)


@every_unit
@pytest.mark.parametrize("rule", ["torchao", "vllm-per-token"])
@pytest.mark.parametrize("name", ["activated", "gradient", "normed", "gathered"])
def test_every_source(name, rule, granularity, generator):
    """The cast of the matrix in memory, which its rows of FP32 tell the device's values of."""
    x = normal(generator, 264, 512, dtype="bfloat16")
    both = normal(generator, 264, 1024, dtype="bfloat16")
    places = torch.randperm(264, generator=generator, device=DEVICE).int()
    source = {
        "activated": Activated(both),
        "gradient": ActivationGradient(x, both),
        "normed": Normed(x),
        "gathered": Gathered(x, places),
    }[name]
    found = cast(source, rows=f"{granularity} {rule}", transposed=f"{granularity} {rule}")
    columns = cast(source, rows=rule, columns="amax").amax
    of_columns = columns.amax(0, keepdim=True) if granularity == "tensor" else columns
    target = Target(f"{granularity} {rule}", amax=of_columns)
    assert_part(cast(source, transposed=target).transposed, found.transposed, slice(None))
    if granularity == "tensor":
        casts = cast(source, rows=target, transposed=target)
        assert_part(casts.rows, found.rows, slice(None))
    else:
        casts = cast(source, rows=rule, transposed=target)
        plain = cast(source, rows=rule).rows
        assert torch.equal(bits(casts.rows.data), bits(plain.data))
    assert_part(casts.transposed, found.transposed, slice(None))


@every_unit
@pytest.mark.parametrize("rule", ["te", "vllm-per-token"])
def test_groups(rule, granularity, generator):
    x = spread_out(generator, 300, 264, "bfloat16")
    offsets = torch.tensor([0, 5, 5, 140, 290], dtype=torch.int32, device=DEVICE)
    amax = hostile(generator, 1 if granularity == "tensor" else 264)
    target = Target(f"{granularity} {rule}", amax=amax)
    rows = rule if granularity == "channel" else target
    casts = cast(x, rows=rows, transposed=target, offsets=offsets)
    on_host = on_cpu({"rows": rows, "transposed": target})
    expected = cast(x.cpu(), **on_host, offsets=offsets.cpu())
    assert_same_cast(casts.rows[:290], expected.rows[:290])
    scales = (without_nans(each.transposed.scale.cpu()) for each in (casts, expected))
    assert torch.equal(*map(bits, scales))
    for begin, end, column in ((0, 5, 0), (5, 140, 256), (140, 290, 512)):
        place = slice(column, column + (end - begin + 127) // 128 * 128)
        left, right = (each.transposed.data.cpu()[:, place] for each in (casts, expected))
        assert torch.equal(bits(left.contiguous()), bits(right.contiguous()))


@every_unit
@both_ways
@pytest.mark.parametrize("rule", ["torchao", "vllm-per-token"])
def test_stacks(rule, transpose, granularity, generator):
    for matrices, rows, cols in ((3, 136, 272), (2, 131, 77)):
        x = spread_out(generator, matrices * rows, cols, "float16").view(matrices, rows, cols)
        units = 1 if granularity == "tensor" else (rows, cols)[transpose]
        amax = hostile(generator, matrices * units)
        given = amax if granularity == "tensor" else amax.view(matrices, units)
        format = f"{granularity} {rule}"
        stack = cast_side(x, format, transpose, amax=given, matrices=matrices)
        expected = cast_side(x.cpu(), format, transpose, amax=given.cpu(), matrices=matrices)
        assert torch.equal(bits(stack.data.cpu()), bits(expected.data))
        scales = (without_nans(each.scale.cpu()) for each in (stack, expected))
        assert torch.equal(*map(bits, scales))


def test_strides_of_amax_and_empty(generator):
    x = normal(generator, 300, 272, dtype="bfloat16")
    amax = torch.rand((272, 3), generator=generator, device=DEVICE)[:, 1]
    check(x, x.cpu(), {"rows": "1x128", "transposed": Target("channel", amax=amax)})
    one = torch.full((1,), 5.0, device=DEVICE).expand(272)
    check(x, x.cpu(), {"transposed": Target("channel", amax=one)})
    for rows, cols in ((0, 16), (16, 0), (0, 0)):
        x = normal(generator, rows, cols)
        for granularity in LONG:
            units = (1, 1) if granularity == "tensor" else (rows, cols)
            for side, count in zip(("rows", "transposed"), units, strict=True):
                amax = torch.full((count,), 3.0, device=DEVICE)
                check(x, x.cpu(), {side: Target(granularity, amax=amax)})


@needs_gpu
def test_in_a_graph(generator):
    """The amax is read when the graph runs, as one that ranks have just reduced."""
    x = normal(generator, 256, 512, dtype="bfloat16")
    amax = torch.ones(512, device=DEVICE)
    wanted = {"rows": "1x128 torchao", "transposed": Target("channel torchao", amax=amax)}
    cast(x, **wanted)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        casts = cast(x, **wanted)
    for factor in (1, 3):
        amax.copy_(factor * amax_of(x, "channel", True))
        graph.replay()
        torch.cuda.synchronize()
        for (left, _), (right, _) in zip(
            sides_of(casts), sides_of(cast(x.cpu(), **on_cpu(wanted))), strict=True
        ):
            assert_same_cast(left, right)


@needs_gpu
def test_x_is_read_once(generator):
    """Beside rows of 1x128: three kernels, one of which is of tiles."""
    x = normal(generator, 256, 512, dtype="bfloat16")
    target = Target("channel torchao", amax=amax_of(x, "channel", True))
    cast(x, rows="1x128 torchao", transposed=target)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        cast(x, rows="1x128 torchao", transposed=target)
        torch.cuda.synchronize()
    names = [event.name for event in profile.events()]
    tiles, steps = (sum(kernel in name for name in names) for kernel in ("tile_cast", "scale_step"))
    if tiles + steps == 0:
        pytest.skip("the profiler saw no kernels")
    assert (tiles, steps) == (1, 2)


def test_device_is_that_of_x(generator):
    if not ON_GPU:
        pytest.skip("needs two devices")
    x = normal(generator, 16, 16)
    with pytest.raises(octofold.InvalidArgumentError, match=r"rows\.amax"):
        cast(x, rows=Target("tensor", amax=torch.ones(1)))
