"""examples/python/train_parallel.py: one process and two, which are killed and go on."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed"),
]

SCRIPT = Path(__file__).parents[3] / "examples" / "python" / "train_parallel.py"
STEPS = 6
COMMON = ["--steps", str(STEPS), "--layers", "1", "--experts", "4", "--checkpoint-every", "2"]
OF_TWO = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def started(output, *options, launcher=()):
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *launcher, SCRIPT, "--output", output, *COMMON, *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(output, *options, launcher=()):
    process = started(output, *options, launcher=launcher)
    try:
        printed, _ = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, printed
    return losses(output)


def losses(output):
    lines = [json.loads(line) for line in (output / "losses.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    return torch.tensor([line["loss"] for line in lines])


def killed_once_it_has_saved(output, *options, launcher):
    process = started(output, *options, launcher=launcher)
    deadline = time.monotonic() + 240
    while not (output / "step-2").exists():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    # The run counts as killed at once, however far it got: later steps have to be done again.
    for folder in output.glob("step-*"):
        if folder.name != "step-2":
            shutil.rmtree(folder)


def test_two_processes_that_are_killed_train_as_one(tmp_path):
    """Nearer to one process than two seeds in BF16 are to each other. Before they are killed each
    has sequences of its own, afterwards a part of each sequence and of each layer."""
    alone = run(tmp_path / "alone")
    killed_once_it_has_saved(tmp_path / "two", launcher=OF_TWO)
    two = run(tmp_path / "two", "--tensor", "2", launcher=OF_TWO)
    bfloat16 = []
    for seed in (0, 1):
        output = tmp_path / f"seed-{seed}"
        output.mkdir()
        for file in (tmp_path / "alone").glob("text.*"):  # looked for once
            shutil.copy(file, output)
        bfloat16.append(run(output, "--recipe", "bfloat16", "--seed", str(seed)))
    noise = (bfloat16[0] - bfloat16[1]).abs().mean()
    assert (two - alone).abs().mean() < noise / 4
    assert (two - alone).abs().max() < 0.05
    assert alone[-1] < alone[0] - 1
