# SPDX-License-Identifier: MIT
"""Network namespaces that stand for nodes: those of scripts/bench_nodes.py and scripts/ordeal.py."""

from __future__ import annotations

from experiments.nodes.network import SLOW, Network, why_not

__all__ = ["SLOW", "Network", "why_not"]
