"""Parts of measure_experts.py."""
