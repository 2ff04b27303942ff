#!/usr/bin/env bash
# Everything to be seen on one GPU, some minutes when all is installed and compiled:
#   the tests that need one, then speed and memory of the compiled programs. With two
#   GPUs or more, what two do together is tested and measured as well.
#
#   scripts/gpu_check.sh              results in $OUT, else in ./gpu_check
#   scripts/gpu_check.sh --rehearse   tiny sizes on two virtual devices of the CPU: does
#                                     every line run?
#
# PYTHON names an interpreter with the project's packages and a jax for CUDA. Without
# one that has them, an environment is made in .venv-gpu, which needs a package index.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=${OUT:-gpu_check}
mkdir -p "$out"
python=${PYTHON:-}
if [[ -z $python ]]; then
  python=python3
  [[ -x .venv/bin/python ]] && python=.venv/bin/python
  [[ -x .venv-gpu/bin/python ]] && python=.venv-gpu/bin/python
fi

extra=()
if [[ ${1:-} == --rehearse ]]; then
  extra=(--rehearse)
  export JAX_PLATFORMS=cpu
  export XLA_FLAGS="${XLA_FLAGS:-} --xla_force_host_platform_device_count=2"
elif [[ $# -gt 0 ]]; then
  echo "usage: scripts/gpu_check.sh [--rehearse]; got: $*" >&2
  exit 2
else
  export JAX_PLATFORMS=cuda,cpu
  export XLA_PYTHON_CLIENT_MEM_FRACTION=${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.92}
fi

# The newest CUDA that the driver can run chooses the extra.
cuda=cuda13
if [[ ${1:-} == --rehearse ]]; then
  echo "driver: not asked in a rehearsal" | tee "$out/driver.txt"
elif driver=$(timeout 30 nvidia-smi 2>/dev/null); then
  version=$(sed -n 's/.*CUDA Version: *\([0-9][0-9]*\).*/\1/p' <<<"$driver" | head -n 1)
  [[ -n $version && $version -lt 13 ]] && cuda=cuda12
  { sed -n 's/^| *\(NVIDIA-SMI.*[^ |]\)[ |]*$/\1/p' <<<"$driver"
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
    echo "extra [$cuda]"; } | tee "$out/driver.txt"
else
  echo "driver: nvidia-smi gave no answer; extra [$cuda]" | tee "$out/driver.txt"
fi

needs='import absl, flax, jax, ml_collections, optax, pytest, safetensors, transformers'
if ! "$python" -c "$needs" 2>/dev/null; then
  echo "$python lacks packages; making .venv-gpu"
  python3 -m venv .venv-gpu && python=.venv-gpu/bin/python &&
    timeout "${INSTALL_S:-1200}" "$python" -m pip install --quiet -e ".[$cuda,test]" ||
    { echo "no environment: set PYTHON to a Python that has them" >&2; exit 2; }
fi
# jax falls back to the CPU without an error; full sizes would then take hours.
backend=gpu
[[ ${1:-} == --rehearse ]] && backend=cpu
asks='import sys, jax; print(jax.devices()); sys.exit(jax.default_backend() != sys.argv[1])'
if ! timeout 120 "$python" -c "$asks" "$backend"; then
  echo "jax finds no $backend with JAX_PLATFORMS=$JAX_PLATFORMS" >&2
  exit 2
fi

cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
export JAX_COMPILATION_CACHE_DIR=$cache
code=0
timeout ${TESTS_S:-600} "$python" -m pytest -q -m gpu tests/gpu_test.py -p no:cacheprovider \
  2>&1 | tee "$out/tests.txt" || code=1
timeout ${MEASURE_S:-900} "$python" -m benchmarks.gpu_check --out="$out" "${extra[@]}" || code=1
echo "results in $out; exit $code after $SECONDS s"
exit $code
