"""`planner tune`: short runs on the cluster itself, chosen by the time that they are expected to
save."""
