"""The `Schedule` record: how a program is tiled, pipelined and mapped; one frozen record, one TOML file."""
