"""User code that names a card, on a machine without it: asked as that card would answer, moved as it would move."""
