"""How figures look: Vega-Lite templates and what fills them in. The only package that knows Altair,
which notebooks get. Nothing is computed here."""
