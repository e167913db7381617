"""Parts of linear.py."""
