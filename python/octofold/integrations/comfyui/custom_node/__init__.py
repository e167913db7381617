"""What ComfyUI loads from its folder custom_nodes, under a name of its own: so it imports Octofold
by its full name, and no file beside it."""

from octofold.integrations.comfyui import register

NODE_CLASS_MAPPINGS: dict[str, type] = {}  # without it ComfyUI takes the folder for a broken one

register()
