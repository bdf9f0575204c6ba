"""The cards one can plan for: memory as CUDA reports it, compute capability and multiprocessors.

Memory is what ``torch.cuda.get_device_properties(i).total_memory`` said on Linux, read from published training logs
(the device line of Ultralytics YOLO runs, the total in out-of-memory messages) and prints of the properties. It is less
than the size on the box by what the driver keeps, differs by up to a hundredth between drivers, and is the full size on
Windows. Where logs differ, the smallest figure is kept, so that a plan holds on each of these drivers. With error
correction switched on, GDDR6 workstation cards offer 6 % less than stated here; cards for servers have it on as
delivered.

Where no figure was found, that of a card with as much memory of the same kind is taken (``Basis.SIBLING``), and
without such a card the size on the box less three hundredths (``Basis.NOMINAL``), more than any card here of 20 GB or
more loses without error correction.

Compute capability: https://developer.nvidia.com/cuda-gpus. Multiprocessors: the same prints of the properties, else
NVIDIA's architecture whitepapers.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Basis(StrEnum):
    """Where a card's memory figure comes from."""

    PUBLISHED = "published"
    SIBLING = "as a card with as much memory"
    NOMINAL = "size on the box less 3 %"


class CardRow(NamedTuple):
    """One card: slug, MiB that CUDA reports, compute capability, multiprocessors, further names, basis of the MiB."""

    slug: str
    total_mib: int
    compute_capability: tuple[int, int]
    sm_count: int
    names: tuple[str, ...] = ()
    basis: Basis = Basis.PUBLISHED


_TURING, _AMPERE, _AMPERE_GA10X = (7, 5), (8, 0), (8, 6)
_ADA, _HOPPER, _BLACKWELL, _BLACKWELL_GB20X = (8, 9), (9, 0), (10, 0), (12, 0)
_BLACKWELL_ULTRA, _BLACKWELL_GB10 = (10, 3), (12, 1)

CARD_ROWS: tuple[CardRow, ...] = (
    # GeForce 10
    CardRow("gtx-1080-ti", 11172, (6, 1), 28),
    # GeForce 20
    CardRow("rtx-2060", 5918, _TURING, 30),
    CardRow("rtx-2070", 7972, _TURING, 36, basis=Basis.SIBLING),  # rtx-2070-super
    CardRow("rtx-2070-super", 7972, _TURING, 40),
    CardRow("rtx-2080", 7982, _TURING, 46, basis=Basis.SIBLING),  # rtx-2080-super
    CardRow("rtx-2080-super", 7982, _TURING, 48),
    CardRow("rtx-2080-ti", 10825, _TURING, 68),
    CardRow("titan-rtx", 24212, _TURING, 72),
    # GeForce 30
    CardRow("rtx-3060", 11910, _AMPERE_GA10X, 28),
    CardRow("rtx-3060-ti", 7833, _AMPERE_GA10X, 38),
    CardRow("rtx-3070", 7753, _AMPERE_GA10X, 46),
    CardRow("rtx-3070-ti", 7753, _AMPERE_GA10X, 48, basis=Basis.SIBLING),  # rtx-3070
    CardRow("rtx-3080", 10002, _AMPERE_GA10X, 68, ("rtx-3080-10gb",)),
    CardRow("rtx-3080-12gb", 11910, _AMPERE_GA10X, 70, basis=Basis.SIBLING),  # rtx-3080-ti
    CardRow("rtx-3080-ti", 11910, _AMPERE_GA10X, 80),
    CardRow("rtx-3090", 24139, _AMPERE_GA10X, 82),
    CardRow("rtx-3090-ti", 24110, _AMPERE_GA10X, 84),
    # GeForce 40
    CardRow("rtx-4060", 7807, _ADA, 24),
    CardRow("rtx-4060-ti", 7806, _ADA, 34, ("rtx-4060-ti-8gb",)),
    CardRow("rtx-4060-ti-16gb", 15848, _ADA, 34, basis=Basis.SIBLING),  # rtx-5060-ti-16gb
    CardRow("rtx-4070", 11994, _ADA, 46),
    CardRow("rtx-4070-super", 11994, _ADA, 56, basis=Basis.SIBLING),  # rtx-4070
    CardRow("rtx-4070-ti", 12007, _ADA, 60),
    CardRow("rtx-4070-ti-super", 16049, _ADA, 66, basis=Basis.SIBLING),  # rtx-4080
    CardRow("rtx-4080", 16049, _ADA, 76),
    CardRow("rtx-4080-super", 16049, _ADA, 80, basis=Basis.SIBLING),  # rtx-4080
    CardRow("rtx-4090", 24081, _ADA, 128),
    CardRow("rtx-4090-d", 24111, _ADA, 114),
    # GeForce 50
    CardRow("rtx-5060", 7806, _BLACKWELL_GB20X, 30, basis=Basis.SIBLING),  # rtx-4060-ti
    CardRow("rtx-5060-ti-8gb", 7806, _BLACKWELL_GB20X, 36, basis=Basis.SIBLING),  # rtx-4060-ti
    CardRow("rtx-5060-ti-16gb", 15848, _BLACKWELL_GB20X, 36, ("rtx-5060-ti",)),
    CardRow("rtx-5070", 11910, _BLACKWELL_GB20X, 48, basis=Basis.SIBLING),  # rtx-3060
    CardRow("rtx-5070-ti", 15840, _BLACKWELL_GB20X, 70, basis=Basis.SIBLING),  # rtx-5080
    CardRow("rtx-5080", 15840, _BLACKWELL_GB20X, 84),
    CardRow("rtx-5090", 32102, _BLACKWELL_GB20X, 170),
    # Workstations
    CardRow("quadro-rtx-6000", 24212, _TURING, 72, basis=Basis.SIBLING),  # titan-rtx
    CardRow("quadro-rtx-8000", 47677, _TURING, 72, basis=Basis.NOMINAL),
    CardRow("rtx-a2000-12gb", 11910, _AMPERE_GA10X, 26, basis=Basis.SIBLING),  # rtx-3060
    CardRow("rtx-a4000", 16117, _AMPERE_GA10X, 48, ("a4000",)),
    CardRow("rtx-a4500", 19866, _AMPERE_GA10X, 56, ("a4500",), Basis.NOMINAL),
    CardRow("rtx-a5000", 24248, _AMPERE_GA10X, 64, ("a5000",)),
    CardRow("rtx-a5500", 24248, _AMPERE_GA10X, 80, ("a5500",), Basis.SIBLING),  # rtx-a5000
    CardRow("rtx-a6000", 48676, _AMPERE_GA10X, 84, ("a6000",)),
    CardRow("rtx-2000-ada", 15848, _ADA, 22, basis=Basis.SIBLING),  # rtx-5060-ti-16gb
    CardRow("rtx-4000-ada", 19866, _ADA, 48, basis=Basis.NOMINAL),
    CardRow("rtx-4500-ada", 24081, _ADA, 60, basis=Basis.SIBLING),  # rtx-4090
    CardRow("rtx-5000-ada", 31785, _ADA, 100, basis=Basis.NOMINAL),
    CardRow("rtx-6000-ada", 48497, _ADA, 142),
    CardRow(
        "rtx-pro-6000", 97250, _BLACKWELL_GB20X, 188,
        ("rtx-pro-6000-blackwell", "rtx-pro-6000-blackwell-server-edition",
         "rtx-pro-6000-blackwell-workstation-edition", "rtx-pro-6000-blackwell-max-q-workstation-edition"),
    ),
    CardRow("gb10", 122480, _BLACKWELL_GB10, 48, ("dgx-spark",)),  # shares the host's memory
    # Servers
    CardRow("p100", 16269, (6, 0), 56, ("p100-16gb", "p100-pcie-16gb", "p100-sxm2-16gb")),
    CardRow("v100-16gb", 16130, (7, 0), 80, ("v100-sxm2-16gb", "v100-pcie-16gb")),
    CardRow("v100-32gb", 32494, (7, 0), 80, ("v100-sxm2-32gb", "v100-pcie-32gb", "v100s-pcie-32gb", "v100-sxm3-32gb")),
    CardRow("t4", 14912, _TURING, 40),
    CardRow("a10", 22587, _AMPERE_GA10X, 72, basis=Basis.SIBLING),  # a10g
    CardRow("a10g", 22587, _AMPERE_GA10X, 80),
    CardRow("a30", 24164, _AMPERE, 56),
    CardRow("a40", 45416, _AMPERE_GA10X, 84),
    CardRow("a100-40gb", 40441, _AMPERE, 108, ("a100-sxm4-40gb", "a100-pcie-40gb")),
    CardRow("a100-80gb", 81038, _AMPERE, 108, ("a100-sxm4-80gb", "a100-80gb-pcie", "a100-pcie-80gb")),
    CardRow("a800-80gb", 81051, _AMPERE, 108, ("a800", "a800-80gb-pcie", "a800-sxm4-80gb")),
    CardRow("l4", 22563, _ADA, 58),
    CardRow("l40", 45495, _ADA, 142, basis=Basis.SIBLING),  # l40s
    CardRow("l40s", 45495, _ADA, 142),
    CardRow("h100", 81082, _HOPPER, 132, ("h100-sxm", "h100-80gb", "h100-sxm5-80gb", "h100-80gb-hbm3")),
    CardRow("h100-pcie", 81008, _HOPPER, 114, ("h100-pcie-80gb",)),
    CardRow("h100-nvl", 95320, _HOPPER, 132),
    CardRow("h800", 81082, _HOPPER, 132, ("h800-sxm", "h800-80gb"), Basis.SIBLING),  # h100
    CardRow("h20", 95355, _HOPPER, 78, ("h20-96gb",), Basis.NOMINAL),
    CardRow("gh200", 95355, _HOPPER, 132, ("gh200-96gb", "gh200-480gb", "gh200-120gb"), Basis.NOMINAL),
    CardRow("h200", 143156, _HOPPER, 132, ("h200-sxm", "h200-sxm-141gb", "h200-141gb")),
    CardRow("b200", 182631, _BLACKWELL, 148, ("b200-sxm",)),
    CardRow("gb200", 188733, _BLACKWELL, 152),
    CardRow("b300", 274114, _BLACKWELL_ULTRA, 148, ("b300-sxm6-ac",)),
)  # fmt: skip
