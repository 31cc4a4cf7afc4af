"""What a GPU hour costs its owner, and what hours cost: closed forms, no catalogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import expm1, log1p

HOURS_PER_YEAR = 8760.0
MONTHS_PER_YEAR = 12.0


def annuity(principal: float, interest: float, years: float) -> float:
    """Equal yearly payment that repays a purchase with interest over some years.

    a = P · r / (1 - (1 + r)^-n), and P / n without interest (the ordinary annuity).
    principal P in money, interest r per year, years n > 0.
    """
    if interest == 0.0:
        return principal / years
    return principal * interest / -expm1(-years * log1p(interest))


@dataclass(frozen=True, slots=True)
class OwnedHour:
    """Cost of one GPU for one hour to its owner, by part; the parts add up to `total`.

    `hardware`: card, or whole node or cluster, as it was priced; `around`: hosts, NICs, switches
    and cables that this price leaves out; `electricity`: facility power; `hosting`: space, cooling
    plant and power feed.
    """

    hardware: float
    around: float
    electricity: float
    hosting: float

    @property
    def total(self) -> float:
        """Sum of the parts."""
        return self.hardware + self.around + self.electricity + self.hosting


def owned_hour(
    hardware: float, around: float, drawn_w: float, rated_w: float, term: Callable[[str], float]
) -> OwnedHour:
    """Cost of a GPU hour in use.

    `hardware`, `around`: purchase prices a GPU. `drawn_w`: facility power drawn a GPU (IT power
    times PUE), `rated_w`: rated IT power a GPU, which hosting is paid for. `term`: interest,
    amortisation_years, utilisation (share of the life in use), electricity (money per kWh) and
    hosting (money per kW and month of rated power). What is paid whether or not the GPU works is
    spread over the hours in use.
    """
    hours = HOURS_PER_YEAR * term("utilisation")
    hosting_year = rated_w / 1e3 * term("hosting") * MONTHS_PER_YEAR
    return OwnedHour(
        hardware=annuity(hardware, term("interest"), term("amortisation_years")) / hours,
        around=annuity(around, term("interest"), term("amortisation_years")) / hours,
        electricity=drawn_w / 1e3 * term("electricity"),
        hosting=hosting_year / hours,
    )
