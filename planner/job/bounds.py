"""Upper limits of inputs, beyond any machine, model or run; larger numbers are typing errors."""

from constraints.axes import AXES

# Products of three such numbers stay exact in float64 tables.
MOST_LAYERS = 10_000
# Published models have 3 at most.
MOST_MTP_LAYERS = 16
WIDEST = 2**27
MOST_MICRO_BATCHES = AXES["grad_acc"].largest
# The longest sequences trained on so far have 10 million tokens.
LONGEST_SEQ = 2**27
# Step times of larger batches exceed the solver's 64-bit integers.
MOST_SEQUENCES = 2**32
