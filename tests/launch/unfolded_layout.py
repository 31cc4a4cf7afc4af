"""Reading Megatron's `--pipeline-model-parallel-layout`, to hold what is written against."""

from __future__ import annotations

import re


def unfolded_layout(text: str) -> list[str]:
    """Blocks in pipeline order: `Et*2|(tt|)*2L` is `Ett`, `tt`, `tt`, `L`.

    Letters are the embedding (E), transformer layers (t), MTP (m) and the loss (L).
    """
    repeats = re.compile(r"\(([^()]*)\)\*(\d+)|(\w)\*(\d+)")
    while match := repeats.search(text):
        unit, times = (match[1], match[2]) if match[2] else (match[3], match[4])
        text = text[: match.start()] + unit * int(times) + text[match.end() :]
    return text.split("|")
