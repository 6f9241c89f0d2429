"""What is pending stays so under the drop-in where it does with PyTorch's DTensor: in casts, in new tensors without values, and in look-ups."""

import json
import subprocess
import sys
import unittest
import warnings

import torch

if __name__ != "__main__" or sys.argv[1:] != ["stock"]:
    import intarsia

    intarsia.install()

from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor, init_device_mesh

from support import print_on_a_fake_group

RANKS = 4
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8, torch.bool)
KINDS = ("sum", "avg", "max", "min", "product")


def name_of(dtype):
    return str(dtype).split(".")[1]


def limits(x):
    values = torch.tensor([-1, 0, 2]).to(x.dtype)
    return distribute_tensor(values, x.device_mesh, [Replicate()], src_data_rank=None) if isinstance(x, DTensor) else values


CASTS = {f"to {name_of(dtype)}": lambda x, dtype=dtype: x.to(dtype) for dtype in DTYPES}
WITHOUT_VALUES = {
    "empty_like": torch.empty_like,
    "empty_like double": lambda x: torch.empty_like(x, dtype=torch.float64),
    "new_empty": lambda x: x.new_empty(3, 5),
    "new_empty smaller": lambda x: x.new_empty(3, 4),
    "new_empty_strided": lambda x: x.new_empty_strided((3, 5), (5, 1)),
}
OTHERS = {
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "full_like": lambda x: torch.full_like(x, 3),
    "new_zeros": lambda x: x.new_zeros(3, 5),
    "new_ones": lambda x: x.new_ones(3, 5),
    "new_full": lambda x: x.new_full((3, 5), 2),
    "clone": torch.clone,
    "contiguous": lambda x: x.t().contiguous(),
    "type_as": lambda x: x.type_as(torch.ones(1, dtype=torch.float64)),
    "double": lambda x: x.double(),
    "bucketize": lambda x: torch.bucketize(x, limits(x)),
    "bucketize right": lambda x: torch.bucketize(x, limits(x), right=True),
    "aminmax": torch.aminmax,
    "aminmax 0": lambda x: torch.aminmax(x, dim=0),
    "amax": lambda x: x.amax(0),
    "copy": lambda x: torch.empty_like(x).copy_(x),
    "zero": lambda x: torch.empty_like(x).zero_(),
}
CALLS = {**CASTS, **WITHOUT_VALUES, **OTHERS}


def differs(name, kind, dtype):
    """Where PyTorch keeps what is pending, and the number could be another one."""
    to = {**dict(zip(CASTS, DTYPES)), "double": torch.float64, "type_as": torch.float64}.get(name)
    if to is None or to == dtype or to == torch.bool:
        return False
    narrower = to.itemsize < dtype.itemsize or dtype.is_floating_point
    if kind in ("max", "min"):  # a term that is not the largest may not fit into a smaller type
        return not to.is_floating_point and dtype != torch.bool and narrower
    if kind in ("sum", "product"):  # sums of few bits wrap, and a sum of truths is one
        return dtype == torch.bool or (dtype == torch.int8 and to.itemsize > 1)
    return False


def lies(result):
    parts = result if isinstance(result, tuple) else [result]
    return [f"{part.placements} {name_of(part.dtype)}" for part in parts]


def attempt(call, x):
    try:
        return lies(call(x))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def layouts(mesh):
    """By call."""
    reports = {}
    for kind in KINDS:
        for dtype in DTYPES:
            x = DTensor.from_local(torch.ones(3, 5).to(dtype), mesh, [Partial(kind)])
            reports |= {f"{name} of {kind} {name_of(dtype)}": attempt(call, x) for name, call in CALLS.items()}
    return reports


def terms(dtype):
    """One of each rank, of few bits; those of bytes add up to more than a byte has."""
    values = (torch.arange(RANKS * 15) * 7 % 23 - 4).view(RANKS, 3, 5)
    if dtype == torch.bool:
        return values % 3 > 1
    return (values * 6).to(dtype) if dtype == torch.int8 else values.to(dtype) / 4 if dtype.is_floating_point else values.to(dtype)


def whole(kind, all_terms):
    """The number that the terms stand for."""
    if kind == "avg":
        return all_terms.double().mean(0).to(all_terms.dtype if all_terms.is_floating_point() else torch.float64)
    if kind in ("max", "min"):
        return getattr(all_terms, f"a{kind}")(0)
    total = all_terms[0]
    for term in all_terms[1:]:
        total = total | term if total.dtype == torch.bool and kind == "sum" else total + term if kind == "sum" else total * term
    return total


class Pending(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        self.enterContext(intarsia.simulate(RANKS))
        self.mesh = init_device_mesh("cpu", (RANKS,))

    def test_stays_pending_where_it_does_with_pytorch(self):
        child = subprocess.run([sys.executable, __file__, "stock"], capture_output=True, text=True, timeout=600)
        self.assertEqual(child.returncode, 0, child.stderr)
        theirs, ours = json.loads(child.stdout.splitlines()[-1]), layouts(self.mesh)
        different = {name for name, report in theirs.items() if isinstance(report, list) and report != ours[name]}
        # An average of whole numbers or truths is none of them, so what would reduce it is an error here.
        refused = {name for name in different if "the average of" in ours[name]}
        expected = {f"{name} of {kind} {name_of(dtype)}" for name in CALLS for kind in KINDS for dtype in DTYPES if differs(name, kind, dtype)}
        self.assertEqual(sorted(different - refused), sorted(expected))
        self.assertGreater(sum(isinstance(report, list) and "Partial" in report[0] for report in ours.values()), 500)

    def test_has_the_number_of_plain_tensors(self):
        for kind in KINDS:
            for dtype in DTYPES:
                for name, call in {**CASTS, **OTHERS}.items():
                    to = dict(zip(CASTS, DTYPES)).get(name)
                    if kind == "avg" and not dtype.is_floating_point and not (to and to.is_floating_point):
                        continue  # it has no number of this kind
                    if dtype == torch.bool and name.startswith("bucketize"):
                        continue
                    with self.subTest(f"{name} of {kind} {name_of(dtype)}"):
                        self.expect_close(call(self.pending(kind, terms(dtype))), call(whole(kind, terms(dtype))), dtype, kind)

    def pending(self, kind, all_terms):
        local = intarsia.experimental.rank_map(lambda rank: all_terms[rank])
        return DTensor.from_local(local, self.mesh, [Partial(kind)])

    def test_of_whole_numbers_averages_when_it_is_cast(self):
        x = self.pending("avg", terms(torch.int64))
        self.assertEqual(x.float().placements, (Partial("avg"),))
        self.assertTrue(torch.equal(x.float().full_tensor(), terms(torch.int64).float().mean(0)))

    def expect_close(self, result, expected, dtype, kind):
        parts = zip(result, expected) if isinstance(result, tuple) else [(result, expected)]
        for got, wanted in parts:
            rounded = max((torch.finfo(d).eps for d in (got.dtype, dtype) if d.is_floating_point), default=1e-6)
            full = got.full_tensor()
            torch.testing.assert_close(full.double(), wanted.double(), rtol=rounded * 8, atol=rounded * 16, msg=kind)
            self.assertEqual(full.dtype, wanted.dtype)


if __name__ == "__main__":
    print_on_a_fake_group(RANKS, layouts) if sys.argv[1:] == ["stock"] else unittest.main()
