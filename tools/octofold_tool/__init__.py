"""The `octofold` command. Everything heavy is done by the library, through its public API."""

import sys

# tvm_ffi, which octofold is built on, imports torch wherever that is installed. It takes seconds,
# and the command needs none of it: hide torch while octofold is imported for the first time.
if "octofold" not in sys.modules and "torch" not in sys.modules:
    sys.modules["torch"] = None  # type: ignore[assignment]  # makes `import torch` fail
    try:
        import octofold as octofold
    finally:
        del sys.modules["torch"]
