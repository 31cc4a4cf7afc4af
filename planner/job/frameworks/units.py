"""How a setting of a framework is declared: its unit in the type, its meaning in the text below.

    slice_copy_s: Seconds = 0.0
    \"\"\"CPU time of copying a slice of a tensor. Source: where the default comes from.\"\"\"

This is the only declaration: the TOML schema is the class, the compiled core's record is filled
by name (`planner.predict.cost_tables`), and `planner.job.frameworks.settings` reads it for people.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field


def unit(name: str) -> Any:
    """The unit of an annotated type; the last one counts."""
    return Field(json_schema_extra={"unit": name})


Share = Annotated[float, Field(ge=0.0, le=1.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
Ratio = Annotated[float, Field(gt=0.0)]
Seconds = Annotated[NonNegative, unit("s")]
Bytes = Annotated[NonNegative, unit("B")]
ElementBytes = Annotated[NonNegative, unit("B/element")]
ParameterBytes = Annotated[NonNegative, unit("B/parameter")]
TokenBytes = Annotated[NonNegative, unit("B/token")]
LogitBytes = Annotated[NonNegative, unit("B/logit")]
