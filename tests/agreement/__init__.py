"""Search, `evaluate`, `launch` and `check` agree about every plan of varied searches."""
