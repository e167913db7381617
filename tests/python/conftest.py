"""How hypothesis runs: here alone, as machines for the GPU tests need not have it."""

from hypothesis import settings

settings.register_profile("octofold", deadline=None, max_examples=200)
settings.load_profile("octofold")
