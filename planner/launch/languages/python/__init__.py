"""Python files: the values that their functions would return."""
