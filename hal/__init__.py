"""Accelerator drivers: admission of captured graphs, command queues, timelines and fences. Imports `abi` only."""
