"""One plan for all processes that a launcher started."""
