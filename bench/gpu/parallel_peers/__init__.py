"""Peers of layers that are spread over ranks, in BF16."""
