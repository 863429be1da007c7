"""Kernels for the CPU, written by hand in ordinary torch: nothing is compiled, here or on the user's machine.

Each computes what a torch operation computes, from the same parameters, in less time. `is_supported` of each module
says when it can.
"""
