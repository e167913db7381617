"""Links as they were measured: the fit, the file, and what plans make of it."""

import dataclasses
import json
import re

import pytest
from octofold_tool.parallel import transfers
from octofold_tool.parallel.links import KINDS, Exchange, Group, Link, Links, links_of
from octofold_tool.parallel.measured_links import SECTION, fitted, load_links
from octofold_tool.parallel.models import load_model, model_of
from octofold_tool.parallel.routing import copies_of_token
from octofold_tool.parallel.ways import BF16, FP8
from octofold_tool.report import ToolError
from parallel_support import DENSE, HEADS, HIDDEN, INNER, KV_HEADS

LLAMA = ("plan-parallel", "--model", "llama-3-70b", "--gpus", "8", "--memory", "141")
LLAMA += ("--state", "bf16", "--top", "1")
SIZES = [4.0**i for i in range(8, 16)]
LINES = [{"section": "environment", "case": "two GPUs"}] + [
    {"section": SECTION, "case": kind, "rate": 300e9 + i, "latency": 1e-5 * i}
    for i, kind in enumerate((*KINDS, "all-reduce"))
]


@pytest.fixture
def file(tmp_path):
    def write(lines):
        path = tmp_path / "links.jsonl"
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return path

    return write


@pytest.mark.parametrize("steps", [1, 7])
def test_a_rate_and_a_latency_come_back(steps):
    link = Link(371e9, 11e-6)
    found = fitted([(size, steps, size / link.rate + steps * link.latency) for size in SIZES])
    assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(link), rel=1e-6)


def test_errors_count_by_what_they_are_of():
    """A small exchange that takes twice as long moves the latency, though it is microseconds."""
    samples = [(size, 1, size / 371e9 + 11e-6) for size in SIZES]
    bytes_, steps, seconds = samples[0]
    assert fitted([(bytes_, steps, 2 * seconds), *samples[1:]]).latency > 11.5e-6
    # None fits better: the sum of squares grows if either number is another one.
    noisy = [(b, s, t * (1.2 if i % 2 else 0.9)) for i, (b, s, t) in enumerate(samples)]

    def squares(link):
        return sum(((b / link.rate + s * link.latency) / t - 1) ** 2 for b, s, t in noisy)

    best = fitted(noisy)
    for factor in (0.99, 1.01):
        assert squares(Link(best.rate * factor, best.latency)) > squares(best)
        assert squares(Link(best.rate, best.latency * factor)) > squares(best)


def test_noise_leaves_a_rate():
    """Small exchanges that take less than their share, then large ones."""
    assert fitted([(1e3, 1, 1e-6), (1e4, 1, 3e-5), (1e5, 1, 5e-4)]).latency == 0
    found = fitted([(1e3, 1, 1e-3), (1e6, 1, 1e-4)])
    assert found.rate > 0
    assert found.latency == 0


def test_each_kind_has_its_own_link():
    measured = {kind: Link(10.0 * (i + 1), float(i)) for i, kind in enumerate(KINDS)}
    links = Links(4, 1.0, 5.0, 100.0, 0.5, measured)
    inside, across = Group(4, 1), Group(2, 2)
    assert links.gather(inside, 400.0) == Exchange(300.0, 0.0, 30.0)
    assert links.reduce_scatter(inside, 400.0) == Exchange(300.0, 0.0, 15.0 + 3)
    assert links.all_to_all(300.0, 0.0) == Exchange(300.0, 0.0, 10.0 + 2)
    assert links.all_reduce(inside, 400.0).seconds == 30.0 + 18.0
    # Between hosts the network is what it was.
    assert links.gather(across, 400.0) == Exchange(200.0, 100.0, 20.0 + 0.5)
    assert links.all_to_all(0.0, 300.0) == Exchange(0.0, 300.0, 60.0 + 0.5)


def test_the_last_line_of_a_kind_counts(file):
    again = {**LINES[1], "rate": 5e9}
    found = load_links(file([*LINES, again]))
    assert tuple(found) == KINDS
    assert found["gather"] == Link(5e9, 0.0)
    assert found["all-to-all"] == Link(300e9 + 2, 2e-5)


def test_plans_take_measured_links(run, file, tmp_path):
    plans = []
    for lines in (None, [{**line, "rate": 450e9, "latency": 2e-6} for line in LINES], LINES):
        path = tmp_path / "plan.json"
        options = () if lines is None else ("--links", str(file(lines)))
        code, out, _ = run(*LLAMA, *options, "--json", str(path))
        assert code == 0
        plans.append((out, json.loads(path.read_text())))
    (plain, assumed), (_, same), (out, slower) = plans
    assert "450 GB/s each way inside" in plain
    assert "300 (gather), 300 (reduce-scatter), 300 (all-to-all) GB/s each way inside" in out
    assert "measured" not in assumed["links"]
    assert slower["links"]["measured"]["all-to-all"] == {"rate": 300e9 + 2, "latency": 2e-5}
    weights = [
        plan["schemes"][0]["ways"]["FP8"]["traffic"]["weights"] for plan in (assumed, same, slower)
    ]
    assert weights[1] == pytest.approx(weights[0])
    assert weights[2]["seconds"] == pytest.approx(weights[2]["nvlink_bytes"] / 300e9)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (LINES[:3], r"""case "all-to-all" .*, got \['gather', 'reduce-scatter'\]"""),
        (LINES[:1], """section "link" and case "gather" .*parallel_links.py writes.*, got None"""),
        ([{**LINES[1], "rate": 0}], "expected rate in bytes a second as a number above 0, got 0"),
        ([{**LINES[1], "latency": -1}], "expected latency in seconds as a number above 0, got -1"),
        ([{**LINES[1], "latency": None}], "expected latency in seconds .*, got None"),
        ([LINES[1], 3], "line 2: expected an object of JSON, got '3'"),
    ],
)
def test_faults_of_a_file_are_named(file, lines, message):
    path = file(lines)
    with pytest.raises(ToolError, match=f"--links: {re.escape(str(path))}.*{message}"):
        load_links(path)


def test_a_file_that_is_none(run, tmp_path):
    code, out, err = run(*LLAMA, "--links", "/no/such.jsonl")
    assert (code, out) == (2, "")
    assert "--links: /no/such.jsonl: No such file" in err
    binary = tmp_path / "links"
    binary.write_bytes(b"\xff\xfe")
    assert "--links: " in run(*LLAMA, "--links", str(binary))[2]


@pytest.mark.parametrize(("way", "weight", "row"), [(FP8, 1 + 4 / 16384, 1 + 1 / 32), (BF16, 2, 2)])
def test_single_exchanges_are_those_of_plans(way, weight, row):
    links = links_of(8)
    small = model_of(DENSE, "small")
    size = HIDDEN // HEADS
    weights = (HEADS + 2 * KV_HEADS) * size * HIDDEN + HIDDEN * HIDDEN + 3 * INNER * HIDDEN
    found = transfers.gather_of_weights(small, way, links, 4)
    assert found == links.gather(Group(4, 1), weights * weight + 2 * HIDDEN * 2)
    found = transfers.gather_of_inputs(small, way, links, 4, 2048)
    assert found == links.gather(Group(4, 1), 2048 * HIDDEN * row)
    deepseek = load_model("deepseek-v3")
    found = transfers.dispatch_of_tokens(deepseek, way, links, 8, 2048)
    copies, _ = copies_of_token(deepseek.routing, 8, 1)
    assert found.nvlink_bytes == pytest.approx(copies * 2048 * deepseek.hidden * row)
    assert found.network_bytes == 0
