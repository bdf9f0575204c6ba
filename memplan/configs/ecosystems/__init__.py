"""The config ecosystems: one module each, their registry, and what several of them share."""
