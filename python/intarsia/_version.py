"""The versions that belong together."""

VERSION = "0.1.0"
TORCH = "2.13.0"


def check_torch() -> None:
    """Raises ImportError unless the one PyTorch that the extension was built for is installed."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"intarsia needs PyTorch, which is not installed. Run: pip install torch=={TORCH}") from None
    if torch.__version__.split("+")[0] != TORCH:
        raise ImportError(
            f"intarsia {VERSION} was built for PyTorch {TORCH}, but PyTorch {torch.__version__} is installed. "
            f"Run: pip install torch=={TORCH}"
        )
