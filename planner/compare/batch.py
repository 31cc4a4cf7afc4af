"""The global batch of a comparison that was not told one."""

from __future__ import annotations

from planner.job.request import Request
from planner.predict.ops import parameter_count

# Llama 2 trained 7 B to 70 B parameters with 4 M tokens (arXiv 2307.09288, section 2.2); Llama 3
# trained 405 B with 16 M from 2.87 T tokens on (arXiv 2407.21783, section 3.4.1).
USUAL_TOKENS = 4_000_000
LARGE_TOKENS = 16_000_000
LARGE_MODEL_PARAMETERS = 1e11


def with_batch(request: Request) -> tuple[Request, str]:
    """The request with a global batch, and a sentence if it had to be assumed."""
    if (request.gbs, request.gbs_tokens, request.batch_ramp) != (None, None, None):
        return request, ""
    model = request.find_model().spec
    large = parameter_count(model).total >= LARGE_MODEL_PARAMETERS
    tokens = LARGE_TOKENS if large else USUAL_TOKENS
    like = "Llama 3 405B" if large else "Llama 2"
    note = (
        f"global batch of {tokens // 10**6} M tokens assumed, as {like} had; --gbs-tokens sets it"
    )
    return request.model_copy(update={"gbs_tokens": tokens}), note
