"""The model catalogue (one TOML a model) and the readers that turn a description into a ModelSpec.

To add a model, add a TOML file here; its file name is the catalogue name. Short names live in
`aliases.toml`. Entry points: `planner.job.models.catalog`.
"""
