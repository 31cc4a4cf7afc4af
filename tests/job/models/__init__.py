"""Tests of the model catalogue and its readers."""
