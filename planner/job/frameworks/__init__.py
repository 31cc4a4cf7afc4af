"""Framework profiles, one TOML file each."""
