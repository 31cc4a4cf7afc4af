"""Compares a measured run with its prediction: whether they agree, and possible causes of the
gap."""
