"""What tells code and values from others of their name, across processes."""
