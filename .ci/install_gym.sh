#!/usr/bin/env bash
# Makes a virtual environment with the real NeMo Gym and uv, which it starts servers with, at $1, also for tests/end_to_end/test_real_gym.py; at once when it is there.
# $2 is a Python 3.12 to make it with.
#     .ci/install_gym.sh /tmp/gym && NEMO_GYM_HOME=/tmp/gym make test
set -euo pipefail

home=${1:?usage: .ci/install_gym.sh DIRECTORY [PYTHON]}
python=${2:-python3.12}
version=0.4.0

has_gym() {
  "$home/bin/python" -c "import sys, importlib.metadata as m; sys.exit(m.version('nemo-gym') != '$version')" 2>/dev/null
}

has_gym && exit
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' || {
  echo "install_gym: $python is no Python 3.12, which nemo-gym $version needs: .ci/install_gym.sh $home /path/to/python3.12" >&2
  exit 1
}
"$python" -m venv "$home"
"$home/bin/python" -m pip install --quiet --disable-pip-version-check "nemo-gym==$version" uv
has_gym
