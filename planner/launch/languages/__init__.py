"""Shell scripts, Python and YAML read as text: what they would do, worked out and never run.

Nothing here knows of training, of a launcher or of a framework; nothing imports the rest of the
planner.
"""
