"""memplan."""
