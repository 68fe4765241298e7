#!/usr/bin/env bash
# Check pynickel on this machine's first GPU, with what is installed; no network, ten minutes at most. Exit status 77: no GPU here.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/../.."
exec timeout --kill-after=10 590 "${PYTHON:-python3}" tests/gpu/check.py --library nvidia "$@"
