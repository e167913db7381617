"""The public names: what is listed is there, nothing hides a module, and torch is not required."""

import importlib
import importlib.util
import pkgutil
import subprocess
import sys
import types

import octofold
import pytest

# The library, which is no Python module, and what needs a package that may be missing.
NOT_IMPORTED = {
    "octofold.octofold_ffi",
    "octofold.integrations",
}


if any(importlib.util.find_spec(name) is None for name in ("jax", "jax_tvm_ffi")):
    NOT_IMPORTED |= {"octofold.jax"}


def walked(package):
    """Each module below, but those that are not imported and what is below them."""
    for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if found.name not in NOT_IMPORTED:
            module = importlib.import_module(found.name)
            yield module
            if found.ispkg:
                yield from walked(module)


NEEDS = {
    "octofold.nn": ["torch"],
    "octofold.distributed": ["torch"],
    "octofold.models": ["torch"],
    "octofold.jax": ["jax", "jax_tvm_ffi"],
}


@pytest.mark.parametrize("name", ["octofold", "octofold.ops", *NEEDS])
def test_all_is_there_once(name):
    for needed in NEEDS.get(name, ()):
        pytest.importorskip(needed)
    module = importlib.import_module(name)
    assert len({*module.__all__}) == len(module.__all__)
    for public in module.__all__:
        assert getattr(module, public) is not None
        assert public in dir(module)


def test_all_has_the_lazy_names():
    pytest.importorskip("torch")
    assert {"experts", "linear", "mlp", "models", "nn", "norm_linear"} <= {*octofold.__all__}


def test_no_name_hides_a_module():
    """`import octofold.nn.convert as m` gives the attribute, so it has to be the module. The import
    itself would put it there, over the name that it hides, so the packages are asked first."""
    pytest.importorskip("torch")
    for package in (octofold, octofold.nn, octofold.models):
        for found in pkgutil.iter_modules(package.__path__):
            named = vars(package).get(found.name)
            assert named is None or isinstance(named, types.ModuleType), found.name
    modules = {octofold.__name__: octofold, **{m.__name__: m for m in walked(octofold)}}
    assert len(modules) > 100
    for name, module in modules.items():
        parent, _, leaf = name.rpartition(".")
        if parent:
            assert getattr(modules[parent], leaf) is module, name


def test_functions_have_one_tier():
    assert not {*octofold.__all__} & {*octofold.ops.__all__}
    functions = [
        n for n in octofold.ops.__all__ if isinstance(getattr(octofold.ops, n), types.FunctionType)
    ]
    assert all(
        getattr(octofold.ops, name).__module__.startswith("octofold._") for name in functions
    )


def test_a_star_import_works_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"  # as if it were not installed
        "from octofold import *\n"
        "import octofold\n"
        "assert quantize is octofold.quantize and ops is octofold.ops\n"
        "assert 'nn' not in globals() and 'nn' not in octofold.__all__\n"
        "try: octofold.nn\n"
        "except ImportError as error: print(error.name)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout.strip() == "torch"
