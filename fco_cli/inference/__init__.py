"""Statistical inference (`experiment=glm`, docs/inference.md): estimates, covariance matrices, tests, intervals.

All quantities are computed from sums over clients: losses, gradients, Hessians and outer products of gradients.
"""
