"""The messages of a process group's ranks: who they are, what they do next, and tensors."""
