"""The capacity of many replicas, by simulation with measured curves, and the cost of the path to them."""
