"""What torch has to know of octofold from the start, whichever is imported first: that torch.load()
may build a ScaledTensor of a file that it does not trust."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from .scaled_tensor import ScaledTensor


def introduce() -> None:
    """To torch, now or as it is imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        sys.meta_path.insert(0, _AfterTorch())
    else:
        torch.serialization.add_safe_globals([ScaledTensor])


class _AfterTorch(MetaPathFinder):
    """Finds torch where the other finders do, and comes back once it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_introduce(module: ModuleType) -> None:
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                introduce()

            spec.loader.exec_module = execute_and_introduce  # type: ignore[method-assign]
        return spec
