"""A plan as data: what it says of a model, its layers and the ways to run them, and its file."""
