#!/usr/bin/env bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export PYTHONUNBUFFERED=1
EPOCHS=${EPOCHS:-2}
OUT=${1:-runs/exp}

python -m toolkit.train \
    --epochs "$EPOCHS" \
    --out "$OUT" | tee train.log
