"""Compares a measured run with its prediction: whether they agree, and what could explain the
gap.
"""
