"""The operations that run.py measures, and what belongs to them."""
