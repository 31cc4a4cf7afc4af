"""MaxText 0.2.5: a YAML on top of its base.yml, and `key=value` on the command line."""
