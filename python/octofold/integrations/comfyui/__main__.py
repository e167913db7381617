"""Prints the folder that ComfyUI's custom_nodes is to have a link to, or a copy of."""

from . import custom_node_folder

print(custom_node_folder())
