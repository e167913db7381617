"""Experts that are spread over the ranks of a group: tokens travel to them as codes with scales."""
