"""Live trials of a plan: which are run, in what order and in whose turn."""
