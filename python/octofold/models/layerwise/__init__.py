"""Layerwise casting: weights of any library's model in FP8 between their uses, or in them too."""
