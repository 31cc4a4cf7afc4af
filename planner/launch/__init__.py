"""Launch folders that the frameworks' own parsers accept; each framework has a writer."""
