"""The op table of a transformer: one set of rows behind parameters, FLOP, memory and time."""
