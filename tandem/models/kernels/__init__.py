"""CPU kernels, written in ordinary torch operations. They need no compiler.

Each computes the result of a torch operation, from the same parameters, in less time. A module's `is_supported` says
whether its kernel applies.
"""
