"""Hosts are looked at with the versions that octofold.integrations.hosts knows; others are not
installed here."""

import importlib.util
from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Tests of hosts that are not installed in this environment are left out, as each host has one
    of its own (scripts/test_integrations.py, which says what it could not install)."""
    needs = {
        "test_transformers": ("transformers", "peft", "accelerate"),
        "test_diffusers": ("diffusers", "peft"),
        "test_vllm": ("vllm",),
        "test_sglang": ("sglang",),
        "test_comfyui": ("comfy_kitchen",),
        "test_torchao": ("torchao",),
        "test_torchtitan": ("torchtitan",),
        "test_kernels": ("kernels",),
    }
    for beginning, modules in needs.items():
        if collection_path.name.startswith(beginning):
            missing = [name for name in modules if importlib.util.find_spec(name) is None]
            return True if missing else None
    return None


@pytest.fixture(autouse=True)
def _plugs_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCTOFOLD_INTEGRATIONS", raising=False)
