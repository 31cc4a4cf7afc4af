"""One spelling for the many in which people write a GPU: H100-80GB-SXM, h100 sxm5, ...

Case, order, separators, the vendor's name, the kind of memory and the generation of a form
factor do not tell GPUs apart; the model, the form factor and the size of the memory do.
"""

from __future__ import annotations

import re

_IRRELEVANT = frozenset(
    [
        "nvidia",
        "amd",
        "tesla",
        "geforce",
        "instinct",
        "gpu",
        "oam",
        "hbm2",
        "hbm2e",
        "hbm3",
        "hbm3e",
    ]
)
_SEPARATORS = re.compile(r"[^a-z0-9.]+")
_FORM_FACTOR = re.compile(r"(sxm|pcie)\d?|(nvl\d*)|rtx")
_MEMORY = re.compile(r"(?<![a-z0-9])(\d{2,3})\s*(?:gib|gb|g)?(?![a-z0-9])")
_SIZE = re.compile(r"\d{2,3}gb")

Key = tuple[str, ...]


def name_key(name: str) -> Key:
    """Sorted words of a name, in one spelling: `H100-80GB-SXM5` -> (80gb, h100, sxm)."""
    text = _FORM_FACTOR.sub(lambda match: f" {match[1] or match[2] or ''} ", name.lower())
    text = _MEMORY.sub(r"\1gb", _SEPARATORS.sub(" ", text))
    return tuple(sorted(set(text.split()) - _IRRELEVANT))


def without_memory(key: Key) -> tuple[Key, float | None]:
    """The key without the size of the memory, and that size as it is written, GB or GiB."""
    sizes = [word for word in key if _SIZE.fullmatch(word)]
    if len(sizes) != 1:
        return key, None
    return tuple(word for word in key if word != sizes[0]), float(sizes[0].removesuffix("gb"))
