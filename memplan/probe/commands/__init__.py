"""Trials of a user's own training command: started unchanged, observed from inside and from outside."""
