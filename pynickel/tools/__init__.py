"""The commands of `pynickel`."""
# SPDX-License-Identifier: Apache-2.0
