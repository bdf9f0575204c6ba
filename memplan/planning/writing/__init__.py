"""What is recommended, written into the user's config, and the finished plan."""
