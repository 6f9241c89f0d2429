# %% [markdown]
# Four ranks in one interpreter: every cell can be run in a notebook, and nothing else has to be started.
#
#     PYTHONPATH=build/python python examples/python/6_notebook.py

# %%
import torch

from intarsia import Partial, Replicate, Shard, distribute_tensor, init_device_mesh, simulate
from intarsia.debug import CommDebugMode, visualize_sharding

world = simulate(4)
world.__enter__()  # a script would say `with simulate(4):`
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

# %% Rows over the first axis, columns over the second. Sizes need not divide.
table = torch.arange(35.0).view(7, 5)
x = distribute_tensor(table, mesh, [Shard(0), Shard(1)])
visualize_sharding(x, header="cut both ways")

# %% Both axes may cut the same dim: the second cuts what the first has left.
visualize_sharding(distribute_tensor(table, mesh, [Shard(0), Shard(0)]), header="rows, twice")

# %% A tensor shows its shards.
print(x)
print("rank 3 holds", x.shards[3].tolist())

# %% The dim that a product sums over is cut: each rank of "tp" holds a term.
w = distribute_tensor(torch.ones(5, 3), mesh, [Replicate(), Shard(0)])
product = x @ w
print(product.placements, "so far; the sum is pending")
assert product.placements == (Shard(0), Partial())

# %% What it costs to look at the result.
with CommDebugMode() as comms:
    whole = product.full_tensor()
print(comms.table())
assert torch.equal(whole, table @ torch.ones(5, 3))

# %%
world.__exit__(None, None, None)
