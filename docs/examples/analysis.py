# SPDX-License-Identifier: MIT
"""Six analyses of random data: python analysis.py pca|svd|knn|layer|mcl|gp [rows [columns]]. Nothing here knows of hybrid."""

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


def layer(x):
    """The loss after ten training steps of a dense layer and a linear output, by gradient descent in float32."""
    x, rng = x.astype("float32"), np.random.default_rng(1)
    wanted = np.tanh(x[:, :64])
    first, second = (rng.standard_normal(shape, "float32") / shape[0] ** 0.5 for shape in ((x.shape[1], 1024), (1024, 64)))
    for _ in range(10):
        hidden = np.maximum(x @ first, 0)
        wrong = hidden @ second - wanted
        backwards = (wrong @ second.T) * (hidden > 0)
        second -= 1e-3 / len(x) * (hidden.T @ wrong)
        first -= 1e-3 / len(x) * (x.T @ backwards)
    return np.square(wrong).mean()


def mcl(x):
    """The number of clusters by Markov clustering (van Dongen): of 20 groups of rows, in the graph of their correlations."""
    flow = np.maximum(np.corrcoef(x + 2 * x[np.arange(len(x)) % 20]), 0)
    for _ in range(12):
        flow /= flow.sum(axis=0)
        flow = (flow @ flow) ** 2
        flow[flow < 1e-12] = 0
    return len(np.unique(flow.argmax(axis=0)))


def gp(x):
    """The error with which a Gaussian process (scikit-learn), fitted to four fifths of the rows, predicts the others."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import DotProduct, WhiteKernel

    y, known = np.tanh(3 * x[:, :3]).sum(axis=1), 4 * len(x) // 5
    process = GaussianProcessRegressor(DotProduct() + WhiteKernel()).fit(x[:known], y[:known])
    mean, _ = process.predict(x[known:], return_std=True)
    return np.abs(mean - y[known:]).mean()


if __name__ == "__main__":
    name, rows, columns = [*sys.argv[1:], *("pca", "2000", "500")[len(sys.argv) - 1 :]]
    data = np.random.default_rng(0).standard_normal((int(rows), int(columns)))
    began = time.perf_counter()
    result = {"pca": pca, "svd": svd, "knn": knn, "layer": layer, "mcl": mcl, "gp": gp}[name](data)
    print(f"{name} {rows}x{columns}: {time.perf_counter() - began:.2f} s, {np.ravel(result)[0]:.6f}")
