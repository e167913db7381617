"""Modules that the scripts of bench/gpu share."""
