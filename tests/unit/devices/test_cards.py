"""The catalogue of cards, and finding one in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.devices.card_catalogue import CARD_ROWS, Basis
from memplan.devices.cards import DeviceKind, card_of_size, find_card
from memplan.errors import DeviceError, UnitError
from memplan.units import GIB


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("rtx-3090", "rtx-3090"),
        ("RTX 3090", "rtx-3090"),
        ("rtx_3090", "rtx-3090"),
        ("3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 4060 Ti", "rtx-4060-ti"),
        ("Tesla T4", "t4"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("Tesla P100-PCIE-16GB", "p100"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("Quadro RTX 8000", "quadro-rtx-8000"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000"),
    ],
)
def test_cards_are_found_by_any_spelling_and_by_the_drivers_name(name: str, slug: str) -> None:
    assert find_card(name).name == slug


def test_a_card_says_what_cuda_would_report() -> None:
    card = find_card("rtx-3090")
    assert (card.kind, card.compute_capability, card.sm_count) == (DeviceKind.CUDA, (8, 6), 82)
    assert 23.5 * GIB < card.total_bytes < 23.75 * GIB
    assert card.live_index is None


def test_an_unknown_card_gets_the_nearest_names() -> None:
    with pytest.raises(DeviceError, match="card 'rtx-3900' is not known; did you mean rtx-3090"):
        find_card("rtx-3900")


def test_a_name_like_no_card_says_what_may_be_named() -> None:
    with pytest.raises(DeviceError) as raised:
        find_card("24XB")
    assert str(raised.value) == (
        "card '24XB' is not known; name a card such as rtx-3090, a size such as 24GiB, cuda:0 or cpu"
    )


def test_a_card_sold_with_several_sizes_asks_which() -> None:
    with pytest.raises(DeviceError, match="there are several cards 'A100'; name one of a100-40gb, a100-80gb"):
        find_card("A100")


def test_a_laptop_card_is_not_mistaken_for_the_desktop_card_of_that_name() -> None:
    with pytest.raises(DeviceError, match="not known"):
        find_card("NVIDIA GeForce RTX 3060 Laptop GPU")


@pytest.mark.parametrize(
    "slug",
    ["rtx-2080-ti", "rtx-3060", "rtx-4090", "rtx-5090", "t4", "l4", "l40s", "a10", "a10g", "a30", "a40", "a100-40gb",
     "a100-80gb", "h100", "h100-pcie", "h200", "b200", "b300", "gb10", "rtx-a6000", "rtx-6000-ada", "v100-16gb",
     "v100-32gb", "p100"],
)  # fmt: skip
def test_the_cards_people_train_on_are_there(slug: str) -> None:
    assert find_card(slug).name == slug


def test_every_name_belongs_to_one_card() -> None:
    names = [name for row in CARD_ROWS for name in (row.slug, *row.names)]
    assert len({find_card(name).name for name in names}) == len(CARD_ROWS)
    assert [find_card(row.slug).name for row in CARD_ROWS] == [row.slug for row in CARD_ROWS]


def test_a_sibling_has_the_memory_of_a_card_with_a_published_figure() -> None:
    published = {row.total_mib for row in CARD_ROWS if row.basis is Basis.PUBLISHED}
    assert {row.total_mib for row in CARD_ROWS if row.basis is Basis.SIBLING} <= published


def test_cuda_reports_a_little_less_than_the_box_says() -> None:
    for card in (find_card(row.slug) for row in CARD_ROWS):
        for size_gb in (6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 80, 94, 96, 128, 141, 180):
            if card.total_bytes <= size_gb * GIB:
                assert card.total_bytes > 0.9 * size_gb * GIB, card.name
                break


def test_a_size_is_a_card_of_which_nothing_else_is_known() -> None:
    card = card_of_size("24GiB")
    assert (card.name, card.total_bytes, card.compute_capability, card.sm_count) == ("24GiB", 24 * GIB, None, None)


def test_sizes_no_card_has_are_refused() -> None:
    with pytest.raises(DeviceError, match=r"a card of 512\.0 MiB is too small"):
        card_of_size("512MiB")
    with pytest.raises(UnitError):
        card_of_size("large")


@given(st.text(max_size=20))
def test_any_text_is_a_card_or_a_clear_error(name: str) -> None:
    known = {row.slug for row in CARD_ROWS}
    try:
        found = find_card(name).name
    except DeviceError as error:
        found = error.problem
    assert found in known or repr(name) in found
