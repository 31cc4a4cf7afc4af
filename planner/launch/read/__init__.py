"""What people launch with, read back: one reader a format, text in, `Found` out.

`planner.launch.read.launch.read_launch` is the way in. Nothing that is read is ever executed or
imported.
"""
