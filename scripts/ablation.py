"""What is each mechanism worth? python scripts/ablation.py --gpus 1 2 --sizes 8000 16000 --json ablation.jsonl"""

from __future__ import annotations

import sys

from experiments.ablation.cli import main

if __name__ == "__main__":
    sys.exit(main())
