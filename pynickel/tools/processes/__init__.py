"""`pynickel ps` and `pynickel kill`: who holds communicators, what they wait in, and how to be rid of them."""
# SPDX-License-Identifier: Apache-2.0
