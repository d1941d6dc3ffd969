"""The data of the cost model: what its loader refuses, and that the fit's search can use it."""

from __future__ import annotations

import copy

import pytest

from polygen.errors import HardwareDataError
from polygen.hardware import cost_parameters as module
from polygen.hardware.cost_parameters import FILE, NAMES, build, cost_parameters, search_ranges
from polygen.hardware.data_file import read
from polygen.hardware.device import device, devices


def changed(table, source_part, **numbers):
    data = copy.deepcopy(dict(read(FILE)))
    source = next(s for s in data[table] if source_part in s)
    for name, number in numbers.items():
        if number is None:
            del data[table][source][name]
        else:
            data[table][source][name] = number
    return data


def test_every_device_has_parameters():
    for target in devices():
        found = cost_parameters(target)
        assert all(getattr(found, name) > 0 for name in NAMES)


def test_a_devices_own_number_wins():
    assert cost_parameters(device("sm_80")).warp_rate == 1024
    common = read(FILE)["common"]
    fitted = next(iter(common.values()))
    assert "warp_rate" in fitted and fitted["warp_rate"] != 1024


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"latency": None}, r"cost.toml, sm_90a: missing parameters \['latency'\]"),
        ({"latncy": 3.0}, r"unknown parameters \['latncy'\].*Known: clock"),
        ({"latency": 0}, "latency = 0 is not positive"),
        ({"latency": -1.5}, "latency = -1.5 is not positive"),
        ({"latency": float("nan")}, "latency = nan is not positive"),
        ({"latency": "fast"}, "latency = 'fast' is not a number"),
        ({"latency": True}, "latency = True is not a number"),
    ],
)
def test_parameters_that_are_wrong(numbers, message):
    with pytest.raises(HardwareDataError, match=message):
        build("sm_90a", changed("common", "fit", **numbers), f"hardware/data/{FILE}, sm_90a")


def test_a_device_without_a_table():
    data = {name: table for name, table in read(FILE).items() if name != "sm_90a"}
    with pytest.raises(HardwareDataError, match="'sm_90a' is missing"):
        build("sm_90a", data, "here")


@pytest.mark.parametrize(
    ("name", "entry", "message"),
    [
        ("latncy", [1, 2, 3], "unknown parameter 'latncy'"),
        ("latency", [1, 2], r"is not \[least, nominal, most\]"),
        ("latency", 7, r"is not \[least, nominal, most\]"),
        ("latency", [3, 2, 4], "is not in order"),
        ("latency", [0, 2, 4], "latency = 0 is not positive"),
    ],
)
def test_ranges_that_are_wrong(monkeypatch, name, entry, message):
    data = dict(read(FILE))
    data["search"] = {**data["search"], name: entry}
    monkeypatch.setattr(module, "read", lambda _: data)
    with pytest.raises(HardwareDataError, match=message):
        search_ranges()


def test_fitted_numbers_lie_in_their_ranges():
    fitted = next(t for source, t in read(FILE)["common"].items() if "polygen.tune.fit" in source)
    ranges = search_ranges()
    assert set(ranges) == set(fitted)
    for name, (low, _, high) in ranges.items():
        assert low <= fitted[name] <= high, name
