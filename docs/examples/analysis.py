# SPDX-License-Identifier: MIT
"""Three analyses of random data in plain NumPy: python analysis.py pca|svd|knn [rows [columns]]. Nothing here knows of hybrid."""

import sys
import time

import numpy as np


def pca(x):
    """The variances of the first ten principal components, from the covariances of the columns."""
    centred = x - x.mean(axis=0)
    return np.linalg.eigvalsh(centred.T @ centred / (len(x) - 1))[:-11:-1]


def svd(x):
    """The ten largest singular values by random projections (Halko, Martinsson and Tropp)."""
    sketch = x @ np.random.default_rng(1).standard_normal((x.shape[1], 512))
    for _ in range(2):
        sketch = np.linalg.qr(x @ (x.T @ np.linalg.qr(sketch)[0]))[0]
    return np.linalg.svd(sketch.T @ x, compute_uv=False)[:10]


def knn(x):
    """The mean distance of each row to its nearest neighbour: distances by the Gram matrix, some rows at a time."""
    squares, nearest = np.einsum("ij,ij->i", x, x), []
    for first in range(0, len(x), 4096):
        rows = slice(first, first + 4096)
        distances = squares[rows, None] + squares - 2 * (x[rows] @ x.T)
        distances[np.arange(len(distances)), np.arange(first, first + len(distances))] = np.inf
        nearest.append(distances.min(axis=1))
    return np.sqrt(np.concatenate(nearest)).mean()


if __name__ == "__main__":
    name, rows, columns = [*sys.argv[1:], *("pca", "2000", "500")[len(sys.argv) - 1 :]]
    data = np.random.default_rng(0).standard_normal((int(rows), int(columns)))
    began = time.perf_counter()
    result = {"pca": pca, "svd": svd, "knn": knn}[name](data)
    print(f"{name} {rows}x{columns}: {time.perf_counter() - began:.2f} s, {np.ravel(result)[0]:.6f}")
