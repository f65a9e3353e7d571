"""Entry point of `python -m localkube`."""

import sys

from localkube.cli import main

if __name__ == "__main__":
    sys.exit(main())
