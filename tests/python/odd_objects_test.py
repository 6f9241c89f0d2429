"""No object of Python ends the process: every function of the core and of the package gets odd ones, each in every place.

A batch of calls runs in a process of its own. If that ends by a signal, or a call takes too long, the test names the call, and
the next process goes on behind it.
"""

import contextlib
import gc
import os
import re
import signal
import tempfile
import unittest
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

import intarsia
from intarsia import Shard, _core, distribute_tensor, simulate
from intarsia._mesh import core_mesh, current_world
from odd_objects import OTHERS, TENSORS
from odd_programs import PROGRAMS, mesh

ODD = {**TENSORS, **OTHERS}
SECONDS = 60  # for one call
FOLDER = tempfile.TemporaryDirectory()
Call = tuple[str, Callable[[], Any]]


def ends(calls: "list[Call]", world: Callable = lambda: simulate(2)) -> "list[str]":
    """The calls that end their process, and how."""
    found, first = [], 0
    while first < len(calls):
        place, status = _run_from(calls, first, world)
        if status == 0:
            break
        name = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"status {os.waitstatus_to_exitcode(status)}"
        found.append(f"{calls[place][0]}: {'no end' if name == 'SIGALRM' else name}")
        first = place + 1
    return found


def _run_from(calls: "list[Call]", first: int, world: Callable) -> "tuple[int, int]":
    with tempfile.TemporaryFile() as note:
        child = os.fork()
        if child == 0:
            _play(calls, first, world, note.fileno())
        _, status = os.waitpid(child, 0)
        return int(os.pread(note.fileno(), 20, 0) or first), status


def _play(calls: "list[Call]", first: int, world: Callable, note: int) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    warnings.simplefilter("ignore")
    with world():
        for place in range(first, len(calls)):
            os.pwrite(note, str(place).encode().ljust(20), 0)
            signal.alarm(SECONDS)
            with contextlib.suppress(Exception):
                _use(calls[place][1]())
        gc.collect()
    os._exit(0)


def _use(result: Any) -> None:
    """What was accepted can be looked at."""
    repr(result)
    for tensor in torch.utils._pytree.tree_leaves(result):
        if isinstance(tensor, torch.Tensor):
            (tensor + 1).sum()


# Values that a parameter of the core may have, by how pybind11 writes its type; the first that fits.
FITTING: "tuple[tuple[str, Callable[[], Any]], ...]" = (
    (r"Sequence\[tuple\[str, torch.Tensor\]\]", lambda: [("w", torch.ones(4, 3, requires_grad=True))]),
    (r"Sequence\[torch.Tensor\]", lambda: [torch.ones(4, 3), torch.ones(4, 3)]),
    (r"local: torch.Tensor", lambda: torch.ones(4, 3)),
    (r"Tensor", lambda: distribute_tensor(torch.ones(4, 3), mesh(), [Shard(0)])),
    (r"World", lambda: current_world()),
    (r"Mesh", lambda: core_mesh(mesh())),
    (r"Sequence\[Sequence\[Placement", lambda: [[Shard(0)], [Shard(0)]]),
    (r"Placement", lambda: [Shard(0)]),
    (r"Sequence\[typing.Supports", lambda: [2]),
    (r"Sequence\[str", lambda: ["w"]),
    (r"dict", lambda: {"w": torch.ones(2)}),
    (r": bool", lambda: False),
    (r"SupportsInt", lambda: 1),
    (r"SupportsFloat", lambda: 1.0),
    (r": str", lambda: os.path.join(FOLDER.name, "c")),
    (r"torch.device", lambda: torch.device("cpu")),
    (r"torch.dtype", lambda: torch.float32),
    (r"Callable", lambda: lambda *args: None),
    (r"", lambda: None),
)
OBJECTS: "dict[str, Callable[[], Any]]" = {  # that have methods
    "Mesh": lambda: core_mesh(mesh()),
    "MovingParameters": lambda: _core.MovingParameters(),
    "Reducer": lambda: _core.Reducer(1, "m", core_mesh(mesh()), [("w", torch.ones(4, 3, requires_grad=True))], [], 1, 1, *[False] * 5),
    "ParamGroup": lambda: _group(),
    "World": lambda: current_world(),
}
LEFT_OUT = {"make_backend", "joined_world", "World.close"}  # they wait for other processes
CHANGE_ALL = {"add_rule", "see_calls", "set_generators", "set_guide", "set_pending_writes"}  # what comes after them
A_WRAPPER = (
    "a tensor subclass with __torch_dispatch__, which has no memory to share or to send. Give plain tensors, such as those "
    "inside of it."
)
A_MOCK = "what says that it is a tensor"  # PyTorch's own functions read it as if it were one
# PyTorch's own functions read or write these as if they were alive, with plain tensors in our place as well.
BY_PYTORCH_AS_WELL = (("data", "an escaped grad"), *((name, "an escaped functionalize") for name in PROGRAMS))


def _group(dim: int = 0) -> "_core.ParamGroup":
    parameters = [("w", torch.ones(4, 3, requires_grad=True))]
    return _core.ParamGroup(1, "m", core_mesh(mesh()), parameters, [], [dim], None, None, None, None, False, False, False, False)


def parameters(function: Any) -> "list[str]":
    """A bound function's parameters, with their types."""
    text = re.search(r"\((.*)\) ->", (function.__doc__ or "").partition("\n")[0])
    parts, depth = [""], 0
    for letter in text[1] if text else "":
        depth += (letter in "[(<") - (letter in "])>")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part]


def bound() -> "Iterator[tuple[str, Callable, list[str]]]":
    """Every function of the core, with its parameters."""
    for name, value in sorted(vars(_core).items()):
        if not isinstance(value, type):
            if callable(value):
                yield name, value, parameters(value)
            continue
        yield name, value, parameters(value.__init__)[1:]
        for method in sorted(vars(value)) if name in OBJECTS else ():
            if not method.startswith("_") and (taken := parameters(getattr(value, method))[1:]):
                yield f"{name}.{method}", _method(OBJECTS[name], method), taken


def _method(make: Callable, name: str) -> Callable:
    return lambda *args: getattr(make(), name)(*args)


def with_odd_ones(name: str, function: Callable, taken: "list[str]") -> "Iterator[Call]":
    """The function with each odd object in each place, and values that fit in the others."""
    makers = [next(make for pattern, make in FITTING if re.search(pattern, kind)) for kind in taken]
    for place in range(len(makers)):
        for what, odd in ODD.items():
            yield f"{name}, argument {place} is {what}", _call(function, [odd if n == place else make for n, make in enumerate(makers)])


def _call(function: Callable, makers: "list[Callable]") -> Callable:
    def call() -> Any:
        made = function(*(make() for make in makers))
        if hasattr(made, "__enter__"):
            with made:
                return torch.ones(2) + 1
        return made

    return call


@contextlib.contextmanager
def one_process() -> Iterator[None]:
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield


class OddObjects(unittest.TestCase):
    def test_end_no_function_of_the_core(self):
        functions = [(name, function, taken) for name, function, taken in bound() if name not in LEFT_OUT]
        alone = [[one] for one in functions if one[0] in CHANGE_ALL]
        for group in ([one for one in functions if one[0] not in CHANGE_ALL], *alone):
            self.assertEqual(ends([call for one in group for call in with_odd_ones(*one)]), [])

    def test_end_no_program(self):
        for world in (lambda: simulate(2), one_process):
            calls = [
                (f"{name}, with {what}", lambda program=program, odd=odd: program(odd()))
                for name, program in PROGRAMS.items()
                for what, odd in ODD.items()
                if what != A_MOCK and (name, what) not in BY_PYTORCH_AS_WELL
            ]
            self.assertEqual(ends(calls, world), [])

    def test_zeros_without_memory_are_refused_by_checkpoints_and_left_alone_as_buffers(self):
        def zeros() -> torch.Tensor:
            return torch._efficientzerotensor((4, 3))

        programs = ("checkpoint.save", "fully_shard, a buffer", "all_reduce", "all_gather")
        self.assertEqual(ends([(name, lambda program=PROGRAMS[name]: program(zeros())) for name in programs]), [])

    def test_a_mock_is_no_distributed_tensor(self):
        self.assertNotIsInstance(OTHERS[A_MOCK](), intarsia.DTensor)

    def test_wrappers_are_refused_by_name(self):
        for function, name, call in (
            ("fully_shard", '"odd"', PROGRAMS["fully_shard"]),
            ("replicate", '"odd"', PROGRAMS["replicate"]),
            ("distribute_tensor", "the tensor", PROGRAMS["distribute_tensor"]),
            ("from_local", "the tensor", PROGRAMS["from_local"]),
            ("per_rank", "the tensor", PROGRAMS["rank_map"]),
            ("checkpoint", "the tensor", PROGRAMS["checkpoint.save"]),
        ):
            with self.subTest(function), simulate(2), self.assertRaises(NotImplementedError) as caught:
                call(TENSORS["a parameter that is a wrapper subclass"]())
            self.assertEqual(str(caught.exception).splitlines()[0], f"[{function}] {name} is {A_WRAPPER}")

    def test_data_of_a_sharded_parameter_is_no_wrapper(self):
        with simulate(2), self.assertRaises(NotImplementedError) as caught:
            PROGRAMS["fully_shard, data"](TENSORS["a TwoTensor"]())
        self.assertEqual(str(caught.exception).splitlines()[0], f"[set_data] the data of a parameter is {A_WRAPPER}")

    def test_a_dim_that_a_parameter_does_not_have_is_named(self):
        for dim in (-1, 2):
            with simulate(2), self.assertRaises(IndexError) as caught:
                _group(dim)
            text = f'[fully_shard] "w" has 2 dims, so it cannot be sharded along dim {dim}. Give one of its dims, counted from 0.'
            self.assertEqual(str(caught.exception).splitlines()[0], text)

    def test_a_checkpoint_is_not_converted_into_files_without_end(self):
        path = os.path.join(FOLDER.name, "converted")
        with simulate(2), self.assertRaises(ValueError) as caught:
            _core.checkpoint_convert(path, path, 2**62, True)
        text = "[checkpoint::convert] cannot write 4611686018427387904 files. Give 1048576 at most."
        self.assertEqual(str(caught.exception).splitlines()[0], text)

    def test_a_quantized_tensor_beside_a_distributed_one_is_refused(self):
        with simulate(2), self.assertRaises(NotImplementedError) as caught:
            PROGRAMS["iadd"](TENSORS["a quantized tensor"]())
        text = "[aten::add_.Tensor] a quantized tensor meets a distributed one. Call dequantize on it first."
        self.assertEqual(str(caught.exception).splitlines()[0], text)


if __name__ == "__main__":
    unittest.main()
