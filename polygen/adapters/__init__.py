"""Polygen inside other libraries: each adapter is thin, optional, and imported by who wants it.

`import polygen` imports none of them. What needs no other library, and is tested without one, is in
the modules beside the adapters; `polygen.adapters.torch` is PyTorch's, and programs written for
NumPy run on CuPy through `polygen.adapters.numpy`.
"""
