"""Figures: their data, and what fills in their Vega-Lite templates. `drawing` alone knows Altair,
which notebooks get."""
