"""The casts that a recipe asks for."""
