"""octofold cache: each command in a process of its own, since a process has one cache folder."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import octofold
import pytest
from octofold_tool import cache
from octofold_tool.report import ToolError

needs_nvrtc = pytest.mark.skipif(
    not octofold.info().nvrtc.available, reason="NVRTC is not installed: octofold[gpu]"
)

WARM = ("warm", "--arch", "sm_90a", "--problem", "gemm: m 16, n 64, k 256")


class Cache:
    """`octofold cache` with a folder of its own."""

    def __init__(self, folder):
        self.folder = folder

    def command(self, *arguments):
        return [sys.executable, "-m", "octofold_tool", "cache", *arguments]

    def environment(self, **changes):
        own = {
            "OCTOFOLD_CACHE_DIR": str(self.folder),
            "OCTOFOLD_LOG_LEVEL": "warning",
            "OCTOFOLD_PRECOMPILED_KERNELS": "0",
        }
        return {**os.environ, **own, **changes}

    def run(self, *arguments, **environment):
        return subprocess.run(
            self.command(*arguments),
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            check=False,
        )

    def output(self, *arguments):
        result = self.run(*arguments)
        assert (result.returncode, result.stderr) == (0, "")
        return result.stdout

    def error(self, *arguments, **environment):
        result = self.run(*arguments, **environment)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.startswith("octofold")
        return result.stderr


@pytest.fixture
def own(tmp_path):
    return Cache(tmp_path / "cache")


def test_a_cache_that_is_not_there_is_empty(own):
    assert own.output("path") == f"{own.folder}\n"
    assert own.output("list") == f"no kernels in {own.folder}\n"
    assert own.output("clear") == f"0 kernels removed from {own.folder}\n"
    assert not own.folder.exists()


@needs_nvrtc
def test_warm_list_clear(own):
    # Two sizes of one kernel, and the same again.
    own.folder.with_name("problems.txt").write_text("\ngemm: m 16, n 80, k 256\n")
    shapes = (*WARM, "--problems", str(own.folder.with_name("problems.txt")))
    where = f"1 kernels for sm_90a in {own.folder}"
    assert own.output(*shapes) == f"{where}: 1 compiled, 0 there before\n"
    assert own.output(*shapes) == f"{where}: 0 compiled, 1 there before\n"
    channels = "gemm: m 16, n 64, k 256, a e4m3 channel, b e4m3 channel, bias bfloat16"
    assert "1 compiled" in own.output(*WARM[:4], channels)

    (newest, _) = json.loads(own.output("list", "--json"))["kernels"]
    assert "a e4m3 channel, b e4m3 channel" in newest["description"]
    assert "bias of out's type" in newest["description"]
    assert newest["architecture"] == "sm_90a"
    assert newest["bytes"] == Path(newest["file"]).stat().st_size
    assert newest["registers"] > 0
    assert abs(time.time() - datetime.fromisoformat(newest["written"]).timestamp()) < 3600
    table = own.output("list")
    assert newest["description"] in table
    assert "2 files" in table

    (own.folder / "notes.txt").touch()
    assert own.output("clear") == f"2 kernels removed from {own.folder}\n"
    assert [path.name for path in own.folder.iterdir()] == ["notes.txt"]


def test_common_kernels_come_with_octofold(own):
    """All of DeepSeek-V3's dense products are there, without NVRTC."""
    without_nvrtc = {"OCTOFOLD_NVRTC": "/no/nvrtc.so", "OCTOFOLD_PRECOMPILED_KERNELS": "1"}
    suite = ("warm", "--arch", "sm_90a", "--suite", "deepseek-v3")
    result = own.run(*suite, **without_nvrtc)
    assert (result.returncode, result.stderr) == (0, "")
    assert "0 kernels for sm_90a" in result.stdout
    assert "more are precompiled" in result.stdout
    assert not own.folder.exists()
    assert "/no/nvrtc.so" in own.error(*suite, OCTOFOLD_NVRTC="/no/nvrtc.so")
    other = own.error(*WARM, "--problem", "gemm: m 16, n 64, k 256, out float16", **without_nvrtc)
    assert "/no/nvrtc.so" in other


def test_what_comes_with_octofold_is_listed(own):
    result = own.run("list", "--precompiled", "--json", OCTOFOLD_PRECOMPILED_KERNELS="1")
    kernels = json.loads(result.stdout)["kernels"]
    descriptions = [kernel["description"] for kernel in kernels]
    for start in ("gemm: ", "cast: ", "top_k: ", "sort_by_expert: ", "combine: "):
        assert any(description.startswith(start) for description in descriptions)
    for kind in ("kind rms, weight", "a e4m3 channel", "masked groups of rows", "swiglu"):
        assert any(kind in description for description in descriptions)
    for kernel in kernels:
        assert kernel["architecture"] == "sm_90a"
        assert 0 < kernel["registers"] <= 255
        assert kernel["bytes"] > 1000
    table = own.run("list", "--precompiled", OCTOFOLD_PRECOMPILED_KERNELS="1").stdout
    assert f"{len(kernels)} kernels" in table
    assert own.output("list", "--precompiled") == "octofold has no precompiled kernels\n"


@needs_nvrtc
def test_a_damaged_file_is_named_and_replaced(own):
    own.output(*WARM)
    (file,) = own.folder.glob("*.kernel")
    file.write_bytes(file.read_bytes()[:100])
    assert f"{file.name}: unusable: " in own.output("list")
    result = own.run(*WARM)
    assert result.returncode == 0
    assert "1 compiled" in result.stdout
    assert f"warning: kernel cache entry '{file}' is not usable" in result.stderr
    assert "unusable" not in own.output("list")


@needs_nvrtc
def test_a_folder_that_others_write_to_is_not_used(own):
    own.folder.mkdir()
    own.folder.chmod(0o757)
    fault = "its mode 0757 lets others write to it"
    assert f"unusable: {fault}" in own.output("list")
    error = own.error(*WARM)
    assert error.count(f"kernel cache '{own.folder}' is not used") == 1
    info = [sys.executable, "-m", "octofold_tool", "info"]
    text = subprocess.run(info, env=own.environment(), capture_output=True, text=True).stdout
    assert f"{own.folder} is not used: {fault}" in text


@needs_nvrtc
def test_ctrl_c_ends_it_quietly(own):
    process = subprocess.Popen(
        own.command("warm", "--arch", "sm_90a", "--suite", "deepseek-v3"),
        env=own.environment(OCTOFOLD_LOG_LEVEL="info"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job, as CI may be, hands on an interrupt that is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    assert "compiled in" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, "")
    assert error.splitlines()[-1] == "octofold: interrupted"
    assert "Traceback" not in error


@needs_nvrtc
def test_a_folder_that_cannot_be_written(own):
    own.folder.write_text("not a folder")
    assert f"kernels cannot be kept in '{own.folder}'" in own.error(*WARM)


def test_without_a_folder_or_nvrtc(own):
    nowhere = {"OCTOFOLD_CACHE_DIR": "", "XDG_CACHE_HOME": "", "HOME": ""}
    for arguments in (("path",), WARM):
        assert "name one in OCTOFOLD_CACHE_DIR" in own.error(*arguments, **nowhere)
    assert "/no/nvrtc.so" in own.error(*WARM, OCTOFOLD_NVRTC="/no/nvrtc.so")


def arguments(arch=None, multiprocessors=None):
    return SimpleNamespace(arch=arch, multiprocessors=multiprocessors)


def test_compiles_for_the_gpu_here(monkeypatch):
    there = octofold.Component(True, "")
    gpu = octofold.Gpu(0, "H100 PCIe", 9, 0, 114, 80 << 30, there)
    info = octofold.Info("1", 1, there, there, there, (gpu,))
    monkeypatch.setattr(octofold, "info", lambda: info)
    assert cache.target(arguments()) == ("sm_90a", 114)
    assert cache.target(arguments(multiprocessors=16)) == ("sm_90a", 16)
    assert cache.target(arguments(arch="sm_90a")) == ("sm_90a", 132)
    ada = octofold.Gpu(0, "L4", 8, 9, 58, 24 << 30, there)
    monkeypatch.setattr(
        octofold, "info", lambda: octofold.Info("1", 1, there, there, there, (ada,))
    )
    assert cache.target(arguments()) == ("sm_89", 58)


def test_without_a_gpu_the_architecture_has_to_be_named(monkeypatch):
    missing = octofold.Component(False, "no NVIDIA driver")
    info = octofold.Info("1", 1, missing, missing, missing, ())
    monkeypatch.setattr(octofold, "info", lambda: info)
    with pytest.raises(ToolError, match="name one with --arch: no NVIDIA driver"):
        cache.target(arguments())
