"""The parts of one plan: what is asked, the search on a present device, the prediction for an absent one, the patch."""

from __future__ import annotations
