"""Layers whose weights are split over the ranks of a group."""
