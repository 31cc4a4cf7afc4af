"""The error for impossible limits and layouts, kept free of numpy to start fast."""


class ConstraintError(ValueError):
    """A limit or layout that is invalid or contradicts itself."""
