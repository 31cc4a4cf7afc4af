"""Framework profiles, one TOML file for each."""
