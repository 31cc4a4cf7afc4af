"""What a cluster's runs teach: calibration of physical parameters, readers of logs and traces."""
