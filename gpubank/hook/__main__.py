"""`python -m gpubank.hook …`: the same commands as the exported file."""

import sys

from gpubank.hook.command import main

if __name__ == "__main__":
    sys.exit(main())
