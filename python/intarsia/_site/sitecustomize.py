"""Found by Python programs that were started by ``python -m intarsia``: installs Intarsia when they load DTensor."""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

_NAME = "torch.distributed.tensor"
_HERE = os.path.dirname(os.path.abspath(__file__))


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for torch.distributed.tensor to be imported, and installs Intarsia after it."""

    def find_spec(self, name, path=None, target=None):
        if name != _NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            _when_complete(_install)

        spec.loader.exec_module = exec_module
        return spec


def _install():
    import intarsia

    intarsia.install()


class _Awaited(importlib.machinery.ModuleSpec):
    """Of a module that is being imported: calls a function when Python says that it no longer is."""

    @property
    def _initializing(self):
        return self.__dict__.get("_still", False)

    @_initializing.setter
    def _initializing(self, value):
        self._still = value
        if not value and (then := self.__dict__.pop("_then", None)):
            then()


def _when_complete(then):
    """Calls a function now, or when the module of PyTorch has been imported that asked for DTensor on its way."""
    for name, module in list(sys.modules.items()):  # the outermost was entered first
        spec = getattr(module, "__spec__", None)
        if name.partition(".")[0] == "torch" and name != _NAME and getattr(spec, "_initializing", False):
            del spec.__dict__["_initializing"]
            spec._still, spec._then, spec.__class__ = True, then, _Awaited
            return
    then()


def _run_hidden():
    """Another sitecustomize may be on the path, behind this one."""
    for path in sys.path:
        file = os.path.join(path, "sitecustomize.py")
        if os.path.abspath(path) != _HERE and os.path.isfile(file):
            spec = importlib.util.spec_from_file_location("_hidden_sitecustomize", file)
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
            return


sys.meta_path.insert(0, _Finder())
_run_hidden()
