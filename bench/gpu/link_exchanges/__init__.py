"""Parts of parallel_links.py."""
