"""Which tensors lie on the host, and what operators on them return."""

from __future__ import annotations

import torch

from memplan.estimators.absent_card.host_copies import HostCopies

CARD = torch.zeros(4)


def on_host(copies: HostCopies) -> torch.Tensor:
    with copies.moving(to_host=True):
        copy = CARD.clone()
        copies.keep((CARD,), copy)
    return copy


def test_what_is_computed_of_host_copies_alone_lies_on_the_host() -> None:
    copies = HostCopies()
    copy = on_host(copies)
    assert copies.holds(copy[1:])
    assert copies.keep((copy, 1), copy + 1)
    assert not copies.keep((copy, CARD), copy + CARD)
    assert not copies.keep((), torch.zeros(4))


def test_a_sparse_tensor_lies_where_its_parts_do() -> None:
    copies = HostCopies()
    copy = on_host(copies)
    sparse = CARD.to_sparse()
    assert not copies.holds(sparse)
    assert not copies.keep((sparse,), sparse.clone())
    assert copies.keep((copy,), moved := copy.to_sparse())
    assert copies.holds(moved)


def test_a_sample_of_a_vectorised_function_lies_where_its_batch_does() -> None:
    copies = HostCopies()
    copy = on_host(copies)
    found: list[bool] = []

    def sample(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        found.extend([copies.holds(first), copies.holds(second)])
        return first + second

    torch.func.vmap(sample)(copy, CARD)
    assert found == [True, False]


def test_what_is_presumed_on_the_host_is_on_the_card_once_it_is_used_there() -> None:
    copies = HostCopies()
    table, number, places = torch.zeros(4), torch.tensor(2.0), torch.tensor([0, 3])
    for each in (table, number, places):
        copies.presume(each)
    assert copies.found_on_card((table, number)) == []
    assert copies.found_on_card((CARD, number, [places])) == []  # as on a card
    assert copies.holds(table[1:])
    (found,) = copies.found_on_card((CARD, table[1:]))
    assert found.data_ptr() == table[1:].data_ptr()
    assert not copies.holds(table)
    assert copies.found_on_card((CARD, table)) == []


def test_what_code_asks_for_on_the_card_is_remembered_as_long_as_it_lives() -> None:
    copies = HostCopies()
    table = torch.zeros(4)
    copies.note_on_card([table])
    assert copies.is_made_on_card(table[1:])
    assert not copies.is_made_on_card(CARD)
    del table
    assert not copies._made_on_card
