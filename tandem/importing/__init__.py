"""`tandem new`: reads data in any shape, infers what it means, and makes a workload of it."""
