"""Numbers of tokens as people write them."""

from __future__ import annotations

import re

from planner.job.errors import UsageError

# Beyond any training: what one writes has at most these tokens.
MOST_TOKENS = 10**18

# Separators stand before three digits; a comma elsewhere makes a list, not a number.
_QUANTITY = re.compile(
    r"^((?:[0-9]{1,3}(?:[,_][0-9]{3})+|[0-9]{1,19})(?:\.[0-9]{1,19})?)([kKmMgGbBtT]?)(i?)$"
)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "b": 3, "t": 4}


def parse_tokens(text: str) -> int:
    """`4M` = 4·10^6, `4Mi` = 4·2^20, also K, G (or B) and T; plain digits as they are."""
    match = _QUANTITY.match(text.strip())
    if not match:
        raise UsageError(
            f"{text!r} is not a number of tokens; write for example 4M (4·10^6), "
            "4Mi (4·2^20) or 4194304"
        )
    number, letter, binary = match.groups()
    if binary and not letter:
        raise UsageError(f"{text!r}: 'i' needs a letter before it, as in 4Mi")
    base = 1024 if binary else 1000
    value = float(re.sub("[,_]", "", number)) * base ** _POWERS[letter.lower()]
    if value < 1 or value != int(value):
        raise UsageError(f"{text!r} is {value:g} tokens; a batch is a whole number of at least 1")
    if value > MOST_TOKENS:
        raise UsageError(f"{text!r}: more than 10^18 tokens, which no training has")
    return int(value)
