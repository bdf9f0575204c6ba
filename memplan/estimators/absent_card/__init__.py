"""CUDA emulated for user code, on a machine without the card."""
