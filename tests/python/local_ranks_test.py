"""Programs in a LocalTensorMode that branch on ranks, count with them and look up by them do the same under PyTorch and the drop-in."""

import subprocess
import sys
import unittest

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import intarsia

PROGRAM = """
import torch, torch.distributed as dist
from torch.distributed._local_tensor import LocalTensorMode, rank_map
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

def values(tensor):
    found = getattr(tensor, "_local_tensors", None) or dict.fromkeys(range(4), tensor)
    return [found[rank].tolist() for rank in range(4)]

def answer(ask):
    try:
        return ask()
    except Exception:
        return "an error"

def of_one_process(mesh):
    rank, group = dist.get_rank(), mesh.get_group("tp")
    names = {rank: "mine", rank + 1: "next"}
    print(names[dist.get_rank()], names.get(rank % 2 + 1), {rank, dist.get_rank()}, f"{rank:02d}", str(rank), type(rank) is int)
    print(["a", "b", "c", "d"][rank], list(range(rank, 3)), int(rank), float(rank), [7] * rank, max(rank, 2), sorted([3, rank]))
    print(rank <= 0, rank < 1, 1 > rank, rank >= 1, rank == dist.get_rank(), rank in (0, 2), 0 <= rank <= 2)
    print(dist.get_rank(group), group.rank(), dist.get_process_group_ranks(group), dist.get_global_rank(group, 1), dist.get_group_rank(group, 1))
    if rank == 0:
        print("the first rank writes")
    else:
        print("others do not")
    x = rank_map(lambda rank: torch.full((2,), 10.0**rank))
    if dist.get_rank() == 0:
        x += 5
    print(values(x), values(x * rank), values(torch.full((1,), rank)))
    dist.broadcast(x, src=dist.get_global_rank(dist.group.WORLD, rank))
    print(values(x))

def of_meshes(mesh):
    for name, rank in (("rank", mesh.get_rank()), ("tp", mesh.get_local_rank("tp")), ("place", mesh.get_coordinate()[0])):
        print(name, rank == 0, rank != 0, rank == 9, rank != 9, 0 == rank, rank == rank, not rank == 0, rank in (0, 1), rank % 2 == 0)
        print("main" if rank == 0 else "no one", (rank == 0) and "and", (rank == 0) or "or", type(rank == 0), bool(rank), rank < 4, rank > 7)
        print([answer(ask) for ask in (lambda: rank <= 0 and 1, lambda: rank > 0 and 1, lambda: {rank: 1}, lambda: int(rank), lambda: range(rank))])
        print([answer(ask) for ask in (lambda: [1, 2][rank], lambda: f"{rank:2d}", lambda: {0: 1}.get(rank), lambda: [1] * rank)])
        print(values(torch.ones(1) * rank), values(torch.full((1,), rank + 1)))
        x = torch.zeros(2)
        if rank == 0:
            x = x + 1
        print(values(x * 1), values(x * (rank == 0)))

def of_layouts(mesh):
    local = rank_map(lambda rank: torch.full((2,), float(rank)))
    summed = DTensor.from_local(local, mesh, [Partial(), Replicate()])
    if mesh.get_rank() == 0:
        summed = summed + 1
    print(values(summed.redistribute(placements=[Replicate(), Replicate()]).to_local()))
    cut = DTensor.from_local(local, mesh, [Shard(0), Replicate()])
    print(tuple(cut.shape), values(cut.to_local() + dist.get_rank()))

dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
with LocalTensorMode(4):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for part in (of_one_process, of_meshes, of_layouts):
        part(mesh)
"""


def run(program: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)


class LocalRanks(unittest.TestCase):
    def test_programs_print_what_they_print_with_pytorch(self):
        theirs, ours = run(PROGRAM), run("import intarsia; intarsia.install()\n" + PROGRAM)
        self.assertEqual((theirs.returncode, ours.returncode), (0, 0), theirs.stderr + ours.stderr)
        self.assertGreater(len(theirs.stdout.splitlines()), 20)
        self.assertEqual(ours.stdout.splitlines(), theirs.stdout.splitlines())
        for warned in ("[LocalTensorMode] ranks are compared", "[LocalTensorMode] process groups are asked"):
            self.assertEqual(ours.stderr.count(warned), 1, ours.stderr)

    def test_simulations_know_each_rank_and_stay_strict(self):
        intarsia.install()
        self.addCleanup(intarsia.uninstall)
        dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
        self.addCleanup(dist.destroy_process_group)
        with intarsia.simulate(4):
            rank = dist.get_rank()
            self.assertEqual(str(rank), "0|1|2|3")
            for ask in (lambda: bool(rank == 0), lambda: bool(rank <= 0), lambda: {rank: 1}, lambda: int(rank), lambda: [1, 2][rank]):
                with self.assertRaisesRegex((ValueError, TypeError), r"hold different values, [01]\|[01]\|"):
                    ask()
            self.assertEqual(intarsia.experimental.rank_map(lambda rank: torch.tensor(rank))._local_tensors[3].item(), 3)


if __name__ == "__main__":
    unittest.main()
