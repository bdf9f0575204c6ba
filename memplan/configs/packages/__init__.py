"""Verification of patched configs by the packages with which programs load them, in child processes."""
