"""The tails of errors: Student's t with three degrees of freedom.

For ln(measured / predicted) over the half widths fitted to other sources, both for today's errors
and for those at the first comparison, 2 to 3 degrees are most likely (mean log density -0.80 and
-1.37 with 3, -0.95 and -1.48 with 30, which is nearly normal): a few runs are far outside, most far
inside.
"""

from __future__ import annotations

from math import atan, pi, sqrt
from statistics import NormalDist

# Degrees of freedom for which the distribution function has a closed form.
DEGREES = 3.0
# Its 90 % quantile, in units of its scale.
_AT_90 = 1.637744353696210


def share_below(value: float) -> float:
    """Distribution function at a value in units of the 90 % quantile.

    F(t) = 1/2 + (atan(s) + s / (1 + s²)) / π with s = t / √3 (Student 1908, n = 4).
    """
    s = _AT_90 * value / sqrt(DEGREES)
    return 0.5 + (atan(s) + s / (1.0 + s * s)) / pi


def at_90(degrees: float) -> float:
    """The 90 % quantile of Student's t with this number of degrees of freedom, three or more, in
    units of its scale: within 0.1 % (Abramowitz and Stegun, 26.7.5)."""
    z = NormalDist().inv_cdf(0.9)
    terms = (
        (z**3 + z) / 4.0,
        (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / 96.0,
        (3.0 * z**7 + 19.0 * z**5 + 17.0 * z**3 - 15.0 * z) / 384.0,
    )
    return z + sum(term / degrees**power for power, term in enumerate(terms, 1))
