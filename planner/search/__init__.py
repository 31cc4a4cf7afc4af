"""The search: bounds, the CP-SAT layout model, the Pareto front, and why nothing fits."""
