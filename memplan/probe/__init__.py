"""Live trials: what one recipe really needs, found out in a child process; the search over sizes, and the journal."""
