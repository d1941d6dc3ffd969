"""Clocks, power and temperature of the card: samples while a row is measured, and single readings.

NVML is read through ``nvidia-ml-py`` by a thread that mostly sleeps; where it is not installed,
``nvidia-smi`` is asked once before and once after a run.
"""

from __future__ import annotations

import statistics
import subprocess
import threading
from typing import Any

PERIOD = 0.05  # seconds
_SMI = "clocks.sm,clocks.mem,clocks.max.sm,power.draw,power.limit,temperature.gpu"


class Sampler:
    """Reads the first card every `PERIOD` seconds; silent where that is impossible."""

    def __init__(self) -> None:
        self._samples: list[tuple[int, float, int]] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._read = _reader()
        if self._read is not None:
            threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while not self._stop.wait(PERIOD):
            try:
                found = self._read()
            except Exception:  # the driver may refuse now and then
                continue
            with self._lock:
                self._samples.append(found)

    def take(self) -> dict[str, Any]:
        """What was seen since the last call: medians, and the extremes of the clock."""
        with self._lock:
            samples, self._samples = self._samples, []
        return summarised(samples)

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()


def summarised(samples: list[tuple[int, float, int]]) -> dict[str, Any]:
    """Samples of (SM clock in MHz, watts, degrees Celsius) as the record holds them."""
    if not samples:
        return {}
    clocks, watts, degrees = zip(*samples, strict=True)
    return {
        "sm_mhz": round(statistics.median(clocks)),
        "sm_mhz_range": [min(clocks), max(clocks)],
        "watts": round(statistics.median(watts), 1),
        "celsius": round(statistics.median(degrees)),
        "samples": len(samples),
    }


def _reader() -> Any:
    """A function that reads one sample; None without NVML."""
    try:
        import pynvml  # noqa: PLC0415

        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByIndex(0)

        def read() -> tuple[int, float, int]:
            return (
                pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_SM),
                pynvml.nvmlDeviceGetPowerUsage(card) / 1000,
                pynvml.nvmlDeviceGetTemperature(card, pynvml.NVML_TEMPERATURE_GPU),
            )

        read()
    except Exception:  # not installed, no driver, or a driver that does not say
        return None
    return read


def smi(fields: str = _SMI) -> dict[str, str]:
    """What nvidia-smi says of the first card; empty without one."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    if done.returncode:
        return {}
    values = done.stdout.partition("\n")[0].split(",")
    return dict(zip(fields.split(","), (value.strip() for value in values), strict=False))
