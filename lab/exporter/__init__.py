"""The exporter: a daemon's metrics for Prometheus, from a process of its own."""
