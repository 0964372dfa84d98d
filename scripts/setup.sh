#!/usr/bin/env bash
# Make .venv, or bring it up to date; does nothing when nothing has changed.
#
#   scripts/setup.sh             everything: vLLM, TRL, trackers, tests, docs (`make setup`); LiteLLM and LangChain, for
#                                the tests, into .venv/clients, as they want older versions of what alora has
#   scripts/setup.sh quickstart  what alora and its guard need (`make quickstart`); the rest can be added later
#
#   PYTHON=python3.12     interpreter of a new .venv (3.11 or newer)
#   ALORA_TORCH=cpu|cuda  which build of torch and vLLM; default: cuda where nvidia-smi finds a GPU, else cpu
#   VENV=.venv            where the environment lies
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}
LOCK=scripts/requirements-cpu.txt
CLIENTS_LOCK=scripts/requirements-clients.txt
NEEDED=scripts/quickstart-packages.txt # names in the lock: what alora and its guard require, and theirs
WANTED=${1:-everything}
TORCH=2.13.0

fail() { echo "setup: $*" >&2; exit 2; }

if [ -n "${ALORA_TORCH:-}" ]; then
  choice=$ALORA_TORCH why="as ALORA_TORCH says"
elif command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then
  choice=cuda why="nvidia-smi finds a GPU"
else
  choice=cpu why="no NVIDIA GPU here"
fi
case $choice in cpu | cuda) ;; *) fail "ALORA_TORCH is '$choice'; give cpu or cuda" ;; esac

if [ ! -x "$VENV/bin/python" ]; then
  command -v "$PYTHON" >/dev/null || fail "there is no '$PYTHON'; install Python 3.11 or newer, or set PYTHON=..."
  "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$PYTHON is $("$PYTHON" --version 2>&1); alora needs Python 3.11 or newer: make setup PYTHON=python3.12"
fi

case $WANTED in everything | quickstart) ;; *) fail "'$WANTED' is nothing to install; leave it out, or: quickstart" ;; esac

stamp_file=$VENV/.alora-setup
stamp="$choice $(cat "$LOCK" pyproject.toml scripts/setup.sh | sha256sum | cut -d' ' -f1)"
part=
[ "$WANTED" = everything ] || part=" quickstart"
found=$(cat "$stamp_file" 2>/dev/null || true)
into=$VENV
# uv is several times faster and shows one bar; pip finds what only its own configuration names.
pip_install() { "$into/bin/python" -m pip --disable-pip-version-check install --no-compile "$@"; }
install() {
  if command -v uv >/dev/null; then
    uv pip install --python "$into/bin/python" "$@" && return
    echo "setup: uv cannot; pip tries the same" >&2
  fi
  pip_install "$@"
}

clients() {
  local into=$VENV/clients now
  now=$(sha256sum <"$CLIENTS_LOCK")
  [ "$(cat "$into/.alora-setup" 2>/dev/null)" != "$now" ] || return 0
  echo "setup: LiteLLM and LangChain, for the tests, into $into"
  rm -rf "$into"
  "$VENV/bin/python" -m venv "$into"
  PATH=$PATH:$VENV/bin install --no-deps --require-hashes -r "$CLIENTS_LOCK"
  echo "$now" >"$into/.alora-setup"
}

if [ -x "$VENV/bin/alora" ] && { [ "$found" = "$stamp" ] || [ "$found" = "$stamp$part" ]; }; then
  [ "$WANTED" = quickstart ] || clients
  exit 0
fi
if [ -n "$found" ] && [ "${found%% *}" != "$choice" ]; then
  rm -rf "$VENV" # the builds for CPU and GPU cannot be mixed in one environment
fi

echo "setup: $choice build of torch and vLLM ($why; ALORA_TORCH=cpu|cuda overrides) into $VENV"
[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
rm -f "$stamp_file"
cpu_torch() {
  if "$VENV/bin/python" -c "import importlib.metadata as m; raise SystemExit(m.version('torch') != '$TORCH+cpu')" 2>/dev/null; then
    return
  fi
  # pip knows the CPU build only where it is told of an index that has it; uv knows PyTorch's own.
  pip_install --no-deps "torch==$TORCH+cpu" 2>/dev/null || {
    command -v uv >/dev/null || pip_install --quiet "$(grep -o '^uv==[0-9.]*' "$LOCK")"
    PATH=$PATH:$VENV/bin uv pip install --python "$VENV/bin/python" --no-deps --torch-backend cpu "torch==$TORCH"
  } || fail "no CPU build of torch $TORCH was found, neither by pip nor by uv; install one into $VENV and run this again"
}

if [ "$choice" = cpu ]; then
  lock=$LOCK
  if [ "$WANTED" = quickstart ]; then
    lock=$VENV/quickstart.txt
    awk 'NR == FNR { needed[$1]; next } /^[a-zA-Z0-9]/ { split($1, name, "=="); on = name[1] in needed } on' \
      "$NEEDED" "$LOCK" >"$lock"
  fi
  cpu_torch
  install --no-deps --require-hashes -r "$lock"
  install --no-deps --no-build-isolation -e .
elif [ "$WANTED" = quickstart ]; then
  install -e '.[guard]'
else
  install -e '.[vllm,baselines,quantization,tracking,guard,plots,launchers,ray,docs,notebooks,dev]'
fi
echo "$stamp$part" >"$stamp_file"
[ "$WANTED" = quickstart ] || clients
echo "setup: done; $VENV/bin/alora --help"
