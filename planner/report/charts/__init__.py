"""How figures look: the only package that knows Altair. Nothing is computed here."""
