"""The lab side of fenced: compile, sign, record, replay, test and measure. Never on a vehicle."""
