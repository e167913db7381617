"""Hooks of SGLang's HookRegistry."""

from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType


def hook_around(target: str, hook: Callable[..., Any]) -> None:
    """Have SGLang call hook(original, *arguments) in place of what a dotted path names. Once more
    changes nothing."""
    if all(known is not hook for _, known, _ in HookRegistry._hooks.get(target, ())):
        HookRegistry.register(target, hook, HookType.AROUND)
