#!/bin/sh
# Installs the frameworks whose parsers `pytest -n 0 -m frameworks` runs, into the Python that is
# active: no GPU is needed.
set -eu
cd "$(dirname "$0")/../.."
DS_BUILD_OPS=0 python -m pip install -e ".[dev,frameworks]" \
    --extra-index-url https://download.pytorch.org/whl/cpu
