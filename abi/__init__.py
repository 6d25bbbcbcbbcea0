"""What crosses a process boundary: frames, sessions, results and captured graphs, and the rules that bind them.

Imports no other package here, and of others only numpy and pycapnp. The `.capnp` files beside this one are
the contract; everything in this package is derived from them or held equal to them by a test.
"""
