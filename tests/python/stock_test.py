"""Results and gradients of the drop-in lie as those of PyTorch's DTensor, as much is sent, and as much refused: both do the same calls here."""

import functools
import json
import os
import subprocess
import sys
import unittest
import warnings

import torch
import torch.nn.functional as F

if __name__ != "__main__" or sys.argv[1:] != ["stock"]:
    import intarsia

    intarsia.install()

from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode

from support import print_on_a_fake_group

RANKS = 4
MATRICES = {  # of one [8, 8]
    "abs": torch.abs, "exp": torch.exp, "relu": torch.relu, "gelu": F.gelu, "neg": torch.neg, "sqrt": lambda x: x.abs().sqrt(),
    "clone": torch.clone, "contiguous": lambda x: x.t().contiguous(), "to": lambda x: x.double(), "scaled": lambda x: x * 2,
    "shifted": lambda x: x + 1, "halved": lambda x: x / 2, "square": lambda x: x * x, "doubled": lambda x: x + x, "pow": lambda x: x.pow(2),
    "clamp": lambda x: x.clamp(-1, 1), "masked": lambda x: x.masked_fill(x > 0, 0.5), "where": lambda x: torch.where(x > 0, x, x * 2),
    "softmax": lambda x: x.softmax(0), "softmax1": lambda x: x.softmax(1), "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (8,)), "rms_norm": lambda x: F.rms_norm(x, (8,)),
    "sum": torch.sum, "sum0": lambda x: x.sum(0), "sum1": lambda x: x.sum(1, keepdim=True), "mean": torch.mean,
    "mean0": lambda x: x.mean(0), "mean1": lambda x: x.mean(1), "max": torch.max, "min": torch.min, "amax": lambda x: x.amax(0),
    "prod": lambda x: x.prod(0), "var": lambda x: x.var(0), "std": lambda x: x.std(1), "all": lambda x: (x > 0).all(), "any": lambda x: (x > 0).any(0),
    "argmax1": lambda x: x.argmax(1), "cumsum": lambda x: x.cumsum(0), "cumsum1": lambda x: x.cumsum(1), "cumprod": lambda x: x.cumprod(0),
    "sort": lambda x: x.sort(0)[0], "topk": lambda x: x.topk(2, 0)[0], "topk1": lambda x: x.topk(2, 1)[0], "logsumexp": lambda x: x.logsumexp(0),
    "median": lambda x: x.median(0)[0], "tril": torch.tril, "triu": torch.triu, "diagonal": torch.diagonal, "trace": torch.trace,
    "t": torch.t, "view": lambda x: x.view(64), "unflatten": lambda x: x.view(2, 4, 8), "reshape": lambda x: x.reshape(4, 16),
    "unsqueeze": lambda x: x.unsqueeze(0), "permute": lambda x: x.permute(1, 0), "expand": lambda x: x.unsqueeze(0).expand(3, 8, 8),
    "flip": lambda x: x.flip(0), "roll": lambda x: x.roll(1, 0), "repeat": lambda x: x.repeat(2, 1), "narrow": lambda x: x.narrow(0, 1, 3),
    "select": lambda x: x.select(0, 3), "select1": lambda x: x.select(1, 3), "split": lambda x: x.split(2)[1], "chunk": lambda x: x.chunk(2, 1)[0],
    "unbind": lambda x: x.unbind(1)[0], "cat": lambda x: torch.cat([x, x]), "cat1": lambda x: torch.cat([x, x], 1), "stack": lambda x: torch.stack([x, x]),
    "pad": lambda x: F.pad(x, (0, 0, 1, 1)), "pad1": lambda x: F.pad(x, (1, 1)), "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like, "full_like": lambda x: torch.full_like(x, 2.0), "new_zeros": lambda x: x.new_zeros(4, 4), "square_": lambda x: x @ x,
    "rand_like": torch.rand_like, "dropout": lambda x: F.dropout(x), "bernoulli": lambda x: torch.bernoulli(x.abs().clamp(0, 1)),
    "isnan": torch.isnan, "sign": torch.sign, "round": torch.round, "unfold": lambda x: x.unfold(0, 2, 2), "nan_to_num": torch.nan_to_num,
    "norm": lambda x: x.norm(), "norm0": lambda x: torch.linalg.vector_norm(x, 3, dim=0), "norm_inf": lambda x: torch.linalg.vector_norm(x, float("inf")),
    "histc": lambda x: x.histc(4, -2, 2), "norm_view": lambda x: torch.stack([x.norm(), x.norm()]), "norm_scaled": lambda x: x.norm() * 2,
    "embedding": lambda x: F.embedding(torch.zeros_like(x[0], dtype=torch.long), x), "smooth_l1": lambda x: F.smooth_l1_loss(x, x * 2),
    "list": lambda x: torch._foreach_exp([x])[0], "safe": lambda x: torch.softmax(x, 1, dtype=torch.float64),
    "powsum": lambda x: torch.ops.aten.linalg__powsum(x.detach(), 3), "powsums": lambda x: torch._foreach_powsum([x.detach()], 3)[0],
    "multinomial": lambda x: torch.multinomial(x.detach().abs(), 2), "choices": lambda x: torch.multinomial(x.detach().abs(), 3, True),
    "kthvalue": lambda x: x.kthvalue(2, 1)[0], "bucketize": lambda x: x.long() + 1, "equal": lambda x: x == x, "gt": lambda x: x > 0,
}
PAIRS = {  # of two [8, 8]
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "mm": torch.mm, "maximum": torch.maximum, "atan2": torch.atan2,
    "lerp": lambda x, y: torch.lerp(x, y, 0.5), "addcmul": lambda x, y: torch.addcmul(x, x, y), "addcdiv": lambda x, y: torch.addcdiv(x, x, y),
    "addmm": lambda x, y: torch.addmm(x, x, y), "linear": F.linear, "where": lambda x, y: torch.where(x > 0, x, y), "mse": F.mse_loss,
    "l1_sum": lambda x, y: F.l1_loss(x, y, reduction="sum"), "eq": torch.eq, "cat": lambda x, y: torch.cat([x, y]), "dot": lambda x, y: (x * y).sum(),
    "bmm": lambda x, y: torch.bmm(x.view(2, 4, 8), y.view(2, 8, 4)), "outer": lambda x, y: x.unsqueeze(2) * y.unsqueeze(1),
    "dist": torch.dist, "dist1": lambda x, y: torch.dist(x, y, 1), "lists": lambda x, y: torch._foreach_add([x], [y])[0],
    "list_products": lambda x, y: torch._foreach_mul([x], [y])[0], "logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
    "copysign": torch.copysign, "fmod": torch.fmod, "logaddexp": torch.logaddexp, "kron": lambda x, y: torch.einsum("ij,jk->ik", x, y),
}
IMAGES = {  # of one [4, 8, 8, 8], and of what makes a tensor that is whole on every rank
    "batch_norm": lambda x, whole: F.batch_norm(x, None, None, whole(8), whole(8), True),
    "running_norm": lambda x, whole: F.batch_norm(x, whole(8), whole(8), whole(8), whole(8), True),
    "eval_norm": lambda x, whole: F.batch_norm(x, whole(8), whole(8), whole(8), whole(8)),
    "instance_norm": lambda x, whole: F.instance_norm(x), "weighted_norm": lambda x, whole: F.instance_norm(x, weight=whole(8), bias=whole(8)),
    "group_norm": lambda x, whole: F.group_norm(x, 4, whole(8), whole(8)), "layer_norm": lambda x, whole: F.layer_norm(x, (8, 8, 8)),
    "max_pool": lambda x, whole: F.max_pool2d(x, 2), "avg_pool": lambda x, whole: F.avg_pool2d(x, 2), "unfold": lambda x, whole: F.unfold(x, 2),
    "adaptive": lambda x, whole: F.adaptive_avg_pool2d(x, 4), "adaptive_max": lambda x, whole: F.adaptive_max_pool2d(x, 4),
    "nearest": lambda x, whole: F.interpolate(x, (16, 16)), "bilinear": lambda x, whole: F.interpolate(x, (16, 16), mode="bilinear"),
    "bicubic": lambda x, whole: F.interpolate(x, (16, 16), mode="bicubic"), "reflect": lambda x, whole: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "replicate": lambda x, whole: F.pad(x, (1, 1, 1, 1), mode="replicate"), "circular": lambda x, whole: F.pad(x, (1, 1, 1, 1), mode="circular"),
    "conv": lambda x, whole: F.conv2d(x, whole(8, 8, 3, 3), padding=1), "transposed": lambda x, whole: F.conv_transpose2d(x, whole(8, 8, 3, 3), padding=1),
    "pixel_shuffle": lambda x, whole: F.pixel_shuffle(x, 2), "pixel_unshuffle": lambda x, whole: F.pixel_unshuffle(x, 2), "glu": lambda x, whole: F.glu(x, 1),
    "normalize": lambda x, whole: F.normalize(x, dim=1), "cosine": lambda x, whole: F.cosine_similarity(x, x * 2), "prelu": lambda x, whole: F.prelu(x, whole(8)),
    "attention": lambda x, whole: F.scaled_dot_product_attention(x, x, x), "causal": lambda x, whole: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "einsum": lambda x, whole: torch.einsum("bchw,bchv->bcwv", x, x), "flatten": lambda x, whole: x.flatten(1), "unflatten": lambda x, whole: x.unflatten(1, (4, 2)),
    "gather": lambda x, whole: x.gather(1, torch.zeros_like(x, dtype=torch.long)), "linear": lambda x, whole: F.linear(x, whole(5, 8)),
    "index_select": lambda x, whole: x.index_select(1, whole(2).long()), "losses": lambda x, whole: F.cross_entropy(x, x.argmax(1), reduction="sum"),
}
ONE = {"S0": Shard(0), "S1": Shard(1), "R": Replicate(), "P": Partial(), "Pavg": Partial("avg"), "Pmax": Partial("max")}
CUTS = {"S0": Shard(0), "S1": Shard(1), "S2": Shard(2), "S3": Shard(3), "R": Replicate(), "P": Partial()}
TWO = [("S0", "S0"), ("S0", "R"), ("R", "S0"), ("S1", "S1"), ("S1", "S0"), ("R", "R"), ("P", "P"), ("P", "R"), ("R", "P"), ("S0", "P"), ("Pavg", "Pavg")]

# Where layouts differ, and why.
KNOWN = {
    "truth is pending by 'and' and 'or', not by product and sum": "all S0, all S1, any S0",
    "PyTorch returns a plain gradient": "copysign P P, copysign P R, copysign Pavg Pavg, copysign R P, copysign R R, copysign R S0, "
    "copysign S0 P, copysign S0 R, copysign S0 S0, copysign S1 S0, copysign S1 S1",
    "a number is no replicated tensor to PyTorch": "shifted Pavg, shifted Pmax",
    "we reduce first": "nan_to_num Pmax, norm_inf Pmax, pad Pavg, pad Pmax, pad1 Pavg, pad1 Pmax, sign Pmax",
    "gradients lie otherwise": "circular S0, circular S1, circular S2, circular S3, eval_norm S1, group_norm P, embedding S0, linear S1 S0, mse P P, mse P R, mse Pavg Pavg, mse R P, rms_norm Pavg",
}
# All ranks draw the numbers of one device, for which they bring the probabilities together. The largest absolute value is not that
# of the largest value, nor are powers of terms those of their sum, so what is pending is reduced first. A loss that is made of several ops
# moves an operand for each that needs it. All ranks raise the error of one that has wrong probabilities. Running statistics
# that are whole stay so, and follow all channels.
SENDS_MORE = {"bernoulli S0", "bernoulli S1", "rms_norm P", "logits S1 S0", "powsum P", "powsums P", "multinomial S0", "choices S0", "running_norm S1"}

# Where PyTorch has an error: formulas of autograd write to pending tensors that they have made themselves.
SERVED = {
    *("norm P", "norm Pavg", "norm_view P", "norm_view Pavg", "norm_scaled P", "norm_scaled Pavg", "rms_norm S1"),
    *("dist P P", "dist P R", "dist R P", "dist Pavg Pavg", "cosine P", "normalize P"),
}


def placed(mesh, placement, seed, shape=(8, 8)):
    value = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    if placement.is_partial():
        return DTensor.from_local(value, mesh, [placement]).requires_grad_()
    return distribute_tensor(value, mesh, [placement], src_data_rank=None).requires_grad_()


def calls(mesh):
    for name, function in MATRICES.items():
        for kind in ONE:
            yield f"{name} {kind}", function, [placed(mesh, ONE[kind], 1)]
    for name, function in PAIRS.items():
        for kinds in TWO:
            yield f"{name} {' '.join(kinds)}", function, [placed(mesh, ONE[kind], seed) for seed, kind in enumerate(kinds)]
    for name, function in IMAGES.items():
        for kind, placement in CUTS.items():
            yield f"{name} {kind}", functools.partial(of_an_image, function), [placed(mesh, placement, 1, (4, 8, 8, 8))]


def of_an_image(function, x):
    """Weights are made where the image lies, on a plain device too."""

    def whole(*shape):
        value = torch.linspace(0.5, 1.5, torch.Size(shape).numel()).view(shape)
        return distribute_tensor(value, x.device_mesh, [Replicate()], src_data_rank=None) if isinstance(x, DTensor) else value

    return function(x, whole)


def counted(comms):
    return {str(op).split(".")[-1]: count for op, count in comms.get_comm_counts().items() if count}


def lies(tensor):
    return str(tensor.placements) if isinstance(tensor, DTensor) else type(tensor).__name__


def done(function, inputs):
    """Where the result and the gradients lie, and what was sent."""
    with CommDebugMode() as forward:
        result = function(*inputs)
    report = [lies(result), counted(forward)]
    if isinstance(result, DTensor) and result.requires_grad:
        with CommDebugMode() as backward:
            grads = torch.autograd.grad(result, inputs, torch.ones_like(result), allow_unused=True)
        report += [[lies(grad) for grad in grads], counted(backward)]
    return report


def layouts(report):
    return report[0], report[2:3]


def sent(report):
    """How many collectives. What is pending is reduced once here, however often it is used."""
    return sum(sum(counts.values()) for counts in report[1::2])


def measured(mesh):
    """By call; an error where it is one."""
    reports = {}
    for name, function, inputs in calls(mesh):
        try:
            reports[name] = done(function, inputs)
        except Exception as error:
            reports[name] = f"{type(error).__name__}: {error}"
    return reports


class Stock(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        self.enterContext(intarsia.simulate(RANKS))
        self.mesh = init_device_mesh("cpu", (RANKS,))

    def test_layouts_are_the_same_and_no_more_is_sent(self):
        env = {**os.environ, "PYTHONHASHSEED": "0"}  # the order of sets decides between equal costs there
        child = subprocess.run([sys.executable, __file__, "stock"], capture_output=True, text=True, timeout=600, env=env)
        self.assertEqual(child.returncode, 0, child.stderr)
        theirs, ours = json.loads(child.stdout.splitlines()[-1]), measured(self.mesh)
        served = {name: report for name, report in theirs.items() if not isinstance(report, str)}
        self.assertGreater(len(served), 700)
        raised = {name: ours[name] for name in served if isinstance(ours[name], str)}
        self.assertEqual(raised, {})
        refused = {name for name, report in theirs.items() if name not in served and "Sharding propagation failed" in report}
        self.assertEqual({name for name in refused if not str(ours[name]).startswith("RuntimeError")}, SERVED)
        different = {name: (report, ours[name]) for name, report in served.items() if layouts(ours[name]) != layouts(report)}
        known = {name for names in KNOWN.values() for name in names.split(", ")}
        self.assertEqual({name: both for name, both in different.items() if name not in known}, {})
        self.assertEqual(sorted(known - different.keys()), [], "no longer different")
        more = {name: (report, ours[name]) for name, report in served.items() if sent(ours[name]) > sent(report)}
        self.assertEqual({name: both for name, both in more.items() if name not in known | SENDS_MORE}, {})

    def test_values_and_gradients_are_those_of_plain_tensors(self):
        for name, function, inputs in calls(self.mesh):
            if name.split()[0] in ("rand_like", "dropout", "bernoulli", "multinomial", "choices"):
                continue
            try:
                result = function(*inputs)
            except RuntimeError as error:
                self.assertTrue("P" in name or "Sharding propagation failed" in str(error), (name, error))
                continue
            plain = [tensor.full_tensor().detach().requires_grad_() for tensor in inputs]
            expected = function(*plain)
            torch.testing.assert_close(result.full_tensor(), expected, msg=name, equal_nan=True)
            if result.requires_grad:
                result.full_tensor().sum().backward()
                expected.sum().backward()
                for tensor, other in zip(inputs, plain):
                    torch.testing.assert_close(tensor.grad.full_tensor(), other.grad, msg=name, equal_nan=True)

    def test_products_whose_gradients_are_strided(self):
        shapes = ((2, 3, 8), (2, 3, 8), (8, 8, 8), (8,))
        for placement in (Shard(0), Shard(1), Shard(2)):
            ours = [placed(self.mesh, placement if i == 2 else Replicate(), i, shape) for i, shape in enumerate(shapes)]
            plain = [tensor.full_tensor().detach().requires_grad_() for tensor in ours]
            result, expected = F.bilinear(*ours).full_tensor(), F.bilinear(*plain)
            torch.testing.assert_close(result, expected)
            for got, wanted in zip(torch.autograd.grad(result.sum(), ours), torch.autograd.grad(expected.sum(), plain)):
                torch.testing.assert_close(got.full_tensor(), wanted)


if __name__ == "__main__":
    print_on_a_fake_group(RANKS, measured) if sys.argv[1:] == ["stock"] else unittest.main()
