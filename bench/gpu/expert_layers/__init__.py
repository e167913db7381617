"""Parts of experts.py."""
