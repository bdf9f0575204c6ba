"""Digests of code and values, the same in every process."""
