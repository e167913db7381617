"""ComfyUI: linear layers of FP8 checkpoints by Octofold's products.

ComfyUI keeps an FP8 weight as a tensor of comfy-kitchen, which looks the code for an operation up
in a public table. register() enters Octofold there, for the products that comfy-kitchen itself
would dequantize the weight for, and tells ComfyUI to hand inputs over as they are. Loading,
offloading and LoRA stay ComfyUI's: a patched weight comes back as an FP8 tensor, or in 16 bits.

ComfyUI finds the folder `custom_node` in its custom_nodes:

    ln -s "$(python -m octofold.integrations.comfyui)" custom_nodes/octofold

docs/integrations/comfyui.md has the rest. Nothing here imports ComfyUI or comfy-kitchen before
register() is called.
"""

from .switch import custom_node_folder, register, unregister

__all__ = ["custom_node_folder", "register", "unregister"]
