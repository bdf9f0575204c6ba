"""This machine's devices and the cards one can plan for: what they are, what uses them, and taking turns on them."""
