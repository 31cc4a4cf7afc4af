"""Comparing clusters for a training run: each at its best plan, in days, money and energy.

`planner.compare.comparison.compare_clusters` compares several clusters,
`planner.compare.comparison.scale` compares growing numbers of one kind of GPU. Both return typed
results with `to_frame()` (a pandas DataFrame), which the command line prints. Importing this
package imports none of its modules, because a search needs only the laws.
"""
