"""Live trials: what one recipe really needs, measured in a child process; the search over sizes, and the journal."""
