"""`pynickel trace`: what a NICKEL_TRACE file tells, as a timeline and in short."""
# SPDX-License-Identifier: Apache-2.0
