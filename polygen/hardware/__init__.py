"""Devices, instructions and shared-memory layouts as data files that prove themselves at load."""
