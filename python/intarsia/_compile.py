"""torch.compile does not trace distributed tensors: the code around them runs uncompiled.

Under the drop-in that also holds if a program requests one graph, which PyTorch's DTensor supports.
"""

import functools
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch

_NOT_TRACED = (
    "[torch.compile] distributed tensors of Intarsia are not traced: the code around them runs without compilation. "
    "Compile functions of plain tensors, such as those inside local_map, and leave fullgraph out."
)


_met = threading.local()  # .count: how often tracing on this thread has met a distributed tensor


def leave_tracing() -> None:
    """Makes torch.compile, which asks for the storage first, run the code around the tensor uncompiled."""
    if torch._guards.TracingContext.try_get() is not None:
        from torch._dynamo.exc import Unsupported

        _met.count = _times_met() + 1
        _warn_not_traced()
        raise Unsupported(_NOT_TRACED) from None


def _times_met() -> int:
    return getattr(_met, "count", 0)


@functools.cache
def _warn_not_traced() -> None:
    warnings.warn(_NOT_TRACED, stacklevel=2)


def follow(undo: list[Callable[[], None]]) -> None:
    """From now on one graph is asked for of code without distributed tensors alone."""
    theirs = torch.compile

    @functools.wraps(theirs)
    def compile(model: Any = None, **options: Any) -> Any:
        compiled = theirs(model, **options)
        if model is None or not options.get("fullgraph"):
            return compiled
        if not isinstance(compiled, torch.nn.Module):
            return _or_as_it_stands(compiled, model)
        compiled.forward = _or_as_it_stands(compiled.forward, model)
        return compiled

    torch.compile = compile
    undo.append(lambda: setattr(torch, "compile", theirs))


def _or_as_it_stands(compiled: Callable, plain: Callable) -> Callable:
    """The compiled function until it meets us. It has run nothing then: a graph is made before it runs."""
    met_us = False

    @functools.wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal met_us
        if met_us or torch.compiler.is_compiling():
            return plain(*args, **kwargs)
        before = _times_met()
        try:
            return compiled(*args, **kwargs)
        except torch._dynamo.exc.TorchDynamoException as error:
            if _times_met() == before and not _stopped_in_our_code(error):
                raise
        met_us = True
        _warn_not_traced()
        return plain(*args, **kwargs)

    return call


def _stopped_in_our_code(error: Exception) -> bool:
    """Whether what could not be traced was called by a function of this package, such as a hook of fully_shard.

    An error keeps the source files of the functions that were being traced. They are compared with those of the modules of
    this package as they are, so that a program's own functions and files may have any name.
    """
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == __package__]
    ours = {getattr(module, "__file__", None) for module in modules}
    return any(frame.filename in ours for frame in getattr(error, "real_stack", None) or ())
