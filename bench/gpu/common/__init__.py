"""What the scripts of bench/gpu share."""
