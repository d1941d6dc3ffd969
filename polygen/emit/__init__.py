"""`KernelPlan` to CUDA text. The only package that contains CUDA."""
