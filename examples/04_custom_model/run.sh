#!/bin/sh
# A model of one's own (a Hugging Face config.json) on a cluster of one's own (TOML):
# look at the model, search, and explain the fastest plan.
set -eu
cd "$(dirname "$0")"
planner=${PLANNER:-planner}
plans=$(mktemp -d)/plans.json

$planner models config.json
$planner search --model config.json --cluster our-cluster.toml --gbs-tokens 2Mi -o "$plans"
$planner explain "$plans" 1
