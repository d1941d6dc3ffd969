"""PyTorch's distributed package, as far as its failures and its patience go."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import torch

from polygen.errors import EngineError, told


def engine(run: Callable[[], Any], what: str) -> Any:
    """Call the engine; its failure is one clear error.

    Raises:
        EngineError: it fails.
    """
    try:
        return run()
    except RuntimeError as error:
        raise EngineError(
            f"the engine gives up on {what}",
            where="torch.distributed",
            why=told(error),
            nearest="A rank has ended or is stuck: see its output. Nothing of this step is kept; "
            "start the ranks again",
        ) from error


def patience(group: Any, device: torch.device) -> int:
    """How long the engine waits for a collective of a group, in milliseconds."""
    options = getattr(group._get_backend(device), "options", None)
    found = getattr(options, "_timeout", None) or datetime.timedelta(minutes=10)
    return int(found.total_seconds() * 1000)
