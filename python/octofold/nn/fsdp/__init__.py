"""FSDP2 whose gathers move FP8."""
