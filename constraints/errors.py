"""The error of what a user asks of a plan; without numpy, which a command line need not load."""


class ConstraintError(ValueError):
    """A limit or a layout that contradicts itself."""
