"""Training over data, tensor and expert ranks, for train_parallel.py."""
