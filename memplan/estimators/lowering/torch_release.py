"""The release of torch that is traced: what its kernels do on a card differs between releases."""

from __future__ import annotations

from pathlib import Path

import torch

from memplan.torch_releases import release_of

TORCH_RELEASE = release_of(torch.__version__)

# Batched products of a column and a row are then a kernel of PyTorch's own, written in Triton.
HAS_OUTER_PRODUCTS = (Path(torch.__file__).parent / "_native" / "ops" / "bmm_outer_product").is_dir()
