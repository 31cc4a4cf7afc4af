#!/bin/sh
# Installs the frameworks whose parsers `pytest -n 0 -m frameworks` runs, into the Python that is
# active: no GPU is needed. torchtitan 0.2.2 cannot stand beside 0.3 and gets a folder of its own.
set -eu
cd "$(dirname "$0")/../.."
DS_BUILD_OPS=0 python -m pip install -e ".[dev,frameworks]" \
    --extra-index-url https://download.pytorch.org/whl/cpu
python -m pip install --upgrade --no-deps --target .frameworks/torchtitan-0.2 torchtitan==0.2.2
