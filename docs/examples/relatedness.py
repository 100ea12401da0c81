# SPDX-License-Identifier: MIT
"""The samples of a PLINK file: their principal components, and the two that are most alike.

python relatedness.py G.bed                           reads G.bed and G.fam
python relatedness.py --make SAMPLES VARIANTS G.bed   writes random ones
"""

import sys
from pathlib import Path

import numpy as np

import hybrid


def make(samples, variants, path):
    """Write genotypes of two populations, half of the samples each; 1 % are missing. The last sample is the first once more."""
    rng = np.random.default_rng(1)
    frequencies = rng.uniform(0.1, 0.9, (variants, 1))
    of_others = np.clip(frequencies + rng.normal(0, 0.2, (variants, 1)), 0, 1)
    alleles = rng.binomial(2, np.where(np.arange(samples) < samples // 2, frequencies, of_others))
    codes = np.array([3, 2, 0], np.uint8)[alleles]
    codes[:, -1] = codes[:, 0]
    codes[rng.random(codes.shape) < 0.01] = 1
    codes = np.pad(codes, ((0, 0), (0, -samples % 4))).reshape(variants, -1, 4)
    Path(path).write_bytes(b"\x6c\x1b\x01" + (codes << np.arange(0, 8, 2, np.uint8)).sum(axis=2, dtype=np.uint8).tobytes())
    Path(path).with_suffix(".fam").write_text("".join(f"{number} {number} 0 0 0 -9\n" for number in range(samples)))


def relatedness(path, components=4):
    """The shares of the variance that the first components have, the two samples most alike, and their correlation."""
    products = hybrid.gram(path, transposed=True)  # sums over all variants: exact
    called = hybrid.gram(f"{path}:called", transposed=True)  # how many variants are known of both samples
    mean = products / np.maximum(called, 1)
    centred = mean - mean.mean(axis=0) - mean.mean(axis=1)[:, None] + mean.mean()
    shares = np.linalg.eigvalsh(centred)[: -components - 1 : -1] / np.trace(centred)
    deviations = np.sqrt(centred.diagonal())
    correlations = np.tril(centred / np.outer(deviations, deviations), -1)
    one, other = np.unravel_index(correlations.argmax(), correlations.shape)
    return shares, (int(other), int(one)), correlations[one, other]


if __name__ == "__main__":
    if sys.argv[1] == "--make":
        make(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        shares, pair, correlation = relatedness(sys.argv[1])
        print("shares of the variance:", *(f"{share:.1%}" for share in shares))
        print(f"most alike: samples {pair[0]} and {pair[1]}, correlation {correlation:.2f}")
