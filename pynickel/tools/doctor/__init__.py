"""`pynickel doctor`: what this machine has, what will be used, and what to mend."""
# SPDX-License-Identifier: Apache-2.0
