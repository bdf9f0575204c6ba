"""Attributes that are replaced for a while are afterwards as they were."""

from __future__ import annotations

import pytest

from memplan.estimators.fake_tensors.replaced import replaced


class Own:
    size = 1


class Inheriting(Own):
    pass


def read_while_replaced(kind: type[Own]) -> None:
    with replaced(kind, "size", 2):
        raise KeyError(kind.size)


@pytest.mark.parametrize("kind", [Own, Inheriting])
def test_an_attribute_is_back_after_an_error_too(kind: type[Own]) -> None:
    before = dict(vars(kind))
    with pytest.raises(KeyError, match="2"):
        read_while_replaced(kind)
    assert dict(vars(kind)) == before
    assert kind.size == 1
