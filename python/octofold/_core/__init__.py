"""What the public functions stand on: arrays, dtypes and streams of all frameworks, and the ops."""
