"""The versions that belong together."""

from ._built_for import TORCH  # written by the build

VERSION = "0.1.0"
MINOR = TORCH.rpartition(".")[0]


def check_torch() -> None:
    """Raises ImportError unless a PyTorch of the minor version that the extension was built for is installed."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"intarsia needs PyTorch, which is not installed. Run: pip install torch=={TORCH}") from None
    if torch.__version__.split("+")[0].rpartition(".")[0] != MINOR:
        raise ImportError(
            f"intarsia {VERSION} was built for PyTorch {TORCH}, but PyTorch {torch.__version__} is installed. "
            f"Run: pip install torch=={TORCH}"
        )
