"""Live trials of a plan: which are run, in what order, and how runs on one device take turns."""
