"""Calibrate physical parameters from a cluster's runs; read logs and traces."""
