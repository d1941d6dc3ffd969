"""What all tests on a GPU share."""

import os

# JAX would take three quarters of the memory at its start, of which others then have too little.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
