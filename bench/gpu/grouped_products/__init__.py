"""Parts of grouped.py."""
