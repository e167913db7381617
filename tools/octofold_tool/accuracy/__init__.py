"""What FP8 does to a model's answers. Only `command` may be imported where torch may be missing."""
