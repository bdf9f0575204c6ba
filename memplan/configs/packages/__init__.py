"""What the packages make of a config with which programs load it: each is asked in a child process."""
