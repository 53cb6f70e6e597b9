# SPDX-License-Identifier: Apache-2.0
"""The program `linger`, also as `python -m linger`: the command line, which answers Ctrl-C while it is imported, too."""

from __future__ import annotations

import os


def main() -> None:
    """Run the command that the arguments of this process name."""
    try:
        from linger.lazy_exports import importing

        with importing():
            from linger.cli import main as run_command

        run_command()
    except KeyboardInterrupt:
        os.write(2, b"linger: interrupted; nothing was written.\n")
        os._exit(130)  # nothing has been opened or started yet


if __name__ == "__main__":
    main()
