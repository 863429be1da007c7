"""Kernels for the CPU, written by hand in ordinary torch: nothing is compiled, here or on the user's machine.

Each gives the numbers of the operation it stands for, from the same parameters, in less time; `takes` of each module says when.
"""
