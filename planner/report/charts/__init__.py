"""Charts: their data, and the code that fills in their Vega-Lite templates. Only `drawing` imports
Altair, which notebooks get."""
