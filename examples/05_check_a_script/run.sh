#!/bin/sh
# What is wrong with a launch script, and the same script mended.
#
# planner check reads what people launch with and runs none of it. Exit status 1 says that it will
# not run or not fit, so here that is expected.
set -u
planner=${PLANNER:-planner}
cd "$(dirname "$0")" || exit 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

$planner check pretrain_moe.sh --gpus 32xH100 --fix -o "$folder/fixed.sh" && exit 3
$planner check "$folder/fixed.sh" --gpus 32xH100
