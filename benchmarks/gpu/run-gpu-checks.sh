#!/bin/sh
# Measure this machine's GPU, without a network: bash run-gpu-checks.sh OUT [--only STEP ...]
# Python 3.11 or newer has torch, numpy and pytest. PYTHON names one: PYTHON=python3.12 bash run-gpu-checks.sh OUT
set -eu
kit=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT
if ls "$kit"/wheels/*.whl > /dev/null 2>&1; then
    "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --find-links "$kit/wheels" \
        --target "$packages" cloudpickle platformdirs psutil
fi
export PYTHONPATH="$kit:$packages" PYTHONSAFEPATH=1 COURSE_HOME="$packages/home"  # not what lies in this folder
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1  # a machine's own plugins may need Jupyter
timeout 470 "$python" -m benchmarks.gpu "$@"  # what was measured until then is in OUT
