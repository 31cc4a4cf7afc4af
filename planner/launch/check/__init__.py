"""What to say about a launch that was found: will it run, fit, how fast, what to change."""
