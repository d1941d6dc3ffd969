"""`ScheduleTree` to `KernelPlan`: buffers, layouts, leaf operations, epilogue, resources, verification."""
