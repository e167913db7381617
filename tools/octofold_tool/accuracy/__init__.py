"""Accuracy of models in FP8. Only `command` may be imported where torch may be missing."""
