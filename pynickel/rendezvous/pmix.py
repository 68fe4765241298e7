"""PMIx without Open MPI's own variables: it tells a process its rank, but not how many there are."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from .launcher import Environment

NAME = "pmix"
RANK, NAMESPACE = "PMIX_RANK", "PMIX_NAMESPACE"


def is_there(env: Environment) -> bool:
    """Whether a PMIx server has started this process."""
    return RANK in env and NAMESPACE in env
