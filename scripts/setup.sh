#!/usr/bin/env bash
# Make .venv, or bring it up to date. Run by `make setup`; does nothing when nothing has changed.
#
#   PYTHON=python3.12     interpreter of a new .venv (3.11 or newer)
#   ALORA_TORCH=cpu|cuda  which build of torch and vLLM; default: cuda where nvidia-smi finds a GPU, else cpu
#   VENV=.venv            where the environment lies
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}
LOCK=scripts/requirements-cpu.txt
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

stamp_file=$VENV/.alora-setup
stamp="$choice $(cat "$LOCK" pyproject.toml scripts/setup.sh | sha256sum | cut -d' ' -f1)"
if [ -x "$VENV/bin/alora" ] && [ "$(cat "$stamp_file" 2>/dev/null)" = "$stamp" ]; then
  exit 0
fi
if [ -f "$stamp_file" ] && [ "$(cut -d' ' -f1 "$stamp_file")" != "$choice" ]; then
  rm -rf "$VENV" # the builds for CPU and GPU cannot be mixed in one environment
fi

echo "setup: $choice build of torch and vLLM ($why; ALORA_TORCH=cpu|cuda overrides) into $VENV"
[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
rm -f "$stamp_file"
pip() { "$VENV/bin/python" -m pip --disable-pip-version-check "$@"; }

cpu_torch() {
  if "$VENV/bin/python" -c "import importlib.metadata as m; raise SystemExit(m.version('torch') != '$TORCH+cpu')" 2>/dev/null; then
    return
  fi
  # pip knows the CPU build only where it is told of an index that has it; uv knows PyTorch's own.
  pip install --quiet --no-deps "torch==$TORCH+cpu" 2>/dev/null ||
    "$VENV/bin/uv" pip install --quiet --python "$VENV/bin/python" --no-deps --torch-backend cpu "torch==$TORCH" ||
    fail "no CPU build of torch $TORCH was found, neither by pip nor by uv; install one into $VENV and run this again"
}

echo "setup: installing; the first time this takes a few minutes"
if [ "$choice" = cpu ]; then
  pip install --quiet --no-deps --require-hashes -r "$LOCK"
  cpu_torch
  pip install --quiet --no-deps --no-build-isolation -e .
else
  pip install --quiet -e '.[vllm,baselines,quantization,tracking,plots,launchers,docs,notebooks,dev]'
fi
echo "$stamp" >"$stamp_file"
echo "setup: done; $VENV/bin/alora --help"
