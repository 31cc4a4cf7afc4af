"""Compares a measured run with its prediction: do they agree, and what could explain the gap."""
