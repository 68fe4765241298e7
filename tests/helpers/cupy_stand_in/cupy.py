"""Stands for CuPy where there is no GPU: its array has the CUDA array interface and gives its values by get() alone."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

copies = {"to host": 0, "from host": 0}  # in this process


class ndarray:
    """An array "on the GPU"."""

    def __init__(self, values: Any) -> None:
        self._values = values
        self.dtype, self.shape = values.dtype, values.shape

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._values.__array_interface__ | {"version": 3, "stream": 1}

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("no implicit conversion to a NumPy array")

    def __reduce__(self) -> NoReturn:
        raise TypeError("the array's own pickling was used")

    def get(self) -> Any:
        """The values on the host."""
        copies["to host"] += 1
        return self._values.copy()

    def set(self, values: Any) -> None:
        """Take values from the host."""
        if not isinstance(values, np.ndarray):
            raise TypeError("only a NumPy array can be set")
        copies["from host"] += 1
        self._values[...] = values


def asarray(values: Any) -> ndarray:
    """Values from the host, on the "GPU"."""
    copies["from host"] += 1
    return ndarray(np.array(values))
