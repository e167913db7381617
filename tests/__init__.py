"""Modules that tests share are imported by their place: tests.python.casting, for instance."""
