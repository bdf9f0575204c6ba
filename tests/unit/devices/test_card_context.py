"""The CUDA context of cards nobody has measured here."""

from __future__ import annotations

import pytest

from memplan.devices.card_catalogue import CARD_ROWS
from memplan.devices.card_context import context_bytes, context_of_products_bytes, context_range_bytes
from memplan.devices.cards import card_of_size, find_card
from memplan.units import MIB


@pytest.mark.parametrize("measured_mib", [639, 751, 767, 773])
def test_what_trainings_took_on_an_h100_lies_within_the_range(measured_mib: int) -> None:
    device = find_card("h100")
    low, high = context_range_bytes(device.compute_capability, device.sm_count)
    assert low <= measured_mib * MIB <= high
    assert device.context_bytes == pytest.approx(767 * MIB, abs=MIB)


def test_of_an_h100_the_first_product_adds_half_a_kib_for_each_thread() -> None:
    device = find_card("h100")
    assert device.context is not None
    assert device.context.of_products_bytes == 132 * MIB
    assert context_of_products_bytes((8, 0), 108) == 0


@pytest.mark.parametrize(
    ("card", "published_mib"),
    [("rtx-3060", 117), ("rtx-3060", 139), ("rtx-4060", 117), ("rtx-4060", 139), ("a100-40gb", 354), ("h200", 512)],
)
def test_what_was_published_lies_within_the_range(card: str, published_mib: int) -> None:
    device = find_card(card)
    low, high = context_range_bytes(device.compute_capability, device.sm_count)
    assert low <= published_mib * MIB <= high


def test_each_thread_that_a_card_can_hold_takes_its_share() -> None:
    assert context_bytes((8, 0), 128) - context_bytes((8, 0), 64) == 64 * 2048 * 1792
    assert context_bytes((8, 6), 64) - context_bytes((7, 5), 64) == 64 * 512 * 1792


def test_every_card_of_the_catalogue_has_a_context_within_its_own_range() -> None:
    for card in (find_card(row.slug) for row in CARD_ROWS):
        low, high = context_range_bytes(card.compute_capability, card.sm_count)
        assert 80 * MIB < low < card.context_bytes < high < 800 * MIB


def test_of_a_card_known_by_its_size_the_range_spans_what_was_published() -> None:
    card = card_of_size("24GiB")
    assert card.context_bytes == 300 * MIB
    assert context_range_bytes(None, None) == (115 * MIB, 520 * MIB)
