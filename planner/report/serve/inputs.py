"""What a person may ask of `planner serve`: names and numbers, no files."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from planner.job.errors import UsageError, unknown_name
from planner.job.models.catalog import catalog_name, model_names
from planner.job.pool import SeveralTypes
from planner.job.quantities import parse_length, parse_tokens
from planner.job.request import Request
from planner.launch.registry import targets

# Larger clusters, and models that need them, are for the command line: one costing pass of a search
# is not interrupted.
MOST_GPUS = 16_384
PRECISIONS = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4")
FRAMEWORKS = tuple(dict.fromkeys(target.profile for target in targets().values()))

Word = Annotated[str, Field(max_length=80)]


class Inputs(BaseModel):
    """The fields of the form as people write them; an empty one takes its default."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: Word = Field("8b", title="Model", examples=["70b"])
    gpus: Word = Field("8xH100", title="GPUs", examples=["64xH100"])
    batch: Word = Field("1M", title="Global batch, tokens", examples=["4M"])
    seq: Word = Field("", title="Sequence, tokens", examples=["the model's"])
    framework: Word = Field("megatron-core", title="Framework")
    precision: Word = Field("bf16", title="Precision")
    sure: Word = Field("80%", title="Must fit with", examples=["80%"])
    reserve: Word = Field("0", title="HBM to keep free", examples=["5% or 4GiB"])
    conditions: str = Field(
        "", title="Conditions, separated by ;", examples=["tp <= 4; mbs == 1"], max_length=400
    )

    def request(self) -> Request:
        """The request. UsageError, or what the request says, for what cannot be taken."""
        if catalog_name(self.model) is None:
            hint = "planner models lists them; model files are for planner search"
            raise unknown_name("model", self.model, model_names(), hint)
        if self.framework not in FRAMEWORKS:
            raise unknown_name("framework", self.framework, FRAMEWORKS, ", ".join(FRAMEWORKS))
        if "/" in self.gpus or "\\" in self.gpus:
            raise UsageError(f"{self.gpus!r}: a cluster file must lie where planner serve runs")
        conditions = tuple(text.strip() for text in self.conditions.split(";") if text.strip())
        request = Request(
            model=self.model,
            gpus=self.gpus,
            gbs_tokens=parse_tokens(self.batch),
            seq=parse_length(self.seq) if self.seq else None,
            framework=self.framework,
            precision=self.precision,
            fit_probability=_probability(self.sure),
            hbm_reserve=self.reserve or "0",
            require=conditions,
        )
        if isinstance(request.gpu_words, SeveralTypes):
            raise UsageError(
                f"{self.gpus}: GPUs of several types are for planner search; give one type here"
            )
        count = request.find_cluster().num_gpus
        if count > MOST_GPUS:
            raise UsageError(
                f"{count:,} GPUs: give {MOST_GPUS:,} at most here; planner search takes more"
            )
        return request


def _probability(text: str) -> float:
    try:
        return float(text.strip().removesuffix("%")) / (100.0 if "%" in text else 1.0)
    except ValueError:
        raise UsageError(f"{text!r}: write a probability as 80% or 0.8") from None
