"""What a config evaluates to: its bases, imports and interpolations, in a child process where that runs code."""
