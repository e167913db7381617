"""These tests write and read FP8 by torch: where it is not installed there are none."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
