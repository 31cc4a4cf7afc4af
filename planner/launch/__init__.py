"""Launch folders that the frameworks' own parsers accept: one writer a framework."""
