"""Products of rows that are gathered, by two processes with gloo on the CPU. bench/gpu/overlap.py
checks the bits on GPUs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_two_processes(tmp_path):
    worker = Path(__file__).with_name("gathered_worker.py")
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [sys.executable, worker, str(rank), tmp_path / "rendezvous"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
        assert "all is well" in output
