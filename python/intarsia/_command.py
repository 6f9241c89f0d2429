"""The command ``intarsia`` of an installed package: the program in ``bin/``, which is not Python."""

import os
import pathlib
import sys

from . import _version


def main() -> None:
    """Becomes the program, once the PyTorch beside us is known to be the one that it was built for."""
    _version.check_torch()
    program = pathlib.Path(__file__).parent / "bin" / "intarsia"
    if not program.exists():
        sys.exit(f"[intarsia] there is no {program}. This package was not installed from a wheel: use build/bin/intarsia.")
    os.execv(program, [str(program), *sys.argv[1:]])
