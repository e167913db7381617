"""Measuring on a GPU, through torch. Only `device` may be imported where torch may be missing."""
