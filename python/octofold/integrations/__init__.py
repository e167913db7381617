"""Octofold inside the programs that people run: a module for each, imported only when it is used.

| module         | how it is switched on                                                      |
|----------------|----------------------------------------------------------------------------|
| `vllm`         | by being installed beside it (an entry point)                              |
| `sglang`       | by being installed beside it (an entry point)                              |
| `transformers` | `import octofold.integrations.transformers`, then `from_pretrained()`      |
| `diffusers`    | `import octofold.integrations.diffusers`, then `from_pretrained()`         |
| `peft`         | by those two; alone by `import octofold.integrations.peft`                 |
| `torchao`      | `import octofold.integrations.torchao`, then `torchao.quantize_()`         |
| `torchtitan`   | its converter in a model's registry                                        |
| `comfyui`      | a folder in `custom_nodes`                                                 |
| `hf_kernel`    | `kernels.get_local_kernel()` of a folder that scripts/hf_kernel.py lays out |

The environment variable OCTOFOLD_INTEGRATIONS names those that entry points may switch on, and `0`
switches all of them off. docs/integrations.md has a page for each.
"""
