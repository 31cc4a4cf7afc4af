"""Refit the curves that ship in `hardware/efficiency` on measurements."""
