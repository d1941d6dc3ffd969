"""The `Schedule` record: how a program is tiled, pipelined and mapped; one record, one file."""
