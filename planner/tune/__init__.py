"""Short runs on the cluster itself, chosen by what they are worth: `planner tune`."""
