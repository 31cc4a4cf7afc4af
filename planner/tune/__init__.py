"""Short runs on the cluster itself, chosen by what they are worth: the last per cent of a plan."""
