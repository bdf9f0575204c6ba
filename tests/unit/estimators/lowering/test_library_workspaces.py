"""cuBLAS's workspace is what its setting says, or the default of the card, for one product or for all of a thread."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from memplan.estimators.lowering import library_workspaces
from memplan.estimators.lowering.library_workspaces import ProductWorkspace, product_workspaces
from memplan.units import KIB, MIB

AMPERE, HOPPER = (8, 0), (9, 0)
SETTINGS = (
    "CUBLAS_WORKSPACE_CONFIG",
    "TORCH_CUBLAS_WORKSPACE_CACHE",
    "CUBLASLT_WORKSPACE_SIZE",
    "DISABLE_ADDMM_CUDA_LT",
)
MATRIX, ROW = torch.ones(4, 4), torch.ones(4)
HALVES = MATRIX.bfloat16()
OF_CUBLAS, OF_CUBLASLT = 8 * MIB + 128 * KIB, MIB


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)


def sizes(operator: str, args: tuple[Any, ...]) -> list[int]:
    """Bytes of what a product takes on Ampere."""
    return [each.size_bytes for each in product_workspaces(AMPERE, operator, args)]


@pytest.fixture
def without_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch 2.15 and later do."""
    monkeypatch.setattr(library_workspaces, "TORCH_RELEASE", (2, 15))


@pytest.fixture
def with_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch 2.12 to 2.14 do."""
    monkeypatch.setattr(library_workspaces, "TORCH_RELEASE", (2, 13))


@pytest.mark.usefixtures("with_cache")
@pytest.mark.parametrize(("capability", "expected_bytes"), [(AMPERE, OF_CUBLAS), (HOPPER, 32 * MIB)])
def test_the_default_follows_the_card_and_is_kept_for_any_product(
    capability: tuple[int, int], expected_bytes: int
) -> None:
    for operator, args in (("aten.mm", (MATRIX, MATRIX)), ("aten.addmm", (ROW, MATRIX, MATRIX))):
        assert product_workspaces(capability, operator, args) == (
            ProductWorkspace("cuBLAS", expected_bytes, is_kept=True),
        )


# as PyTorch 2.13 itself allocates for these settings
@pytest.mark.parametrize(
    ("setting", "expected_bytes"),
    [
        (":4096:8", 32 * MIB),
        (":16:8", 128 * KIB),
        (":4096:2:16", 8 * MIB),
        (":0:0", 0),
        ("4096:2", OF_CUBLAS),
        ("", OF_CUBLAS),
    ],
)
def test_a_setting_names_sizes_and_how_many_of_each(
    setting: str, expected_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", setting)
    assert sizes("aten.mm", (MATRIX, MATRIX)) == [expected_bytes]


# as PyTorch 2.15 itself allocates
@pytest.mark.usefixtures("without_cache")
@pytest.mark.parametrize(
    ("operator", "args", "expected_bytes"),
    [
        ("aten.mm", (MATRIX, MATRIX), OF_CUBLAS),
        ("aten.bmm", (MATRIX[None], MATRIX[None]), OF_CUBLAS),
        ("aten.bmm", (MATRIX[None, :, :1].cfloat(), MATRIX[None, :1].cfloat()), OF_CUBLAS),
        ("aten.addmm", (ROW, MATRIX, MATRIX), OF_CUBLASLT),
        ("aten.addmm", (ROW[None], MATRIX, MATRIX), OF_CUBLASLT),
        ("aten.addmm", (ROW, MATRIX[:1], MATRIX), OF_CUBLASLT),  # of one sample
        ("aten.addmm", (MATRIX, MATRIX, MATRIX), OF_CUBLAS),  # only of half types a matrix is added by cuBLASLt
        ("aten.addmm", (HALVES, HALVES, HALVES), OF_CUBLASLT),
        ("aten.addmm", (HALVES, HALVES, HALVES, 2), OF_CUBLASLT),  # beta
        ("aten.addmm", (HALVES, HALVES, HALVES, 0), OF_CUBLAS),
        ("aten.addmm", (HALVES.t(), HALVES, HALVES), OF_CUBLAS),
        ("aten.addmm", (HALVES[:1].expand(4, 4), HALVES, HALVES), OF_CUBLAS),
        ("aten.addmm", (HALVES[:1], HALVES[:1], HALVES, 2), OF_CUBLAS),
        ("aten.addmm", (ROW[:1].expand(4), MATRIX, MATRIX), OF_CUBLAS),
        ("aten.addmm", (ROW, MATRIX, MATRIX, 2), OF_CUBLAS),  # beta
        ("aten.addmm", (ROW[:1], MATRIX, MATRIX[:, :1]), OF_CUBLAS),  # to one output
        ("aten.addmm", (ROW.int(), MATRIX.int(), MATRIX.int()), OF_CUBLAS),
    ],
)
def test_from_2_15_on_each_product_takes_its_own_and_one_with_a_bias_that_of_cublaslt(
    operator: str, args: tuple[Any, ...], expected_bytes: int
) -> None:
    (found,) = product_workspaces(AMPERE, operator, args)
    assert (found.size_bytes, found.is_kept) == (expected_bytes, False)


@pytest.mark.parametrize("cached", ["with_cache", "without_cache"])
def test_a_column_by_a_row_takes_none_where_pytorch_multiplies_it_itself(
    cached: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    request.getfixturevalue(cached)
    column_and_row = (MATRIX[None, :, :1], MATRIX[None, :1])
    monkeypatch.setattr(library_workspaces, "HAS_OUTER_PRODUCTS", True)
    assert product_workspaces(AMPERE, "aten.bmm", column_and_row) == ()
    monkeypatch.setattr(library_workspaces, "HAS_OUTER_PRODUCTS", False)
    assert sizes("aten.bmm", column_and_row) == [OF_CUBLAS]


@pytest.mark.usefixtures("without_cache")
def test_settings_of_2_15_bring_back_the_cache_and_size_cublaslts_own(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = (ROW, MATRIX, MATRIX)
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "4096")
    assert sizes("aten.addmm", fused) == [4 * MIB]
    monkeypatch.setenv("DISABLE_ADDMM_CUDA_LT", "1")
    assert sizes("aten.addmm", fused) == [OF_CUBLAS]
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", "1")
    assert [each.is_kept for each in product_workspaces(AMPERE, "aten.addmm", fused)] == [True]


@pytest.mark.usefixtures("with_cache")
def test_until_2_11_cublaslt_keeps_a_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_workspaces, "TORCH_RELEASE", (2, 11))
    fused, others = (ROW, MATRIX, MATRIX), ((MATRIX,) * 3, (HALVES,) * 3)
    assert sizes("aten.addmm", fused) == [OF_CUBLAS, OF_CUBLASLT]
    assert [sizes("aten.addmm", each) for each in others] == [[OF_CUBLAS], [OF_CUBLAS]]


@pytest.mark.usefixtures("with_cache")
def test_products_of_eight_bit_types_take_the_workspace_of_their_thread() -> None:
    assert "aten._scaled_mm" in library_workspaces.CUBLAS_OPERATORS
    assert product_workspaces(HOPPER, "aten._scaled_mm", (MATRIX, MATRIX)) == (
        ProductWorkspace("cuBLAS", 32 * MIB, is_kept=True),
    )


@pytest.mark.usefixtures("without_cache")
def test_products_of_eight_bit_types_run_on_cublaslt() -> None:
    assert product_workspaces(HOPPER, "aten._scaled_mm", (MATRIX, MATRIX)) == (
        ProductWorkspace("cuBLASLt", OF_CUBLASLT, is_kept=False),
    )
