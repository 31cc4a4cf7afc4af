"""MaxText 0.2.5: a YAML over its base.yml, and `key=value` on the command line."""
