"""Part of fenced-lab."""
