"""Writing the recommendation into the user's config, and finishing the plan."""
