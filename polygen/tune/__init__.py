"""Which schedule is fastest: the schedules there are, a model of their time, measured records."""
