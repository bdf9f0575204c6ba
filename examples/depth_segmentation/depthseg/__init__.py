"""Depth-layer segmentation of a stereo pair with a small U-Net, in plain PyTorch."""
