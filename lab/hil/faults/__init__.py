"""Fault injectors: one for every row of the cases seen in the field. `lab.hil.faults.index` lists them."""
