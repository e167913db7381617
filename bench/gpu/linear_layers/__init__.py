"""Parts of bench_linear.py."""
