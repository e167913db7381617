"""examples/python/train_language_model.py, tiny and on the CPU."""

import json
import shutil
import sys

import pytest

from tests.project.project_support import EXAMPLES, refused, run

pytestmark = pytest.mark.slow

pytest.importorskip("torch")

SCRIPT = EXAMPLES / "train_language_model.py"
STEPS = 9
TINY = ("--size", "tiny", "--steps", str(STEPS), "--text-bytes", "300000", "--device", "cpu")
OFTEN = ("--evaluate-every", "3", "--log-every", "2", "--checkpoint-every", "4")


def train(output, *options):
    return run(sys.executable, SCRIPT, "--output", output, *TINY, *OFTEN, *options)


def records(output, name):
    return [json.loads(line) for line in (output / f"{name}.jsonl").read_text().splitlines()]


def losses(output, name):
    """Lines of training and validation losses."""
    return [line for line in records(output, name) if line.keys() & {"loss", "validation_loss"}]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """BF16 with two seeds and a recipe, all at once."""
    output = tmp_path_factory.mktemp("runs")
    train(output, "--recipe", "bfloat16", "blockwise", "--jobs", "2")
    return output


def test_all_runs_learn(runs):
    for name in ("bfloat16-seed0", "bfloat16-seed1", "blockwise-seed0"):
        lines = losses(runs, name)
        training = [line for line in lines if "loss" in line]
        assert [line["step"] for line in training] == list(range(1, STEPS + 1))
        validation = [line["validation_loss"] for line in lines if "validation_loss" in line]
        assert len(validation) == STEPS // 3
        assert validation[2] < validation[1] < validation[0] < 5.6  # ln 256 = 5.55 knows nothing


def test_a_recipe_begins_where_bfloat16_does(runs):
    fp8, same_seed, other_seed = (
        losses(runs, name)[0]["loss"]
        for name in ("blockwise-seed0", "bfloat16-seed0", "bfloat16-seed1")
    )
    assert fp8 != same_seed  # or nothing was converted
    assert abs(fp8 - same_seed) < 0.02
    assert other_seed != same_seed


def test_a_recipe_ends_where_bfloat16_does(runs):
    fp8, same_seed = (
        losses(runs, name)[-1]["validation_loss"] for name in ("blockwise-seed0", "bfloat16-seed0")
    )
    assert abs(fp8 - same_seed) < 0.02  # layers that keep old weights are off by 0.2 by then


def test_resumed_runs_repeat_uninterrupted_ones(runs, tmp_path):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    for output in (whole, halves):
        output.mkdir()
        for file in runs.glob("text.*"):  # looked for once
            shutil.copy(file, output)
    chosen = ("--recipe", "bfloat16", "tensorwise", "--seeds", "3")
    train(whole, *chosen)
    train(halves, *chosen, "--stop-at", "4")
    names = ("bfloat16-seed3", "tensorwise-seed3")
    assert [losses(halves, name)[-1]["step"] for name in names] == [4, 4]
    train(halves, *chosen, "--resume")
    for name in names:
        assert losses(halves, name) == losses(whole, name)


def test_plot(runs):
    for path in runs.glob("losses.*"):
        path.unlink()
    (runs / "rowwise-seed0.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in records(runs, "blockwise-seed0")[:3])
    )  # a run that has not come to its end is left out
    output = run(sys.executable, SCRIPT, "plot", "--output", runs)
    (runs / "rowwise-seed0.jsonl").unlink()
    assert "blockwise" in output
    assert (runs / "losses.png").read_bytes().startswith(b"\x89PNG")
    rows = [line.split("|") for line in (runs / "losses.md").read_text().splitlines()]
    table = {(row[1].strip(), row[2].strip()): row for row in rows if len(row) > 6}
    last = {key: losses(runs, f"{key[0]}-seed{key[1]}")[-1] for key in list(table)[2:]}
    assert set(last) == {("bfloat16", "0"), ("bfloat16", "1"), ("blockwise", "0")}
    mean = (last["bfloat16", "0"]["validation_loss"] + last["bfloat16", "1"]["validation_loss"]) / 2
    for key, line in last.items():
        final, difference, time = (table[key][column].strip() for column in (3, 4, 6))
        assert final == f"{line['validation_loss']:.4f}"
        assert difference == f"{line['validation_loss'] - mean:+.4f}"
        assert time == "—"  # they ran side by side


def test_refusals(runs):
    def said(*options):
        return refused(SCRIPT, "--output", runs, *TINY, *options)

    assert "--resume goes on with them" in said("--recipe", "bfloat16")
    changed = said("--recipe", "bfloat16", "--resume", "--learning-rate", "0.5")
    assert "'learning_rate': 0.001" in changed
    more = said("--recipe", "rowwise", "--text-bytes", "400000")
    assert "--text-bytes: expected 300000" in more
    assert "invalid choice: 'fp4'" in said("--recipe", "fp4")
    assert "expected a CUDA device" in said("--graph")
