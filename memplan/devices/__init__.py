"""This machine and the cards one can plan for: what they are, what they hold now, and whose turn it is on them."""
