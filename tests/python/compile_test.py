"""torch.compile under the drop-in: code around distributed tensors runs as it stands, and PyTorch's own errors stay PyTorch's."""

import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest
import warnings

import torch
from torch import nn
from torch._dynamo.exc import Unsupported

import intarsia
from intarsia import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh, simulate

A_PROGRAM = """
    import torch, intarsia
    from torch._dynamo.exc import Unsupported
    intarsia.install()

    class Intarsia:  # may have any name
        def __enter__(self): return print("intarsia")
        def __exit__(self, *args): pass

    def intarsia_step(t):
        torch._dynamo.graph_break("intarsia")
        return t + 1

    for plain in (intarsia_step, lambda t: t + len(repr(t)), lambda t: t.unknown_to_intarsia + 1):
        try:
            torch.compile(plain, fullgraph=True, backend="eager")(torch.ones(2))
        except (Unsupported, AttributeError, torch._dynamo.exc.ObservedException) as error:
            print(type(error).__name__)
        else:
            print("nothing")
"""


def one_graph(function, *args):
    """What the function gives if one graph of it is asked for, and whether it ran without compilation."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        intarsia._compile._warn_not_traced.cache_clear()
        result = torch.compile(function, fullgraph=True, backend="eager")(*args)
    return result, intarsia._compile._warn_not_traced.cache_info().currsize == 1


class OneGraph(unittest.TestCase):
    def setUp(self):
        intarsia.install()
        self.addCleanup(intarsia.uninstall)

    def test_a_folder_and_names_of_a_program_decide_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "intarsia", "my_intarsia", "_compile.py")
            path.parent.mkdir(parents=True)
            path.write_text(textwrap.dedent(A_PROGRAM))
            done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=600, env=dict(os.environ))
        self.assertEqual(done.stdout.split(), ["Unsupported", "Unsupported", "Unsupported"], done.stderr)

    def test_of_plain_tensors_is_compiled(self):
        x, table = torch.ones(4, 4), torch.ones(8, 3)
        for function in (
            lambda t: nn.functional.dropout(t, 0.0),
            lambda t: nn.functional.embedding(t.long(), table),
            lambda t: torch.masked.sum(t, mask=t > 0),
            lambda t: torch.unravel_index(t.long().flatten()[0], (4, 4))[0],
            lambda t: t + 1 if isinstance(t, DTensor) or hasattr(t, "to_local") else t + 2,
            nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0),
        ):
            result, as_it_stands = one_graph(function, x)
            self.assertFalse(as_it_stands)
            torch.testing.assert_close(result, function(x))

    def test_of_distributed_tensors_runs_as_it_stands(self):
        with simulate(2):
            mesh = init_device_mesh("cpu", (2,))
            plain, x = torch.arange(8.0).view(4, 2), distribute_tensor(torch.arange(8.0).view(4, 2), mesh, [Shard(0)])
            for function, arg, wanted in (
                (lambda t: t * 2, x, plain * 2),
                (lambda t: t.redistribute(mesh, [Replicate()]) + 1, x, plain + 1),
                (lambda t: distribute_tensor(t, mesh, [Shard(0)]) + 1, plain, plain + 1),
                (lambda t: DTensor.from_local(t, mesh, [Replicate()]) + 1, plain, plain + 1),
                (lambda t: DTensor.from_local(t * mesh.get_local_rank(), mesh, [Shard(0)]), plain, torch.cat([plain * 0, plain])),
            ):
                result, as_it_stands = one_graph(function, arg)
                self.assertTrue(as_it_stands)
                torch.testing.assert_close(result.full_tensor(), wanted)

    def test_of_distributed_tensors_leaves_pytorchs_errors_as_they_are(self):
        with simulate(2):
            x = distribute_tensor(torch.ones(4), init_device_mesh("cpu", (2,)), [Shard(0)])
            with self.assertRaisesRegex(Unsupported, "graph_break"):
                one_graph(lambda t: torch._dynamo.graph_break() or t + 1, x)

    def test_of_a_sharded_model_runs_as_it_stands(self):
        with simulate(2):
            model = nn.Linear(4, 2)
            wanted = model(torch.ones(3, 4))
            result, as_it_stands = one_graph(intarsia.fully_shard(model), torch.ones(3, 4))
            self.assertTrue(as_it_stands)
            torch.testing.assert_close(result, wanted)


if __name__ == "__main__":
    unittest.main()
