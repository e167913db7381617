"""Models with layers in FP8 as folders: written, and read to the same bits."""
