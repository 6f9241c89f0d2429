"""Ops that programs call on distributed tensors, from Python: values and gradients are those of plain tensors."""

import copy
import unittest
import warnings

import torch
import torch.nn.functional as F
from torch import nn

from intarsia import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor, init_device_mesh, simulate
from intarsia.debug import CommDebugMode
from support import same

MESH = None
LAYOUTS = (Replicate(), Shard(0), Shard(1))


def beside(x, plain):
    """A plain tensor as a replicated one, where x is distributed."""
    return distribute_tensor(plain, MESH, [Replicate()]) if isinstance(x, DTensor) else plain


INDEX, MASK, EYE = torch.tensor([5, 1, 3]), torch.arange(96).view(8, 12) % 3 == 0, torch.eye(8)


def written(x, where, value):
    x = x.clone()
    x[where] = value
    return x


def attention(x):
    """Makes zeros of its own on its way."""
    weight, out = x.view(24, 4)[:12], x[:4, :4]
    q = x[:, :4].unsqueeze(0)
    result = F.multi_head_attention_forward(q, q, q, 4, 2, weight, None, None, None, True, 0.0, out, None)
    return result[0]


# Results whose order in memory PyTorch's kernels for meta, those in Python, tell for another device.
IN_ORDER = {
    "singular vectors": lambda x: torch.linalg.svd(x, full_matrices=False),
    "all singular vectors": lambda x: torch.linalg.svd(x),
    "singular values": lambda x: (torch.linalg.svdvals(x),),
    "eigenvectors": lambda x: torch.linalg.eig(x[:, :8]),
    "places": lambda x: (torch.nonzero_static(x, size=4),),
    "transform to real": lambda x: (torch.fft.hfft2(x.view(2, 4, 12), dim=(0, -1)),),
    "transform of real": lambda x: (torch.fft.rfftn(x.view(2, 4, 12)),),
}

# Of a tensor of 8 x 12.
SMOOTH = {
    "sum": lambda x: x.sum(),
    "mean of a dim": lambda x: x.mean(1, keepdim=True),
    "max of a dim": lambda x: x.max(1)[0],
    "amax": lambda x: x.amax(0),
    "norm": lambda x: x.norm(),
    "vector norm": lambda x: torch.linalg.vector_norm(x, 3, dim=1),
    "var": lambda x: x.var(0),
    "std": lambda x: x.std(),
    "logsumexp": lambda x: x.logsumexp(1),
    "cumsum": lambda x: x.cumsum(0),
    "softmax": lambda x: F.softmax(x, 1),
    "log softmax": lambda x: F.log_softmax(x, 0),
    "matmul": lambda x: x @ x.t(),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "tensordot": lambda x: torch.tensordot(x, x, dims=([0], [0])),
    "outer": lambda x: x[:, 0].outer(x[0]),
    "baddbmm": lambda x: torch.baddbmm(x.view(2, 4, 12), x.view(2, 4, 12) @ x.view(2, 12, 4), x.view(2, 4, 12)),
    "linear": lambda x: F.linear(x, x),
    "inverse": lambda x: torch.linalg.inv(x[:, :8] + 9 * beside(x, EYE)),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.t() + beside(x, EYE)),
    "layer norm": lambda x: F.layer_norm(x, (12,)),
    "rms norm": lambda x: F.rms_norm(x, (12,)),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "group norm": lambda x: F.group_norm(x.view(2, 4, 12), 2),
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "glu": lambda x: F.glu(x, 1),
    "cosine similarity": lambda x: F.cosine_similarity(x, x * 2 + 1),
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.3),
    "mse": lambda x: F.mse_loss(x, x * 2),
    "bce": lambda x: F.binary_cross_entropy_with_logits(x, (x > 0).float()),
    "kl": lambda x: F.kl_div(x.log_softmax(1), x.detach().softmax(1), reduction="batchmean"),
    "cross entropy": lambda x: F.cross_entropy(x, beside(x, torch.arange(8)), label_smoothing=0.1),
    "embedding": lambda x: F.embedding(beside(x, INDEX), x),
    "embedding bag": lambda x: F.embedding_bag(beside(x, INDEX.view(1, 3)), x),
    "conv": lambda x: F.conv1d(x.view(1, 8, 12), x.view(2, 8, 6), padding=1),
    "max pool": lambda x: F.max_pool1d(x.view(1, 8, 12), 2),
    "interpolate": lambda x: F.interpolate(x.view(1, 8, 12), scale_factor=2),
    "pad": lambda x: F.pad(x, (1, 2)),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(2, 4, 2, 6)] * 3, is_causal=True),
    "reshape": lambda x: x.reshape(4, 24),
    "view, permuted": lambda x: x.view(2, 4, 12).permute(2, 0, 1),
    "unflatten": lambda x: x.unflatten(1, (3, 4)),
    "expand": lambda x: x.expand(2, 8, 12),
    "repeat": lambda x: x.repeat(2, 1),
    "roll": lambda x: x.roll(1, 0),
    "flip": lambda x: x.flip(0),
    "tril": lambda x: x.tril(),
    "diagonal": lambda x: x.diagonal(),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "stack": lambda x: torch.stack([x, x * 2], 1),
    "cat": lambda x: torch.cat([x, x * 2]),
    "split": lambda x: x.split([3, 5])[1],
    "unbind": lambda x: x.unbind(1)[3],
    "slice": lambda x: x[2:5, 1::3],
    "select": lambda x: x[-1, -2],
    "index": lambda x: x[beside(x, INDEX)],
    "index of columns": lambda x: x[:, beside(x, INDEX)],
    "index select": lambda x: x.index_select(0, beside(x, INDEX)),
    "gather": lambda x: x.gather(0, beside(x, INDEX.view(1, 3))),
    "scatter": lambda x: x.scatter(0, beside(x, INDEX.view(1, 3)), 7.0),
    "masked fill": lambda x: x.masked_fill(beside(x, MASK), 2.0),
    "chosen by a mask": lambda x: x[beside(x, MASK)],
    "written slice": lambda x: written(x * 1, slice(2, 4), 7.0),
    "written column": lambda x: written(x * 1, (slice(None), 1), x[:, 2]),
    "written by a mask": lambda x: written(x * 1, x > 1, -1.0),
    "rows of a list": lambda x: x[[0, 5, -1]],
    "places of lists": lambda x: x[[0, 5], [2, 2]],
    "columns of a list": lambda x: x[:, [3, 3, 1]],
    "written rows of a list": lambda x: written(x * 1, [0, 5], x[[1, 2]]),
    "attention with a zero key": lambda x: attention(x),
    "topk": lambda x: x.topk(3, dim=1)[0],
    "sort": lambda x: x.sort(0)[0],
    "median": lambda x: x.median(),
    "quantile": lambda x: x.quantile(0.3),
    "quantiles": lambda x: x.quantile(beside(x, torch.tensor([0.3, 0.7])), dim=1),
    "quantiles without nan": lambda x: x.nanquantile(beside(x, torch.tensor([0.3, 0.7])), dim=0),
    "combinations": lambda x: torch.combinations(x[:, 1]),
    "as strided": lambda x: x.as_strided((5, 4), (7, 3), 2),
    "cat with nothing": lambda x: torch.cat([x.new_empty(0), x, x], 1),
    "scattered mean": lambda x: x.scatter_reduce(0, beside(x, INDEX.view(1, 3)), x[:1, :3], "mean"),
    "index mean": lambda x: x.index_reduce(0, beside(x, INDEX), x[:3] * 2, "mean"),
    "matrix power of nought": lambda x: torch.linalg.matrix_power(x[:, :8], 0) * x[:, :8],
    "split by a tensor": lambda x: x.tensor_split(beside(x, torch.tensor([3, 5])).cpu(), 1)[1],
    "stft": lambda x: torch.stft(x.flatten(), 16, window=beside(x, torch.ones(16)), return_complex=True).abs(),
    "inverse stft": lambda x: torch.istft(torch.stft(x.flatten(), 16, return_complex=True), 16),
    "real part of an inverse fft": lambda x: torch.fft.ifft(x).real,
    "fft": lambda x: torch.fft.fft(x).abs(),
    "logsumexp of complex numbers": lambda x: torch.view_as_real(torch.view_as_complex(x.reshape(8, 6, 2)).logsumexp(0)),
    "complex": lambda x: torch.view_as_complex(x.reshape(8, 6, 2)).abs(),
}
EXACT = {
    "argmax": lambda x: x.argmax(1),
    "sorted places": lambda x: x.argsort(1),
    "matrix rank": lambda x: torch.linalg.matrix_rank(x @ x.t()),
    "matrix rank above": lambda x: torch.linalg.matrix_rank(x, atol=3.0),
    "any": lambda x: (x > 2).any(0),
    "count": lambda x: x.count_nonzero(),
    "nonzero": lambda x: (x > 0).nonzero(),
    "unique": lambda x: torch.unique(x > 0),
    "one hot": lambda x: F.one_hot((x > 0).long(), 2),
    "histogram": lambda x: torch.histc(x, bins=5, min=-2, max=2),
    "bincount": lambda x: torch.bincount((x[:, 0] > 0).long(), minlength=3),
    "bucketize": lambda x: torch.bucketize(x, beside(x, torch.tensor([-1.0, 0, 1]))),
    "dtype": lambda x: x.to(torch.float64).bfloat16().int(),
    "like": lambda x: torch.full_like(x, 3, dtype=torch.int) + torch.ones_like(x) + torch.zeros_like(x),
    "new": lambda x: x.new_full((4,), 2.0) + x.new_zeros(4) + x.new_ones(4),
    "out": lambda x: torch.add(x, x, out=torch.empty_like(x)),
    "in place": lambda x: x.clone().add_(2).mul_(3).clamp_(max=4).fill_diagonal_(0),
}


class Ops(unittest.TestCase):
    def setUp(self):
        global MESH
        warnings.simplefilter("ignore")
        self.enterContext(simulate(4))
        MESH = self.mesh = init_device_mesh("cpu", (4,))
        torch.manual_seed(0)
        self.x = torch.randn(8, 12)

    def cut(self, tensor, placement):
        return distribute_tensor(tensor, self.mesh, [placement])

    def test_values_and_gradients(self):
        for name, op in SMOOTH.items():
            for layout in LAYOUTS:
                with self.subTest(name, layout=layout):
                    plain, x = self.x.clone().requires_grad_(), self.cut(self.x, layout).requires_grad_()
                    expected, result = op(plain), op(x)
                    self.assertIsInstance(result, DTensor)
                    same(result, expected, rtol=1e-3, atol=1e-4)
                    expected.square().sum().backward()
                    result.square().sum().backward()
                    same(x.grad, plain.grad, rtol=1e-3, atol=1e-3)

    def test_values(self):
        for name, op in EXACT.items():
            for layout in LAYOUTS:
                with self.subTest(name, layout=layout):
                    same(op(self.cut(self.x, layout)), op(self.x))

    def test_pending_reductions_stay_pending_where_they_can(self):
        x = self.cut(self.x, Shard(0))
        for result, placement in ((x.sum(), Partial()), (x.sum(0), Partial()), (x.sum(1), Shard(0)), (x.max(), Partial("max")),
                                  (x.t(), Shard(1)), (x.sum(0) * 2, Partial()),
                                   (self.cut(self.x, Shard(1)) @ x[:, :8].new_ones(12, 2), Partial())):  # fmt: skip
            self.assertEqual(result.placements, (placement,))

    def test_random_tensors_lie_as_their_model(self):
        x = self.cut(self.x, Shard(0))
        for draw in (torch.rand_like, torch.randn_like, lambda x: torch.randint_like(x, 5), lambda x: torch.randint_like(x, 2, 5)):
            torch.manual_seed(1)
            first = draw(x)
            torch.manual_seed(1)
            self.assertEqual((first.placements, torch.equal(first, draw(x))), ((Shard(0),), True))
        whole = F.dropout(x.new_ones(64, 64), 0.5).full_tensor()
        self.assertTrue(0.4 < (whole == 0).float().mean() < 0.6)

    def test_initializers_fill_the_whole_tensor(self):
        for name in ("uniform_", "normal_", "trunc_normal_", "ones_", "zeros_", "xavier_uniform_", "kaiming_normal_", "orthogonal_"):
            with self.subTest(name):
                x = self.cut(torch.full((16, 8), 7.0), Shard(0))
                getattr(nn.init, name)(x)
                self.assertEqual((x.placements, (x == 7).any().item()), ((Shard(0),), False))

    def test_results_lie_in_memory_as_plain_ones(self):
        for name, op in IN_ORDER.items():
            for layout in LAYOUTS:
                with self.subTest(name, layout=layout):
                    for result, expected in zip(op(self.cut(self.x, layout)), op(self.x)):
                        self.assertEqual((result.shape, result.stride()), (expected.shape, expected.stride()))

    def test_an_encoder_looks_whether_its_mask_is_causal(self):
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).double()
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        cut = distribute_module(copy.deepcopy(encoder), self.mesh)
        x, mask = torch.randn(4, 5, 4).double(), nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
        same(cut(self.cut(x, Shard(0)), self.cut(mask, Replicate())), encoder(x, mask), rtol=1e-9, atol=1e-9)

    def test_strides_are_kept(self):
        x = distribute_tensor(torch.randn(8, 4).t(), self.mesh, [Shard(1)])
        self.assertEqual((x.stride(), x.shards[0].is_contiguous(), x.contiguous().stride()), ((1, 4), False, (8, 1)))
        image = torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last)
        cut = distribute_tensor(image, self.mesh, [Shard(0)])
        self.assertTrue(cut.is_contiguous(memory_format=torch.channels_last))
        same(cut, image)

    def test_a_tensor_is_dealt_out_as_a_pending_reduction(self):
        for op in ("sum", "avg", "max"):
            x = distribute_tensor(self.x, self.mesh, [Partial(op)])
            self.assertEqual(x.placements, (Partial(op),))
            same(x, self.x, rtol=0, atol=0)
        whole = distribute_tensor(torch.arange(5), self.mesh, [Partial()])
        same(whole, torch.arange(5))

    def test_a_pending_sum_is_filled_with_one_value(self):
        x = distribute_tensor(self.x, self.mesh, [Partial()])
        same(x.fill_(8), torch.full((8, 12), 8.0))
        same(x[:1].expand(3, 12).fill_(2), torch.full((3, 12), 2.0))
        self.assertEqual(x.placements, (Partial(),))

    def test_lazy_conjugates_are_carried_out_under_a_dispatch_mode(self):
        z = torch.randn(4, 3, dtype=torch.complex64)
        for values in (self.cut(z, Shard(0)), self.cut(z, Shard(0)).to_local()):
            with CommDebugMode():
                result = values.conj() + 1
            expected = values.conj() + 1
            self.assertTrue(torch.equal(result, expected))
            self.assertFalse(torch.equal(result, values + 1))

    def test_values_of_all_ranks_are_compared_with_a_plain_tensor(self):
        ones = torch.ones_like(self.cut(self.x, Shard(0))).to_local()
        for pair in ((torch.ones(2, 12), ones), (ones, torch.ones(2, 12))):
            torch.testing.assert_close(*pair)
            with self.assertRaises(AssertionError):
                torch.testing.assert_close(pair[0], pair[1] + torch.eye(2, 12))

    def test_autocast_casts_as_for_plain_tensors(self):
        linear, x = nn.Linear(12, 3), self.cut(self.x, Shard(0))
        cut = distribute_module(copy.deepcopy(linear), self.mesh)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for op in (lambda m, x: m(x), lambda m, x: x @ x.t(), lambda m, x: (x.bfloat16().softmax(1)), lambda m, x: x + 1):
                self.assertEqual(op(cut, x).dtype, op(linear, self.x).dtype)
            same(cut(x), linear(self.x), rtol=0.05, atol=0.05)
            cut(x).sum().backward()
            local = cut(x).to_local()
            self.assertEqual((local @ local.t()).dtype, torch.bfloat16)
        self.assertEqual((cut.weight.grad.dtype, cut(x).dtype), (torch.float32, torch.float32))

    def test_errors_have_the_types_of_plain_tensors(self):
        x = self.cut(self.x, Shard(0))
        for call in (
            lambda x: x @ x,
            lambda x: x.view(5, 5),
            lambda x: x.sum(5),
            lambda x: x.sum("a"),
            lambda x: torch.cat([x, x[:, :2]]),
            lambda x: bool(x),
            lambda x: x.item(),
            lambda x: x[9],
            lambda x: torch.add(x, "a"),
            lambda x: x.nonsense,
            lambda x: x.clone().requires_grad_().add_(1),
            lambda x: x.long().requires_grad_(),
            lambda x: x.split([1, 2]),
            lambda x: x.expand(3, 3),
            lambda x: F.cross_entropy(x, x[:, 0] > 0),
        ):
            with self.assertRaises(Exception) as plain:
                call(self.x)
            with self.assertRaises(type(plain.exception)):
                call(x)


if __name__ == "__main__":
    unittest.main()
