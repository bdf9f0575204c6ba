"""The release of torch that is traced: what its kernels do on a card differs between releases."""

from __future__ import annotations

import torch

from memplan.torch_releases import release_of

TORCH_RELEASE = release_of(torch.__version__)
