"""The module that ComfyUI loads from its folder custom_nodes, under a name of its own: so it
imports Octofold by its full name, and no file beside it."""

from octofold.integrations.comfyui import register
from octofold.integrations.comfyui.nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS"]

register()
