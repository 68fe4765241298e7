"""What several test modules share; nothing here is a test."""
# SPDX-License-Identifier: Apache-2.0
