"""octofold.models is about torch's models: where it is not installed there are no tests."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
