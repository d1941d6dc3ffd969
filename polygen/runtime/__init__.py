"""Compile, cache, load and launch; importing it starts nothing: no CuPy, no CUDA context."""
