"""Replacing spans of a text."""

from __future__ import annotations

import pytest

from memplan.configs.languages.spans import Edit, Span, splice
from memplan.errors import PatchError


def test_edits_apply_in_any_order_and_keep_the_rest() -> None:
    edits = [Edit(span=Span(start=4, end=5), text="longer"), Edit(span=Span(start=0, end=1), text="")]
    assert splice("a = b # c", edits) == " = longer # c"


def test_overlapping_edits_are_refused() -> None:
    edits = [Edit(span=Span(start=0, end=3), text="x"), Edit(span=Span(start=2, end=4), text="y")]
    with pytest.raises(PatchError, match="same text"):
        splice("abcdef", edits)
