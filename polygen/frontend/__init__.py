"""Array code to `Program`: tracing, broadcasting, shape inference."""
