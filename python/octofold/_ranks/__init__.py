"""What ranks of a process group say to each other: who they are, what they do next, tensors."""
