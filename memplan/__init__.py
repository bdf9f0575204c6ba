"""Plan the GPU memory of a PyTorch training step before the run."""

from __future__ import annotations
