#!/bin/sh
# Installs wheel and sdist of a folder into fresh environments without an index, and uses each from
# an empty folder:
#
#     python -m build && sh tests/packaging/offline.sh dist
#
# The packages that they need are fetched first, once, into a folder; PYTHON says which Python.
set -eu

dist=$(cd "$1" && pwd)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/fetch"
"$work/fetch/bin/pip" download --quiet --dest "$work/packages" "$dist"/*.whl "hatchling>=1.27"
for file in "$dist"/*.whl "$dist"/*.tar.gz; do
    rm -rf "$work/venv" "$work/outside"
    mkdir "$work/outside"
    "$python" -m venv "$work/venv"
    cp "$file" "$work/packages/"
    "$work/venv/bin/pip" install --quiet --no-index --find-links "$work/packages" "$file"
    cd "$work/outside"
    "$work/venv/bin/planner" --version
    "$work/venv/bin/planner" search --model llama-3-8b --gpus 8xH100 --gbs 64 --quiet -o plans.json
    "$work/venv/bin/planner" launch plans.json 1 -o run
    "$work/venv/bin/python" -c "import planner; print(planner.__file__)"
    cd - >/dev/null
    echo "$(basename "$file"): installs without an index and runs outside the clone"
done
