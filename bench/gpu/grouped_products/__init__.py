"""Parts of measure_grouped.py."""
