"""The base of the public functions: arrays, dtypes and streams of all frameworks, and the ops."""
