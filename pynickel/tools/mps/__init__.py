"""NVIDIA's Multi-Process Service: its daemons, their directories, and `pynickel mps`."""
# SPDX-License-Identifier: Apache-2.0
