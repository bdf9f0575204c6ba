"""cuBLAS's workspace is what its setting says, or the default of the card."""

from __future__ import annotations

import pytest

from memplan.estimators.lowering.library_workspaces import cublas_workspace_bytes
from memplan.units import KIB, MIB


@pytest.mark.parametrize(("capability", "expected_bytes"), [((8, 0), 8 * MIB + 128 * KIB), ((9, 0), 32 * MIB)])
def test_without_a_setting_it_follows_the_card(
    capability: tuple[int, int], expected_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    assert cublas_workspace_bytes(capability) == expected_bytes


# as PyTorch 2.13 itself allocates for these settings
@pytest.mark.parametrize(
    ("setting", "expected_bytes"),
    [
        (":4096:8", 32 * MIB),
        (":16:8", 128 * KIB),
        (":4096:2:16", 8 * MIB),
        (":0:0", 0),
        ("4096:2", 8 * MIB + 128 * KIB),
        ("", 8 * MIB + 128 * KIB),
    ],
)
def test_a_setting_names_sizes_and_how_many_of_each(
    setting: str, expected_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", setting)
    assert cublas_workspace_bytes((8, 0)) == expected_bytes
