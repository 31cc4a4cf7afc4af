"""A measured run beside its prediction: do they agree, and what could explain the difference."""
