# SPDX-License-Identifier: MIT
"""What is each mechanism worth? `python scripts/ablation.py --gpus 1 2 --sizes 8000 16000 --json ablation.jsonl`."""

from experiments.start import run

run("bench.ablation")
