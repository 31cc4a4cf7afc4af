"""The op table of a transformer: one set of rows from which parameters, FLOP, memory and time are
computed."""
