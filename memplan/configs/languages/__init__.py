"""The languages configs are written in: read them as data, and find and write single values."""
