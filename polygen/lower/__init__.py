"""`ScheduleTree` to `KernelPlan`: buffers, layouts, leaves, epilogue, resources, verification."""
