"""The records that scripts of this folder write: on what was measured, and how."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from polygen.bench.card import smi


def header(kind: str, protocol: str) -> dict[str, Any]:
    """What a record says of the machine, the day and the way it was measured.

    Args:
        kind: of record.
        protocol: how.
    """
    import torch  # noqa: PLC0415

    return {
        "format": 1,
        "kind": kind,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "gpu": torch.cuda.get_device_name(),
        **smi("driver_version"),
        "clocks": smi("clocks.sm,clocks.mem,clocks.max.sm,power.limit"),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda},
        "protocol": protocol,
    }


def write(record: dict[str, Any], out: Path | None) -> None:
    """Write a record whole, or leave what is there; None: nowhere."""
    if out is None:
        return
    made = out.with_suffix(".new")
    made.write_text(json.dumps(record, indent=1) + "\n")
    made.replace(out)
