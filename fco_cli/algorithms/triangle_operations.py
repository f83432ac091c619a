"""Kernels of the operations on `Symmetric` arrays [slots, J, P] in ops.py."""

from __future__ import annotations

import numpy as np

from fco_cli.algorithms.transforms.compression import entry_count, kth_largest
from fco_cli.kernels.compiled import kernel
from fco_cli.problem.client_curvature import columns_in


@kernel
def add_triangle(target, source):
    for n in range(target.shape[0]):
        for j in range(target.shape[1]):
            for i in range(target.shape[2]):
                target[n, j, i] += source[n, j, i]


@kernel
def subtract_triangle(target, source):
    for n in range(target.shape[0]):
        for j in range(target.shape[1]):
            for i in range(target.shape[2]):
                target[n, j, i] -= source[n, j, i]


@kernel
def assign_triangle_norm(value, triangle):
    size = triangle.shape[2]
    columns = columns_in(triangle.shape[0], size)
    for j in range(triangle.shape[1]):
        total, entry = 0.0, 0
        for row in range(columns):
            for column in range(row, columns):
                number = triangle[entry // size, j, entry % size]
                total += (1 if row == column else 2) * number * number
                entry += 1
        value[j] = np.sqrt(total)


@kernel
def keep_largest_of_triangle(triangle, share):
    size = triangle.shape[2]
    columns = columns_in(triangle.shape[0], size)
    count = columns * (columns + 1) // 2
    magnitude = np.empty(count, triangle.dtype)
    for j in range(triangle.shape[1]):
        for entry in range(count):
            magnitude[entry] = abs(triangle[entry // size, j, entry % size])
        kept = entry_count(share[j], count)
        least, equal = kth_largest(magnitude, kept), kept
        for entry in range(kept):  # after the selection the largest magnitudes come first
            equal -= magnitude[entry] > least
        for entry in range(count):
            number = triangle[entry // size, j, entry % size]
            if abs(number) == least and equal > 0:
                equal -= 1
            elif abs(number) <= least:
                triangle[entry // size, j, entry % size] = 0
