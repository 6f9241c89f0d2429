"""Objects that a program may hand to a function by mistake: none of them may end the process."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor


class Wrapper(torch.Tensor):
    """A wrapper subclass with FSDP2's extension for all-gathers, as float8 training has it. It has no memory."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Wrapper":
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype, requires_grad=inner.requires_grad)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return "Wrapper()"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: "dict | None" = None) -> Any:
        args, kwargs = torch.utils._pytree.tree_map_only(cls, lambda x: x.inner, (args, kwargs or {}))
        made = func(*args, **kwargs)
        return cls(made) if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default) else made

    def fsdp_pre_all_gather(self, mesh: Any) -> tuple:
        return (self.inner,), None

    def fsdp_post_all_gather(self, outputs: tuple, metadata: Any, dtype: Any, *, out: Any = None) -> Any:
        return None if out is not None else (outputs[0], outputs)


class Named(torch.Tensor):
    """A subclass without anything of its own."""


class Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        raise RuntimeError("not this one")


class Faker:
    """Says that it is a tensor."""

    __class__ = torch.Tensor
    shape, dtype, device, requires_grad, is_leaf, ndim, is_meta = (4, 3), torch.float32, torch.device("cpu"), False, True, 2, False


def _quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(4, 3), 0.1, 0, torch.quint8)


def _nested(layout: torch.layout) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=layout)


def _csr() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ones(4, 3).to_sparse_csr()


def _escaped(transform: Callable) -> torch.Tensor:
    """A wrapper of functorch that outlives its transform."""
    kept = []
    transform(lambda x: (kept.append(x), x.sum())[1])(torch.ones(4, 3))
    return kept[0]


def _dual() -> torch.Tensor:
    with torch.autograd.forward_ad.dual_level():
        return torch.autograd.forward_ad.make_dual(torch.ones(4, 3), torch.ones(4, 3))


def _inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(4, 3)


def _fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(4, 3)


TENSORS: "dict[str, Callable[[], Any]]" = {
    "a tensor on meta": lambda: torch.ones(4, 3, device="meta"),
    "a sparse COO tensor": lambda: torch.ones(4, 3).to_sparse(),
    "a sparse CSR tensor": _csr,
    "a quantized tensor": _quantized,
    "a nested tensor": lambda: _nested(torch.strided),
    "a jagged tensor": lambda: _nested(torch.jagged),
    "a FakeTensor": _fake,
    "a wrapper subclass": lambda: Wrapper(torch.ones(4, 3)),
    "a wrapper subclass that requires grad": lambda: Wrapper(torch.ones(4, 3, requires_grad=True)),
    "a parameter that is a wrapper subclass": lambda: torch.nn.Parameter(Wrapper(torch.ones(4, 3))),
    "a TwoTensor": lambda: TwoTensor(torch.ones(4, 3), torch.ones(4, 3)),
    "a plain subclass": lambda: torch.ones(4, 3).as_subclass(Named),
    "a refusing subclass": lambda: torch.ones(4, 3).as_subclass(Refusing),
    "an escaped vmap": lambda: _escaped(torch.vmap),
    "an escaped grad": lambda: _escaped(torch.func.grad),
    "an escaped functionalize": lambda: _escaped(torch.func.functionalize),
    "a dual tensor": _dual,
    "an inference tensor": _inference,
    "an oneDNN tensor": lambda: torch.ones(4, 3).to_mkldnn(),
    "an uninitialized parameter": lambda: torch.nn.UninitializedParameter(),
    "a complex conjugate": lambda: torch.ones(4, 3, dtype=torch.complex64).conj(),
    "a negative view": lambda: torch.ones(4, 3, dtype=torch.complex64).conj().imag,
    "float8": lambda: torch.ones(4, 3).to(torch.float8_e4m3fn),
    "bits": lambda: torch.ones(4, 3, dtype=torch.uint8).view(torch.bits8),
    "a tensor of bools": lambda: torch.ones(4, 3, dtype=torch.bool),
    "an empty tensor": lambda: torch.ones(0, 3),
    "a number as a tensor": lambda: torch.tensor(2.0),
    "an expanded tensor": lambda: torch.ones(1).expand(4, 3),
    "a result that requires grad": lambda: torch.ones(4, 3, requires_grad=True) * 2,
    "many dims": lambda: torch.ones((1,) * 70),
}

OTHERS: "dict[str, Callable[[], Any]]" = {
    "None": lambda: None,
    "an object": object,
    "what says that it is a tensor": Faker,
    "the class Tensor": lambda: torch.Tensor,
    "the class Wrapper": lambda: Wrapper,
    "a dtype": lambda: torch.float64,
    "a device": lambda: torch.device("cuda:7"),
    "a text": lambda: "text\0\ud800",
    "bytes": lambda: b"\xff\0",
    "2**63": lambda: 2**63,
    "2**62": lambda: 2**62,
    "-2**63": lambda: -(2**63),
    "-1": lambda: -1,
    "NaN": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "a complex number": lambda: 1j,
    "a list of huge numbers": lambda: [2**62, 2**62],
    "a list of negative numbers": lambda: [-1, -(2**63)],
    "a list of None": lambda: [None, None],
    "a list of odd tensors": lambda: [Wrapper(torch.ones(4, 3)), torch.ones(4, 3).to_sparse()],
    "a dict": lambda: {"": None, None: ""},
    "a function that fails": lambda: _fails,
}


def _fails(*args: Any, **kwargs: Any) -> None:
    raise ZeroDivisionError
