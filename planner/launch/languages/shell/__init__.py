"""Shell scripts: the commands that they would run, and where each word comes from."""
