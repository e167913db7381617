"""octofold plan-parallel: its arguments, what it prints and writes, and the page that shows it."""

import contextlib
import dataclasses
import json
import re
import shlex

import pytest
from octofold_tool.__main__ import main
from octofold_tool.parallel import rates
from project_support import REPOSITORY

LLAMA = ("plan-parallel", "--model", "llama-3-70b", "--gpus", "64")
PAGE = REPOSITORY / "docs" / "distributed" / "on-paper.md"
PARTS = {"products", "casts", "attention", "elementwise", "optimizer"} | {
    f"{kind}_exposed" for kind in ("tensor", "experts", "fsdp")
}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpus", "8"), "required: --model"),
        (("--model", "llama-3-70b"), "required: --gpus"),
        (("--model", "llama-4", "--gpus", "8"), "deepseek-v3, llama-3-70b or the path"),
        (("--model", "/tmp", "--gpus", "8"), "config.json, got '/tmp'"),
        ((*LLAMA[1:], "--gpus", "0"), "--gpus: expected a whole number of at least 1, got '0'"),
        ((*LLAMA[1:], "--gpus", "12"), "--gpus: expected whole hosts of 8, got 12"),
        ((*LLAMA[1:], "--nvlink", "-1"), "--nvlink: expected a number above 0, got '-1'"),
        ((*LLAMA[1:], "--network", "inf"), "--network: expected a number above 0, got 'inf'"),
        ((*LLAMA[1:], "--tokens", "1.5"), "--tokens: expected a whole number"),
        ((*LLAMA[1:], "--tokens", "100"), "no scheme divides: a micro batch"),
        ((*LLAMA[1:], "--state", "int8"), "invalid choice: 'int8'"),
        ((*LLAMA[1:], "--rates", "/no/such.json"), "/no/such.json: No such file"),
        ((*LLAMA[1:], "--rates", __file__), "expected JSON"),
        ((*LLAMA[1:], "--json", "/no/such/x.json"), "/no/such does not exist"),
    ],
)
def test_errors_are_one_line(run, arguments, message):
    code, out, err = run("plan-parallel", *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err


def test_measuring_needs_a_gpu(run, monkeypatch):
    monkeypatch.setattr("octofold_tool.gpu.device.why_not", lambda: "the driver shows no GPU")
    code, _, err = run(*LLAMA, "--rates", "measure")
    assert code == 2
    assert "--rates measure: no GPU to measure on: the driver shows no GPU" in err


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ([], "expected an object, got list"),
        ({}, "num_attention_heads: expected a whole number of at least 1, got None"),
        ({"vocab_size": "many"}, "vocab_size: expected a whole number of at least 1, got 'many'"),
        ({"n_routed_experts": 8, "num_experts_per_tok": 9}, "got 9 of 8 in 1 of 1"),
        ({"num_experts": 8, "decoder_sparse_step": 2}, "decoder_sparse_step: expected 1"),
    ],
)
def test_faults_of_a_config_are_named(run, tmp_path, config, message):
    base = {
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "vocab_size": 512,
        "num_attention_heads": 2,
        "intermediate_size": 512,
    }
    if config == {}:
        del base["num_attention_heads"]
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**base, **config} if isinstance(config, dict) else config))
    code, _, err = run("plan-parallel", "--model", str(path), "--gpus", "8")
    assert code == 2
    assert message in err


def test_a_model_of_ones_own(run, tmp_path):
    config = {
        "hidden_size": 1024,
        "num_hidden_layers": 2,
        "vocab_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "intermediate_size": 2048,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, out, _ = run("plan-parallel", "--model", str(tmp_path), "--gpus", "2", "--top", "1")
    assert code == 0
    parameters = 2 * 1024 * 1024 + 2 * (4 * 1024**2 + 3 * 2048 * 1024 + 2048) + 1024
    assert f"{tmp_path.name}: {parameters / 1e9:.1f} billion parameters" in out


def test_rates_are_measured_where_there_is_a_gpu(run, monkeypatch, tmp_path):
    pytest.importorskip("torch")
    slow = dataclasses.replace(rates.load_rates(rates.COMMITTED), machine="a slow one", copy=1e9)
    monkeypatch.setattr("octofold_tool.gpu.device.why_not", lambda: None)
    monkeypatch.setattr(
        "octofold_tool.parallel.measure_rates.measure", lambda shown: [*shown([1])] and slow
    )
    path = tmp_path / "plan.json"
    code, out, _ = run(*LLAMA, "--rates", "measure", "--json", str(path))
    assert code == 0
    assert "Rates: a slow one" in out
    assert rates.load_rates(path) == slow


def test_people_see_schemes_time_and_bytes(run):
    code, out, err = run(*LLAMA, "--top", "2")
    assert (code, err) == (0, "")
    for words in (
        *("70.6 billion parameters", "450 GB/s each way inside, 50 between"),
        *("Rates: one NVIDIA H200", "24 of 96 schemes fit 80 GB", "BF16's own best", "× BF16"),
        *("products", "FSDP: gather of weights", "Left out: 58, a micro batch of a tensor group"),
    ):
        assert words in out
    assert len(re.findall(r"^ (?:TP|FSDP|DP) .* micro .*%", out, re.MULTILINE)) == 2


def test_where_nothing_fits_it_says_so(run):
    code, out, _ = run(*LLAMA, "--memory", "10", "--top", "1")
    assert code == 0
    assert "0 of 96 schemes fit 10 GB: the least takes" in out
    assert " !" in out


def test_json_has_bytes_and_seconds(run, tmp_path):
    path = tmp_path / "plan.json"
    assert run(*LLAMA, "--top", "3", "--overlap-tensor", "--json", str(path))[0] == 0
    document = json.loads(path.read_text())
    assert set(document) == {
        *("environment", "command", "model", "settings", "links", "flops", "left_out"),
        *("schemes", "rates"),
    }
    assert document["links"]["network"] == 50e9
    assert document["settings"]["overlap_tensor"] is True
    assert len(document["schemes"]) == 3
    for one in document["schemes"]:
        scheme = one["scheme"]
        assert scheme["tensor"] * scheme["shards"] * scheme["replicas"] == 64
        assert set(one["ways"]) == {"FP8", "FP8 products, BF16 wire", "BF16"}
        for step in one["ways"].values():
            assert set(step["parts"]) == PARTS
            assert step["seconds"] == pytest.approx(sum(step["parts"].values()))
            assert step["tokens_per_second"] == pytest.approx(16384 / step["seconds"])
            assert step["memory"]["total"] == pytest.approx(
                sum(step["memory"][part] for part in ("state", "layers", "activations"))
            )
            for exchange in step["traffic"].values():
                assert set(exchange) == {"nvlink_bytes", "network_bytes", "seconds"}
    # The rates of a plan are rates again.
    assert rates.load_rates(path) == rates.load_rates(rates.COMMITTED)
    assert run(*LLAMA, "--rates", str(path))[0] == 0


def shown():
    """The commands that the page shows, and what it says that they print."""
    pairs = r"^```bash\noctofold (plan-parallel [^\n]*)\n```\n\n```\n(.*?)^```$"
    yield from re.findall(pairs, PAGE.read_text(), re.MULTILINE | re.DOTALL)


def printed(command, capsys):
    """Without spaces at the ends of lines, which the page has none of."""
    with contextlib.suppress(SystemExit):
        assert main(shlex.split(command)) == 0
    return "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines())


def test_the_page_shows_what_is_printed(capsys):
    blocks = dict(shown())
    sizes = {(model, gpus) for model in ("llama-3-70b", "deepseek-v3") for gpus in (8, 64, 1024)}
    found = {tuple(re.findall(r"--model (\S+) --gpus (\d+)", command)[0]) for command in blocks}
    assert found == {(model, str(gpus)) for model, gpus in sizes}
    for command, output in blocks.items():
        if "llama" in command:
            assert printed(command, capsys) == output, f"run: {command}"


@pytest.mark.slow
def test_the_page_shows_what_is_printed_of_models_with_experts(capsys):
    for command, output in shown():
        if "deepseek" in command:
            assert printed(command, capsys) == output, f"run: {command}"
