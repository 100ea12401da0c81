# SPDX-License-Identifier: MIT
"""A folder with RAPL's files, to stand for /sys/class/powercap."""

from pathlib import Path

RANGE = 262_143_328_850  # microjoules at which these counters go round


def zone(folder: Path, number: str, name: str, microjoules: int) -> Path:
    """The zone's counter."""
    there = folder / f"intel-rapl:{number}"
    there.mkdir(parents=True)
    (there / "name").write_text(f"{name}\n")
    (there / "max_energy_range_uj").write_text(f"{RANGE}\n")
    counter = there / "energy_uj"
    counter.write_text(f"{microjoules}\n")
    return counter


def two_processors(folder: Path) -> list[Path]:
    """The counters of two processors, each with zones of its cores and its memory, in a machine that counts itself, too."""
    zone(folder, "2", "psys", 7)
    found = []
    for processor in ("0", "1"):
        found.append(zone(folder, processor, f"package-{processor}", 1_000_000))
        zone(folder, f"{processor}:0", "core", 1_000_000)
        found.append(zone(folder, f"{processor}:1", "dram", 500_000))
    (folder / "intel-rapl").mkdir()
    return found


def add(counter: Path, microjoules: int) -> None:
    """As the hardware does, which begins at 0 again after the greatest value."""
    beside = counter.with_name("beside")
    beside.write_text(f"{(int(counter.read_text()) + microjoules) % RANGE}\n")
    beside.replace(counter)  # nobody reads half of it
