"""`python -m pynickel` is the command `pynickel`."""
# SPDX-License-Identifier: Apache-2.0

from .tools.cli import main

if __name__ == "__main__":
    main(prog_name="python -m pynickel")
