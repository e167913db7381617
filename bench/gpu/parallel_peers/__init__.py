"""What the scripts of several GPUs are compared with."""
