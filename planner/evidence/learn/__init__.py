"""Calibration of physical parameters by a cluster's runs; readers of logs and traces."""
