"""`pynickel bench`: nccl-tests' measurements and table, on every library that pynickel can open."""
# SPDX-License-Identifier: Apache-2.0
