"""Octofold on several ranks of torch.distributed."""
