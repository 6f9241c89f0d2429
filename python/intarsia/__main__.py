"""``python -m intarsia script.py args`` and ``python -m intarsia -m module args``: runs a program on Intarsia."""

import os
import runpy
import sys
import types

import intarsia

_USAGE = "usage: python -m intarsia script.py [args ...]\n       python -m intarsia -m module [args ...]"


def _pass_on() -> None:
    """Python programs that this one starts (torchrun's workers) also run on Intarsia."""
    here = os.path.dirname(os.path.abspath(__file__))
    paths = [os.path.join(here, "_site"), os.path.dirname(here), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)


def main() -> None:
    """Installs Intarsia and runs the program as ``__main__``."""
    args = sys.argv[1:]
    if not args or args[0] in ("-h", "--help") or args == ["-m"]:
        sys.exit(_USAGE)
    _pass_on()
    intarsia.install()
    if args[0] == "-m":
        sys.argv = args[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = args
        sys.path[0] = os.path.dirname(os.path.abspath(args[0]))
        _run_script(args[0])


def _run_script(path: str) -> None:
    """As Python runs it: in the one module ``__main__``, so that pickle and multiprocessing find the program again."""
    program = types.ModuleType("__main__")
    program.__file__ = path
    sys.modules["__main__"] = program
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    exec(code, program.__dict__)


if __name__ == "__main__":
    main()
