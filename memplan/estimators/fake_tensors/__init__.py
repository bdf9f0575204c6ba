"""Fake tensors: their results, the values that follow from the batch, and the values that are presumed."""
