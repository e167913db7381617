"""What tests share is imported by its place: from tests.python.casting import cast_with."""
