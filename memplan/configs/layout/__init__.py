"""Changed values as text: lines of a child config in Python or YAML, and words of a training command."""
